// The page: takes images, and sends them to each model.

import { Panel } from "./panel.js";
import { describe, look, Refused } from "./reply.js";

const find = (id) => document.getElementById(id);

let panels = [];
let mostBytes = Infinity;
let shown = ""; // name of the image in the panels
let running = new AbortController();

async function start() {
  try {
    const { models, most_bytes } = await describe();
    if (panels.length) return; // requested twice
    mostBytes = most_bytes;
    panels = models.map((model) => new Panel(model, pointAt));
  } catch (error) {
    fail(error);
    return;
  }
  find("panels").replaceChildren(...panels.map((panel) => panel.element));
  say("");
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

/** Sends an image to all models, and cancels earlier requests. */
async function take(file) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  find("error").hidden = true;
  if (!panels.length) await start(); // the server did not answer before
  if (!panels.length || signal.aborted) return;
  say(`Looking at ${file.name} …`);
  find("panels").setAttribute("aria-busy", "true");
  try {
    const image = await read(file);
    const begin = performance.now();
    const replies = await Promise.all(
      panels.map((_, i) => look(i, image, signal)),
    );
    if (signal.aborted) return;
    panels.forEach((panel, i) => panel.show(replies[i]));
    pointAt(null, false);
    const seconds = (performance.now() - begin) / 1000;
    shown = file.name;
    say(`${file.name}: answered in ${seconds.toFixed(2)} s`);
  } catch (error) {
    if (signal.aborted) return;
    running.abort(); // the other model's reply is not needed
    fail(error, file.name);
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
