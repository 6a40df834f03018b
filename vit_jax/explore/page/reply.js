// The replies of the server.

/** A request failed; the message is shown on the page. */
export class Refused extends Error {}

/** Returns the models and limits. */
export async function describe() {
  return (await ask("api/models")).json();
}

/** Returns the bytes of one of the images that the server offers. */
export async function sample(number) {
  return (await ask(`api/samples/${number}`)).arrayBuffer();
}

/**
 * Applies a model to an image.
 *
 * @param {number} model Number of the model.
 * @param {ArrayBuffer} image Content of an image file.
 * @param {AbortSignal} signal Cancels the request.
 * @return {Promise<object>} `top`, and arrays as {shape, data}: see viewer.py.
 */
export async function look(model, image, signal) {
  const options = { method: "POST", body: image, signal };
  const response = await ask(`api/look/${model}`, options);
  return unpack(await response.arrayBuffer());
}

/**
 * Compares sentences with an image.
 *
 * @param {number} model Number of the model.
 * @param {{text: string, template: string}} texts As they were typed.
 * @param {ArrayBuffer} image Content of an image file.
 * @param {AbortSignal} signal Cancels the request.
 * @return {Promise<object>} `sentences` and `places`: see viewer.py.
 */
export async function fit(model, texts, image, signal) {
  const head = new TextEncoder().encode(JSON.stringify(texts));
  const length = new DataView(new ArrayBuffer(4));
  length.setUint32(0, head.byteLength, true);
  const body = new Blob([length.buffer, head, image]);
  const response = await ask(`api/fit/${model}`, {
    method: "POST",
    body,
    signal,
  });
  return unpack(await response.arrayBuffer());
}

async function ask(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("the server does not answer: is it still running?");
  }
  if (response.ok) return response;
  const text = await response.text();
  throw new Refused(lineOf(text) ?? `the server answers ${response.status}`);
}

/** Returns the error in the server's JSON, if there is one. */
function lineOf(text) {
  try {
    return JSON.parse(text).error;
  } catch {
    return undefined;
  }
}

const TYPES = { float32: Float32Array, uint8: Uint8Array };

/** Parses the bytes from viewer.py without copying the arrays. */
function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const text = new TextDecoder().decode(new Uint8Array(buffer, 4, length));
  const { arrays, ...result } = JSON.parse(text);
  let at = 4 + length;
  for (const [name, type, shape] of arrays) {
    const count = shape.reduce((product, n) => product * n, 1);
    const data = new TYPES[type](buffer, at, count);
    result[name] = { shape, data };
    at += data.byteLength;
  }
  return result;
}
