// One model: its image, its predictions and its attention.

import { paint, paintPixels, rangeOf } from "./colours.js";

const STEPS = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};
const LEAST_TOP = 2; // so that nearly uniform attention is nearly one colour
const SMOOTH = 64; // images of this side or more are shown smoothed

export class Panel {
  /**
   * @param {object} model Facts from the server.
   * @param {(place: ?{x: number, y: number}, held: boolean) => void} point Is
   *   called with the place of the pointer on the image, x and y from 0 to 1, or
   *   null; held says whether it stays when the pointer leaves.
   */
  constructor(model, point) {
    this.model = model;
    this.point = point;
    this.reply = null;
    this.patch = null; // index of the query patch; null: the default query
    this.held = false;
    this.letsGo = false; // whether a click releases the patch
    const template = document.getElementById("panel");
    this.element = template.content.cloneNode(true).firstElementChild;
    this.find(".name").textContent = model.name;
    this.find(".facts").textContent = model.facts;
    this.find(".note").textContent = model.note;
    this.find(".note").hidden = !model.note;
    this.stage = this.find(".stage");
    const steps = Array.from({ length: 256 }, (_, i) => i);
    paint(this.find(".scale"), [1, 256], steps, 255);
    this.fit = null; // the server's reply on sentences
    this.sentence = null; // of which the map is shown; null: attention
    this.find(".controls").hidden = !model.heads;
    this.find(".looking").hidden = !model.heads;
    // Without a map, the stage shows the image itself.
    this.find(".original").hidden = !model.heads && !model.texts;
    this.find(".leave").addEventListener("click", () => this.choose(null));
    this.find(".leave").hidden = !model.heads;
    if (model.heads) {
      this.addControls();
      this.addPointing();
    }
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  addControls() {
    const { layers, heads } = this.model;
    this.layer = this.find(".layer input");
    this.head = this.find(".head input");
    this.strength = this.find(".strength input");
    this.rollout = this.find(".rollout input");
    this.layer.max = this.layer.value = layers - 1;
    this.head.max = heads - 1;
    this.head.value = -1; // the mean
    this.find(".head").hidden = heads === 1;
    this.find(".controls").addEventListener("input", () => this.draw());
    this.label();
  }

  /** Writes the values of the sliders, counted from 0 as in reports. */
  label() {
    const { layers, heads } = this.model;
    const head = Number(this.head.value);
    const texts = {
      layer: `${this.layer.value} (0 to ${layers - 1})`,
      head: head < 0 ? "mean of all" : `${head} (0 to ${heads - 1})`,
      strength: `${this.strength.value}%`,
    };
    for (const [name, text] of Object.entries(texts)) {
      this.find(`.${name} output`).textContent = text;
      this[name].setAttribute("aria-valuetext", text);
    }
    this.layer.disabled = this.head.disabled = this.rollout.checked;
  }

  addPointing() {
    const { stage } = this;
    stage.tabIndex = 0;
    stage.setAttribute("role", "application");
    stage.setAttribute(
      "aria-label",
      `Patches of the image for ${this.model.name}: arrow keys choose one,` +
        " Escape lets go",
    );
    stage.addEventListener("pointerdown", (event) => {
      const patch = this.patchAt(this.placeOf(event));
      this.letsGo = this.held && patch === this.patch;
    });
    stage.addEventListener("pointermove", (event) => {
      const isTouch = event.pointerType === "touch";
      if (isTouch || !this.held) this.point(this.placeOf(event), isTouch);
    });
    stage.addEventListener("pointerleave", () => {
      if (!this.held) this.point(null, false);
    });
    stage.addEventListener("click", (event) => {
      this.point(this.letsGo ? null : this.placeOf(event), !this.letsGo);
    });
    stage.addEventListener("keydown", (event) => this.onKey(event));
  }

  onKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const step = STEPS[event.key];
    if (event.key === "Escape") this.point(null, false);
    if (!step || !this.reply) return;
    event.preventDefault(); // no scrolling
    const [rows, columns] = this.model.grid;
    const start = [Math.floor(rows / 2), Math.floor(columns / 2)];
    const now = this.patch === null ? start : this.rowAndColumn(this.patch);
    const next = this.patch === null ? [0, 0] : step; // at first the middle
    const row = Math.min(Math.max(now[0] + next[0], 0), rows - 1);
    const column = Math.min(Math.max(now[1] + next[1], 0), columns - 1);
    this.point({ x: (column + 0.5) / columns, y: (row + 0.5) / rows }, true);
  }

