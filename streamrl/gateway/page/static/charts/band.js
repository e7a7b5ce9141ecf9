// A stacked band: the layers lie on each other, so that the whole is their sum. Each column of pixels has of each layer the
// point at or before it, since layers may have points at different places.

import { nearest } from "./nearest.js";

/** [0, the highest sum]. */
export function bandRange(layers, axis) {
  let high = 0;
  for (const layer of layers) {
    for (const x of layer[axis]) high = Math.max(high, sumAt(layers, axis, x));
  }
  return [0, high > 0 ? 1.05 * high : 1];
}

export function paintBand(context, plot, layers, axis, colour) {
  const columns = Math.ceil(plot.width);
  const below = new Float64Array(columns + 1);
  for (const layer of layers) {
    if (!layer.value.length) continue;
    context.fillStyle = colour(`line-${layer.colour}`);
    context.beginPath();
    for (let i = columns; i >= 0; i -= 1) context.lineTo(plot.left + i, plot.y(below[i]));
    for (let i = 0; i <= columns; i += 1) {
      below[i] += valueAt(layer, axis, plot.at(plot.left + i));
      context.lineTo(plot.left + i, plot.y(below[i]));
    }
    context.fill();
  }
}

function sumAt(layers, axis, x) {
  return layers.reduce((sum, layer) => sum + valueAt(layer, axis, x), 0);
}

function valueAt(layer, axis, x) {
  return layer.value.length ? layer.value[nearest(layer[axis], x)] : 0;
}
