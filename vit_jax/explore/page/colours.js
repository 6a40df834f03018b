// Colours of maps.

let table = []; // 256 colours as [red, green, blue], 0 to 255

/** Sets the colours of maps, from that of the lowest value on. */
export function setColours(colours) {
  table = colours;
}

/** Returns the smallest and the largest of numbers. */
export function rangeOf(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) {
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  return [least, most];
}

/**
 * Paints numbers as pixels, row by row.
 *
 * @param {HTMLCanvasElement} canvas Is resized to the grid.
 * @param {[number, number]} grid Rows and columns.
 * @param {Iterable<number>} values From 0 on.
 * @param {number} most The least value of the brightest colour.
 */
export function paint(canvas, [rows, columns], values, most) {
  const image = new ImageData(columns, rows);
  let at = 0;
  for (const value of values) {
    const share = most > 0 ? Math.min(value / most, 1) : 0;
    const [red, green, blue] = table[Math.round(255 * share)];
    image.data.set([red, green, blue, 255], at);
    at += 4;
  }
  show(canvas, image);
}

/** Paints uint8 [height, width, 3]. */
export function paintPixels(canvas, [height, width], pixels) {
  const image = new ImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    image.data.set(pixels.subarray(3 * i, 3 * i + 3), 4 * i);
    image.data[4 * i + 3] = 255;
  }
  show(canvas, image);
}

function show(canvas, image) {
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}
