// Colours of maps.

let table = []; // 256 colours as [red, green, blue], 0 to 255

/** Sets the colours of maps, from that of the lowest value on. */
export function setColours(colours) {
  table = colours;
}

/**
 * Returns the value of the brightest colour of a map; that of the darkest is 0.
 *
 * It is the largest value, or four times the mean if that is more, so that a
 * nearly uniform map has nearly one colour, and not the brightest.
 *
 * @param {ArrayLike<number>} values Values of the map, none negative.
 */
export function topOf(values) {
  return Math.max(Math.max(...values), 4 * meanOf(values));
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

/** Returns the mean of numbers. */
export function meanOf(values) {
  let sum = 0;
  for (const value of values) sum += value;
  return sum / values.length;
}

/**
 * Paints numbers as pixels, row by row.
 *
 * @param {HTMLCanvasElement} canvas Is resized to the grid.
 * @param {[number, number]} grid Rows and columns.
 * @param {Iterable<number>} values From 0 to `most`.
 * @param {number} most Value of the brightest colour.
 */
export function paint(canvas, [rows, columns], values, most) {
  const image = new ImageData(columns, rows);
  let at = 0;
  for (const value of values) {
    const share = most > 0 ? value / most : 0;
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
