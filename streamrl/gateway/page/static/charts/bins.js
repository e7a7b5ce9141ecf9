// Points by columns of pixels. Where there are more points than an eye can tell apart, their mean is drawn, and how far they
// reach: a line that jumps to and fro fills its whole height otherwise, and says nothing.

/** Width of a column, in pixels. */
const WIDE = 6;
/** Points in a column, on average, from which on they are gathered. */
const CROWD = 1.5;

export function crowded(plot, count) {
  return count * WIDE > CROWD * plot.width;
}

/**
 * Columns of points x, ascending, and their values: `at`, the pixel of the middle of each, `low`, `high` and `mean`. A column
 * without points is left out.
 */
export function binned(plot, x, value) {
  const found = [];
  let [last, count] = [-1, 0];
  for (let i = 0; i < x.length; i += 1) {
    const column = Math.max(0, Math.floor((plot.x(x[i]) - plot.left) / WIDE));
    if (column !== last) {
      found.push({ at: Math.min(plot.left + (column + 0.5) * WIDE, plot.left + plot.width), low: value[i], high: value[i], mean: 0 });
      [last, count] = [column, 0];
    }
    const bin = found.at(-1);
    bin.low = Math.min(bin.low, value[i]);
    bin.high = Math.max(bin.high, value[i]);
    count += 1;
    bin.mean += (value[i] - bin.mean) / count;
  }
  return found;
}
