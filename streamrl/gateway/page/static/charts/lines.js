// Curves: of each line its points, joined. A line of few points has them marked.

const FEW = 60;

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
  for (const line of lines) {
    const { [axis]: x, value } = line;
    context.strokeStyle = context.fillStyle = colour(`line-${line.colour}`);
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.setLineDash(line.dashed ? [5, 4] : []);
    context.beginPath();
    for (let i = 0; i < value.length; i += 1) context.lineTo(plot.x(x[i]), plot.y(value[i]));
    context.stroke();
    context.setLineDash([]);
    if (value.length <= FEW && !line.dashed) mark(context, plot, x, value);
  }
}

function mark(context, plot, x, value) {
  for (let i = 0; i < value.length; i += 1) {
    context.beginPath();
    context.arc(plot.x(x[i]), plot.y(value[i]), 2.5, 0, 7);
    context.fill();
  }
}
