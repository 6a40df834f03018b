// Search results: config keys come first, those of a task after the others.
// The numbers are the defaults of Sphinx, which this file replaces.
var Scorer = {
  score: ([page, title, anchor, description, score, file, kind]) => {
    if (kind !== 'object' || page !== 'docs/config_keys') return score;
    return score + (title.startsWith('tasks.') ? 20 : 21);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
