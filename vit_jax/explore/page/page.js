// The page: takes images, and sends them to each model.

import { setColours } from "./colours.js";
import { Panel } from "./panel.js";
import { describe, fit, look, Refused, sample } from "./reply.js";

const find = (id) => document.getElementById(id);

let panels = [];
let mostBytes = Infinity;
let shown = ""; // name of the image in the panels
let image = null; // its bytes
let running = new AbortController();

async function start() {
  try {
    const { models, most_bytes, samples, colours } = await describe();
    if (panels.length) return; // requested twice
    setColours(colours);
    offer(samples);
    mostBytes = most_bytes;
    panels = models.map((model) => new Panel(model, pointAt));
    find("words").hidden = !models.some((model) => model.texts);
  } catch (error) {
    fail(error);
    return;
  }
  find("panels").replaceChildren(...panels.map((panel) => panel.element));
  say("");
  find("samples").querySelector("button")?.click();
}

/** Shows images of the server's, each of which a click chooses. */
function offer(names) {
  const buttons = names.map((name, i) => {
    const [button, picture] = ["button", "img"].map((tag) =>
      document.createElement(tag),
    );
    picture.src = `api/samples/${i}`;
    picture.alt = button.title = name;
    button.type = "button";
    button.append(picture);
    button.addEventListener("click", () =>
      take({ name, size: 0, arrayBuffer: () => sample(i) }),
    );
    return button;
  });
  find("samples").replaceChildren(...buttons);
  find("offer").hidden = !names.length;
}

/** Points at one place of the image in all panels. */
function pointAt(place, held) {
  for (const panel of panels) panel.select(place, held);
}

function say(text) {
  find("status").textContent = text;
}

function fail(error, name) {
  if (!(error instanceof Refused)) console.error(error);
  const line = name ? `${name}: ${error.message}` : error.message;
  find("error").textContent = line;
  find("error").hidden = false;
  say(shown && `Still shown: ${shown}`);
}

/** Compares the sentences with the image in the panels. */
async function compare() {
  const text = find("text").value;
  if (!image || !text.trim()) {
    const missing = image ? "write a sentence" : "choose an image";
    fail(new Refused(`there is nothing to compare: ${missing}`));
    return;
  }
  await send(shown, async (signal) => {
    const replies = await fitAll(image, signal);
    return () => showFits(replies);
  });
}

/** Returns the replies of the models that read texts; null for the others. */
function fitAll(bytes, signal) {
  const texts = {
    text: find("text").value,
    template: find("template").value,
  };
  return Promise.all(
    panels.map(({ model }, i) =>
      model.texts && texts.text.trim() ? fit(i, texts, bytes, signal) : null,
    ),
  );
}

function showFits(replies) {
  panels.forEach((panel, i) => panel.showFit(replies[i]));
}

/** Sends an image, a File or the like, to all models. */
async function take(file) {
  await send(file.name, async (signal) => {
    const bytes = await read(file);
    const [replies, fits] = await Promise.all([
      Promise.all(panels.map((_, i) => look(i, bytes, signal))),
      fitAll(bytes, signal),
    ]);
    return () => {
      panels.forEach((panel, i) => panel.show(replies[i]));
      showFits(fits);
      pointAt(null, false);
      image = bytes;
      shown = file.name;
    };
  });
}

/**
 * Asks all models, and cancels earlier requests.
 *
 * @param {string} name Name of the image.
 * @param {(signal: AbortSignal) => Promise<() => void>} ask Returns what shows
 *   the replies.
 */
async function send(name, ask) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  find("error").hidden = true;
  if (!panels.length) await start(); // the server did not answer before
  if (!panels.length || signal.aborted) return;
  say(`Looking at ${name} …`);
  find("panels").setAttribute("aria-busy", "true");
  try {
    const begin = performance.now();
    const show = await ask(signal);
    if (signal.aborted) return;
    show();
    const seconds = (performance.now() - begin) / 1000;
    say(`${name}: answered in ${seconds.toFixed(2)} s`);
  } catch (error) {
    if (signal.aborted) return;
    running.abort(); // the other model's reply is not needed
    fail(error, name);
  }
  find("panels").removeAttribute("aria-busy");
}

/** Returns the bytes of a file. */
async function read(file) {
  if (file.size > mostBytes) {
    const most = Math.round(mostBytes / 2 ** 20);
    throw new Refused(`it has more than ${most} MiB: make it smaller`);
  }
  try {
    return await file.arrayBuffer();
  } catch {
    throw new Refused("it cannot be read: is it a folder?");
  }
}

/** Takes the first of the dropped or pasted files. */
function takeFrom(transfer) {
  if (transfer.files.length) take(transfer.files[0]);
  else fail(new Refused("that is no file: save the image, and drop its file"));
}

find("file").addEventListener("change", (event) => {
  const { files } = event.target;
  if (files.length) take(files[0]);
  event.target.value = ""; // so that the same file can be chosen again
});

find("compare").addEventListener("click", compare);
find("template").addEventListener("keydown", (event) => {
  if (event.key === "Enter") compare();
});
find("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) compare();
});

addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) takeFrom(event.clipboardData);
});

// Files can be dropped anywhere; otherwise the browser would open them.
addEventListener("dragover", (event) => {
  event.preventDefault();
  find("drop").classList.add("over");
});
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) find("drop").classList.remove("over");
});
addEventListener("drop", (event) => {
  event.preventDefault();
  find("drop").classList.remove("over");
  takeFrom(event.dataTransfer);
});

start();