  placeOf(event) {
    const box = this.stage.getBoundingClientRect();
    return {
      x: (event.clientX - box.left) / box.width,
      y: (event.clientY - box.top) / box.height,
    };
  }

  patchAt({ x, y }) {
    const [rows, columns] = this.model.grid;
    const row = Math.min(Math.max(Math.floor(y * rows), 0), rows - 1);
    const column = Math.min(Math.max(Math.floor(x * columns), 0), columns - 1);
    return row * columns + column;
  }

  rowAndColumn(patch) {
    const columns = this.model.grid[1];
    return [Math.floor(patch / columns), patch % columns];
  }

  /** Shows the attention of a place; null: of the default query. */
  select(place, held) {
    if (!this.model.heads || !this.reply) return;
    this.patch = place && this.patchAt(place);
    this.held = held;
    this.draw();
  }

  /** Shows the server's reply. */
  show(reply) {
    this.reply = reply;
    const { shape, data } = reply.pixels;
    const isSmall = Math.min(shape[0], shape[1]) < SMOOTH;
    for (const canvas of [this.find(".picture"), this.find(".original")]) {
      paintPixels(canvas, shape, data);
      canvas.classList.toggle("squares", isSmall);
    }
    this.stage.style.aspectRatio = `${shape[1]} / ${shape[0]}`;
    this.element.classList.add("shown");
    this.find(".controls").disabled = false;
    this.showAnswers(reply.top);
    this.showFit(null);
    if (this.model.heads) this.draw();
  }

  showAnswers(top) {
    const items = top.map(({ name, probability, number }) => {
      const item = document.createElement("li");
      item.append(...bar(name, probability ?? 0, number));
      return item;
    });
    this.find(".answers").hidden = Boolean(this.model.texts) && !top.length;
    const kind = top[0]?.number === undefined ? "Most probable" : "Numbers";
    this.find(".answers h3").textContent = top.length
      ? kind
      : "This model has no head: it names no classes";
    this.find(".answers ol").replaceChildren(...items);
  }

  /** Shows the sentences and the map of the best; null: none. */
  showFit(fit) {
    this.fit = fit;
    this.find(".sentences").hidden = !fit;
    if (!fit) {
      this.choose(null);
      return;
    }
    this.find(".meaning").textContent =
      (this.model.texts === "each"
        ? "Each sentence has a probability of its own."
        : "The probabilities add up to 100%.") +
      " Choose a sentence to see which places speak for it.";
    const items = fit.sentences.map((sentence) => {
      const { text, probability, index } = sentence;
      const item = document.createElement("li");
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.index = index;
      button.append(...bar(text, probability));
      button.addEventListener("click", () => this.choose(sentence));
      item.append(button);
      return item;
    });
    this.find(".sentences ol").replaceChildren(...items);
    this.choose(fit.sentences[0]);
  }

  /** Shows the map of a sentence; null: of attention, if there is any. */
  choose(sentence) {
    this.sentence = sentence;
    for (const button of this.element.querySelectorAll(".sentences ol button")) {
      const isChosen = button.dataset.index === String(sentence?.index);
      button.setAttribute("aria-pressed", isChosen);
    }
    const { heads } = this.model;
    this.find(".looking").hidden = !heads && !sentence;
    if (heads) this.draw();
    else if (sentence) this.drawSentence();
    else if (this.reply) this.find(".map").style.opacity = 0;
  }

