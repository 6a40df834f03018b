// A perceptually uniform colour map, from dark violet over red to pale yellow:
// its lightness in OKLab (Ottosson, 2020) grows linearly.

/** Returns [red, green, blue], 0 to 255, for a position from 0 to 1. */
function colourAt(t) {
  const lightness = 0.2 + 0.75 * t;
  const chroma = 0.1 + 0.07 * Math.sin(Math.PI * t);
  const hue = ((300 + 165 * t) * Math.PI) / 180;
  return toRgb(lightness, chroma * Math.cos(hue), chroma * Math.sin(hue));
}

/** Converts OKLab's lightness, a and b to sRGB. */
function toRgb(lightness, a, b) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map(encode);
}

/** Converts linear light, 0 to 1, to sRGB, 0 to 255. */
function encode(x) {
  const light = Math.min(Math.max(x, 0), 1);
  const shown =
    light <= 0.0031308 ? 12.92 * light : 1.055 * light ** (1 / 2.4) - 0.055;
  return Math.round(255 * shown);
}

const TABLE = Array.from({ length: 256 }, (_, i) => colourAt(i / 255));

/**
 * Returns the value of the brightest colour of a map; that of the darkest is 0.
 *
 * It is the largest value, or four times the mean if that is more, so that a
 * nearly uniform map has nearly one colour, and not the brightest. Reports use
 * the same rule (`tiles.top`).
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
    const [red, green, blue] = TABLE[Math.round(255 * share)];
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
