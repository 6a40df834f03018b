"""The keys of `config.data` for captions."""

import ml_collections
from ml_collections import config_dict

# Those that say how a caption becomes tokens.
KEYS = ('tokenizer', 'text_length', 'text_too_long', 'words')


def add_keys(data: ml_collections.ConfigDict) -> None:
  """Adds the keys for captions to `config.data`."""
  # Columns of captions, each a text or a list of texts. (): the column with a
  # usual name, if there is a tokenizer.
  data.columns.text = ()
  # '': the captions of the data. 'templates:A {}.|B {}.': captions made of the
  # templates, with the name of the image's class in place of {}. Or
  # 'templates:LIST', a list of vit_jax/data/templates, as 'imagenet'; or
  # 'templates:FILE', with a template on each line.
  data.captions = ''
  # Names of the classes in templates: a list of vit_jax/data/class_names, as
  # 'cifar10'; or a file with a name on each line, in the order of the data's
  # classes. '': the data's own, with spaces in place of underscores.
  data.class_names = ''
  # 'words' (those of the training captions), or a published vocabulary, which
  # is downloaded once: 'clip' (CLIP's), 'sentencepiece' (SigLIP's) or
  # 'wordpiece' (LiT's, BERT's uncased one). Or the file of another one of these
  # kinds: 'clip:FILE', 'sentencepiece:FILE' or 'wordpiece:FILE'. '': captions
  # are not read.
  data.tokenizer = ''
  # Tokens of a caption with the special ones. None: as published.
  data.text_length = config_dict.placeholder(int)
  data.text_too_long = 'cut'  # longer captions; or 'refuse'
  # The words of tokenizer='words'. (): collected at the start.
  data.words = ()
