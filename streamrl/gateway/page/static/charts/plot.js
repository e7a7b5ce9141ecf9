// The frame of a curve: where a value lies, and the numbers beside it.

const LEFT = 52;
const RIGHT = 22;
const TOP = 6;
const BOTTOM = 20;

/** Places in pixels of values x of [from, to] and y of [low, high]. */
export class Plot {
  constructor(width, height, [from, to], [low, high]) {
    this.left = LEFT;
    this.top = TOP;
    this.width = Math.max(1, width - LEFT - RIGHT);
    this.height = Math.max(1, height - TOP - BOTTOM);
    this.from = from;
    this.to = to > from ? to : from + 1;
    this.low = low;
    this.high = high > low ? high : low + 1;
  }

  x(value) {
    return this.left + (this.width * (value - this.from)) / (this.to - this.from);
  }

  y(value) {
    return this.top + this.height * (1 - (value - this.low) / (this.high - this.low));
  }

  /** The value x at a pixel. */
  at(pixel) {
    return this.from + ((this.to - this.from) * (pixel - this.left)) / this.width;
  }

  /** Numbers below, in words of `sayX`, and, with `sayY`, numbers and lines at the left. */
  axes(context, colour, sayX, sayY) {
    context.strokeStyle = colour("rule");
    context.fillStyle = colour("muted");
    context.lineWidth = 1;
    if (sayY) this.#left(context, sayY);
    context.textBaseline = "top";
    context.textAlign = "left";
    context.fillText(sayX(this.from), this.left, this.top + this.height + 5);
    context.textAlign = "right";
    context.fillText(sayX(this.to), this.left + this.width, this.top + this.height + 5);
  }

  #left(context, say) {
    context.textAlign = "right";
    context.textBaseline = "middle";
    const found = ticks(this.low, this.high);
    const digits = Math.max(0, -Math.floor(Math.log10(found[1] - found[0])));
    for (const tick of found) {
      const y = Math.round(this.y(tick)) + 0.5;
      context.beginPath();
      context.moveTo(this.left, y);
      context.lineTo(this.left + this.width, y);
      context.stroke();
      context.fillText(say(tick, digits), this.left - 6, y);
    }
  }
}

/** Three to six round numbers of [low, high]. */
export function ticks(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) found.push(place * step || 0);
  return found;
}
