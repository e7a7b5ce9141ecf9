// A stacked band: the layers lie on each other, so that the whole is their sum. Layers may have points at different places:
// each has at a place the point at or before it. Where there are more steps than an eye can tell apart, a column has the mean of
// its steps, and a shade above it reaches to the highest of their sums.

import { binned, crowded } from "./bins.js";
import { nearest } from "./nearest.js";

const STRIPES = 6;
const REACH_ALPHA = 0.14;

/** [0, the highest sum or level]. */
export function bandRange(lines, axis) {
  const high = Math.max(0, ...sums(layersOf(lines), axis).value, ...levelsOf(lines).flatMap((line) => line.value));
  return [0, high > 0 ? 1.05 * high : 1];
}

export function paintBand(context, plot, lines, axis, colour) {
  const layers = layersOf(lines);
  const whole = sums(layers, axis);
  if (whole.x.length) paintLayers(context, plot, layers, whole, axis, colour);
  for (const level of levelsOf(lines).filter((line) => line.value.length)) {
    const y = plot.y(level.value[0]);
    context.strokeStyle = context.fillStyle = colour("text");
    context.setLineDash([2, 3]);
    stroke(context, [[plot.left, y], [plot.left + plot.width, y]]);
    context.setLineDash([]);
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(level.letter, plot.left + plot.width + 4, y);
  }
}

function paintLayers(context, plot, layers, whole, axis, colour) {
  const many = crowded(plot, whole.x.length);
  const columns = many ? binned(plot, whole.x, whole.value) : whole.x.map((x, i) => ({ at: plot.x(x), high: whole.value[i] }));
  let below = columns.map(() => 0);
  layers.forEach((layer, number) => {
    const means = many ? meansOf(plot, layer, whole.x, axis) : whole.x.map((x) => valueAt(layer, axis, x));
    const above = below.map((value, i) => value + means[i]);
    const line = (values) => values.map((value, i) => [columns[i].at, plot.y(value)]);
    context.fillStyle = colour(`line-${layer.colour}`);
    context.beginPath();
    for (const point of [...line(above), ...line(below).toReversed()]) context.lineTo(...point);
    context.fill();
    if (number) hatch(context, plot, colour("card"));
    below = above;
  });
  if (many) paintReach(context, plot, columns, below, colour("text"));
}

function paintReach(context, plot, columns, below, fill) {
  context.fillStyle = fill;
  context.globalAlpha = REACH_ALPHA;
  context.beginPath();
  for (const column of columns) context.lineTo(column.at, plot.y(column.high));
  for (const [i, column] of [...columns.entries()].toReversed()) context.lineTo(column.at, plot.y(below[i]));
  context.fill();
  context.globalAlpha = 1;
}

/** Stripes over the path that was filled last: a layer is told from the one below without its colour. */
function hatch(context, plot, stripe) {
  context.save();
  context.clip();
  context.strokeStyle = stripe;
  context.lineWidth = 1.5;
  for (let x = plot.left - plot.height; x < plot.left + plot.width; x += STRIPES) {
    stroke(context, [[x, plot.top + plot.height], [x + plot.height, plot.top]]);
  }
  context.restore();
}

function stroke(context, points) {
  context.beginPath();
  for (const point of points) context.lineTo(...point);
  context.stroke();
}

function layersOf(lines) {
  return lines.filter((line) => !line.level);
}

function levelsOf(lines) {
  return lines.filter((line) => line.level);
}

/** The sum of the layers, at each place where the longest of them has a point. A single place has a width, too. */
function sums(layers, axis) {
  const places = layers.reduce((longest, layer) => (layer[axis].length > longest.length ? layer[axis] : longest), []);
  const x = places.length === 1 ? [places[0], places[0] + 1] : places;
  return { x, value: x.map((one) => layers.reduce((sum, layer) => sum + valueAt(layer, axis, one), 0)) };
}

function meansOf(plot, layer, x, axis) {
  return binned(plot, x, x.map((one) => valueAt(layer, axis, one))).map((bin) => bin.mean);
}

function valueAt(layer, axis, x) {
  return layer.value.length ? layer.value[nearest(layer[axis], x)] : 0;
}