  /** Draws how much each place adds to the cosine of the chosen sentence. */
  drawSentence() {
    const { places } = this.fit;
    const { index, text, cosine } = this.sentence;
    const [, rows, columns] = places.shape;
    const count = rows * columns;
    const values = places.data.subarray(index * count, (index + 1) * count);
    const [least, most] = rangeOf(places.data);
    const above = Array.from(values, (value) => value - least);
    paint(this.find(".map"), [rows, columns], above, most - least);
    this.fade(this.strength ? this.strength.value / 100 : 1);
    this.find(".least").textContent = least.toFixed(3);
    this.find(".most").textContent = most.toFixed(3);
    this.find(".rule").textContent =
      `The cosine of the image and this sentence is ${cosine.toFixed(3)}. The` +
      " colours say how much it falls when a place is hidden; they are the" +
      " same for all sentences.";
    const best = values.indexOf(Math.max(...values));
    const at = this.patch ?? best;
    const where = `row ${Math.floor(at / columns)}, column ${at % columns}`;
    this.find(".readout").textContent =
      this.patch === null
        ? `“${text}” rests most on ${where}: ${values[at].toFixed(3)}`
        : `Without ${where}, “${text}” loses ${values[at].toFixed(3)}`;
  }

  /** Shows the map at a strength, 0 to 1, above the image in grey. */
  fade(strength) {
    const map = this.find(".map");
    map.style.opacity = this.find(".scale").style.opacity = strength;
    // Colours of the image could be taken for those of the map, and its dark
    // parts for little attention.
    this.find(".picture").style.filter =
      `grayscale(${strength}) contrast(${1 - 0.7 * strength})`;
  }

  /** Returns the attention to each patch. */
  weights() {
    const { weights, peaks } = this.reply;
    const [maps, queries, patches] = weights.shape;
    const { heads } = this.model;
    const first = Number(this.layer.value) * heads;
    const head = Number(this.head.value);
    let chosen = Array.from({ length: heads }, (_, i) => first + i);
    if (head >= 0) chosen = [first + head];
    if (this.rollout.checked) chosen = [maps - 1];
    const sum = new Float32Array(patches);
    for (const map of chosen) {
      const row = map * queries + (this.patch === null ? 0 : 1 + this.patch);
      const part = peaks.data[row] / (255 * chosen.length);
      const from = row * patches;
      for (let i = 0; i < patches; i++) sum[i] += part * weights.data[from + i];
    }
    return sum;
  }

  draw() {
    this.label();
    if (!this.reply) return;
    if (this.sentence) {
      this.drawSentence();
      this.drawPatch();
      return;
    }
    const weights = this.weights();
    let best = 0;
    for (let i = 1; i < weights.length; i++) {
      if (weights[i] > weights[best]) best = i;
    }
    const { uniform } = this.model;
    const top = Math.max(this.reply.high, LEAST_TOP * uniform);
    paint(this.find(".map"), this.model.grid, weights, top);
    this.fade(this.strength.value / 100);
    this.find(".least").textContent = "0";
    this.find(".most").textContent = `≥\u00a0${(top / uniform).toFixed(1)}×`;
    this.find(".rule").textContent =
      "Attention as a multiple of uniform attention, which is" +
      ` ${percent(uniform)} for each token. All layers and heads have this` +
      " scale.";
    this.find(".readout").textContent =
      `The ${this.who()} looks most at ${this.where(best)}:` +
      ` ${percent(weights[best])}`;
    this.drawPatch();
  }

  who() {
    if (this.patch !== null) return `patch at ${this.where(this.patch)}`;
    return this.rollout.checked ? "output" : this.model.start;
  }

  where(patch) {
    const [row, column] = this.rowAndColumn(patch);
    return `row ${row}, column ${column}`;
  }

  /** Frames the query patch. */
  drawPatch() {
    const frame = this.find(".patch");
    frame.hidden = this.patch === null;
    frame.classList.toggle("held", this.held);
    if (this.patch === null) return;
    const [rows, columns] = this.model.grid;
    const [row, column] = this.rowAndColumn(this.patch);
    Object.assign(frame.style, {
      left: `${(100 * column) / columns}%`,
      top: `${(100 * row) / rows}%`,
      width: `${100 / columns}%`,
      height: `${100 / rows}%`,
    });
  }
}

/** Returns the parts of a line with a name, a share or number, and a bar. */
function bar(name, share, number) {
  const parts = ["class", "share", "bar"].map((kind) => {
    const part = document.createElement("span");
    part.className = kind;
    return part;
  });
  parts[0].textContent = parts[0].title = name;
  parts[1].textContent = number?.toPrecision(4) ?? percent(share, 1);
  parts[2].style.width = `${100 * share}%`;
  return parts;
}

function percent(share, digits = share >= 0.1 ? 1 : 2) {
  return `${(100 * share).toFixed(digits)}%`;
}
