// A strip: a lane for each line, and in it a share of [0, 1] as a filled height. Of the points in one column of pixels the
// highest counts, so that a short wait is seen.

export const LANES = [0, 1];

export function paintStrip(context, plot, lanes, axis, colour) {
  const high = plot.height / lanes.length;
  lanes.forEach((lane, number) => {
    const bottom = plot.top + (number + 1) * high - 3;
    context.fillStyle = colour("muted");
    context.textAlign = "right";
    context.textBaseline = "bottom";
    context.fillText(lane.short, plot.left - 6, bottom);
    context.fillStyle = colour("rule");
    context.fillRect(plot.left, bottom, plot.width, 1);
    context.fillStyle = colour(`line-${lane.colour}`);
    columns(plot, lane, axis).forEach((share, column) => {
      const height = share * (high - 6);
      context.fillRect(plot.left + column, bottom - height, 1, height);
    });
  });
}

function columns(plot, lane, axis) {
  const shares = new Float64Array(Math.ceil(plot.width));
  const { [axis]: x, value } = lane;
  for (let i = 0; i < value.length; i += 1) {
    const from = Math.max(0, Math.floor(plot.x(i ? x[i - 1] : plot.from) - plot.left));
    const to = Math.min(shares.length - 1, Math.floor(plot.x(x[i]) - plot.left));
    for (let column = from; column <= to; column += 1) {
      shares[column] = Math.max(shares[column], Math.min(1, value[i]));
    }
  }
  return shares;
}
