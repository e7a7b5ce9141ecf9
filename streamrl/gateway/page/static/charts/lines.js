// Curves: of each line its points, joined, or the mean and the reach of many. A letter at its end says which it is, so that no
// colour has to. The line of another run is dashed, and its letter has a stroke.

import { binned, crowded } from "./bins.js";

const FEW = 60;
const REACH_ALPHA = 0.2;
const LETTER_HIGH = 12;

/** [low, high] of all lines, with 0 in it. */
export function lineRange(lines) {
  let [low, high] = [0, 0];
  for (const { value } of lines) {
    for (const one of value) {
      if (one < low) low = one;
      if (one > high) high = one;
    }
  }
  return [low, high > low ? high + 0.05 * (high - low) : low + 1];
}

export function paintLines(context, plot, lines, axis, colour) {
  const ends = [];
  for (const line of lines.filter((one) => one.value.length)) {
    context.strokeStyle = context.fillStyle = colour(`line-${line.colour}`);
    context.lineWidth = line.compared ? 1.25 : 1.75;
    context.lineJoin = "round";
    context.setLineDash(dashes(line));
    const end = paintLine(context, plot, line, axis);
    context.setLineDash([]);
    ends.push({ letter: line.letter, y: end, fill: context.fillStyle });
  }
  letters(context, plot, ends);
}

function dashes(line) {
  if (line.level) return [2, 3];
  return line.compared ? [6, 4] : [];
}

/** Gives the pixel at which it ends. */
function paintLine(context, plot, line, axis) {
  const { [axis]: x, value } = line;
  if (!line.level && crowded(plot, x.length)) {
    const bins = binned(plot, x, value);
    if (!line.compared) paintReach(context, plot, bins);
    path(context, bins.map((bin) => [bin.at, plot.y(bin.mean)]));
    return plot.y(bins.at(-1).mean);
  }
  path(context, x.map((one, i) => [plot.x(one), plot.y(value[i])]));
  if (value.length <= FEW && !line.level) mark(context, plot, x, value);
  return plot.y(value.at(-1));
}

function path(context, points) {
  context.beginPath();
  for (const point of points) context.lineTo(...point);
  context.stroke();
}

function paintReach(context, plot, bins) {
  context.globalAlpha = REACH_ALPHA;
  context.beginPath();
  for (const bin of bins) context.lineTo(bin.at, plot.y(bin.high));
  for (const bin of bins.toReversed()) context.lineTo(bin.at, plot.y(bin.low));
  context.fill();
  context.globalAlpha = 1;
}

function mark(context, plot, x, value) {
  for (let i = 0; i < value.length; i += 1) {
    context.beginPath();
    context.arc(plot.x(x[i]), plot.y(value[i]), 2.5, 0, 7);
    context.fill();
  }
}

/** At the right, each beside the end of its line, moved apart where they would lie on each other. */
function letters(context, plot, ends) {
  context.textAlign = "left";
  context.textBaseline = "middle";
  let free = plot.top;
  for (const { letter, y, fill } of ends.toSorted((one, other) => one.y - other.y)) {
    const place = Math.max(y, free);
    context.fillStyle = fill;
    context.fillText(letter, plot.left + plot.width + 4, place);
    free = place + LETTER_HIGH;
  }
}
