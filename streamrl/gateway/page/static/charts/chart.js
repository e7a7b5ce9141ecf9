// A figure of the run over steps or time: what is painted, the frame around it, and a readout that pointer and arrow keys
// move. The readout is text, so that nothing is said by the picture alone.

import { Canvas } from "./canvas.js";
import { made, number, say, seconds } from "../format.js";
import { nearest } from "./nearest.js";
import { Plot } from "./plot.js";

export class Chart {
  #series;
  #told;
  #compared;
  #readout;
  #canvas;
  #plot = null;
  #cursor = null;
  #title;
  axis = "step";

  /**
   * section: with a canvas and a readout in it. told: `lines`, or what gives them, of `name` in the series or `level` for a
   * number, `label`, `colour`, 1 to 5, and `show` for its values; `range(lines, axis)`, `paint(context, plot, lines, axis,
   * colour)`, `left` false for no numbers there, `compares` where it shows another run too. compared(): that run, or null.
   */
  constructor(section, series, told, compared) {
    this.#series = series;
    this.#told = { left: true, compares: false, ...told };
    this.#compared = compared;
    this.#readout = section.querySelector(".readout");
    this.#title = section.querySelector("h2").textContent;
    const element = section.querySelector("canvas");
    this.#canvas = new Canvas(element, (...drawn) => this.#draw(...drawn));
    element.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    element.addEventListener("pointerleave", () => this.#move(null));
    element.addEventListener("blur", () => this.#move(null));
    element.addEventListener("keydown", (event) => this.#key(event));
  }

  request() {
    this.#canvas.request();
  }

  /** The lines with their points, each with a letter; those of the other run come last. */
  #lines() {
    const told = typeof this.#told.lines === "function" ? this.#told.lines() : this.#told.lines;
    const lines = told.map((line, place) => ({ ...line, letter: String.fromCharCode(97 + place) }));
    const own = lines.map((line) => ({ ...line, ...(line.name ? this.#series.of(line.name) : this.#level(line)) }));
    const other = this.#told.compares ? this.#compared() : null;
    if (other === null) return own;
    const named = lines.filter((line) => line.name);
    return [...own, ...named.map((line) => ({ ...line, ...other.series.of(line.name), ...besides(line, other.name) }))];
  }

  /** A level has its value from the first step to the last. */
  #level(line) {
    const { lastStep, lastTime } = this.#series;
    const level = line.level();
    const there = typeof level === "number" && lastStep >= 0;
    return { step: there ? [0, lastStep] : [], time: there ? [0, lastTime] : [], value: there ? [level, level] : [] };
  }

  #draw(context, width, height, colour) {
    const { axis } = this;
    const lines = this.#lines();
    const points = lines.filter((line) => line.name && line[axis].length);
    const to = Math.max(axis === "step" ? this.#series.lastStep : this.#series.lastTime, ...points.map((line) => line[axis].at(-1)));
    const from = Math.min(to, ...points.map((line) => line[axis][0]));
    const plot = new Plot(width, height, [from, to], this.#told.range(lines, axis));
    this.#plot = plot;
    this.#say(lines);
    if (!lines.some((line) => line.value.length)) return;
    plot.axes(context, colour, sayX(axis), this.#told.left ? number : null);
    this.#told.paint(context, plot, lines, axis, colour);
    if (this.#cursor !== null) {
      context.fillStyle = colour("text");
      context.fillRect(plot.x(this.#cursor), plot.top, 1, plot.height);
    }
  }

  #say(lines) {
    const there = lines.filter((line) => line.value.length);
    const words = there.map((line) => {
      const place = this.#cursor === null ? line.value.length - 1 : nearest(line[this.axis], this.#cursor);
      return { text: `${line.label} ${(line.show ?? number)(line.value[place])}`, ...keyOf(line) };
    });
    if (this.#cursor !== null) words.unshift({ text: `${this.axis} ${sayX(this.axis)(this.#cursor)}`, key: "", letter: "" });
    this.#read(words.length ? words : [{ text: "nothing yet", key: "", letter: "" }]);
  }

  /** words: the text of each, the class of its key and the letter in it. */
  #read(words) {
    while (this.#readout.children.length > words.length) this.#readout.lastChild.remove();
    words.forEach(({ text, key, letter }, place) => {
      const element = this.#readout.children[place] ?? this.#readout.appendChild(made("span"));
      say(element, text);
      element.className = key;
      element.dataset.letter = letter;
    });
    const text = words.map((one) => one.text).join(", ");
    this.#canvas.element.setAttribute("aria-label", `${this.#title}: ${text}`);
  }

  #point(pixel) {
    if (this.#plot !== null) this.#move(this.#plot.at(pixel));
  }

  /** Have the cursor at the point next to x; null: nowhere. */
  #move(x) {
    const places = this.#places();
    this.#cursor = x === null || !places.length ? null : places[nearest(places, x)];
    this.request();
  }

  #places() {
    const lists = this.#lines().filter((line) => line.name).map((line) => line[this.axis]);
    return lists.reduce((longest, one) => (one.length > longest.length ? one : longest), []);
  }

  #key(event) {
    const places = this.#places();
    if (!places.length) return;
    const last = places.length - 1;
    const here = this.#cursor === null ? last : nearest(places, this.#cursor);
    const wide = Math.max(1, Math.round(places.length / 20));
    const to = { ArrowLeft: here - 1, ArrowRight: here + 1, PageUp: here - wide, PageDown: here + wide, Home: 0, End: last };
    if (event.key === "Escape") this.#move(null);
    if (!(event.key in to)) return;
    event.preventDefault();
    this.#move(places[Math.min(last, Math.max(0, to[event.key]))]);
  }
}

/** What the line of another run has of its own. */
function besides(line, name) {
  return { compared: true, label: `${line.label} of ${name}`, letter: `${line.letter}'` };
}

function keyOf(line) {
  const kind = line.compared ? " key-other" : line.level ? " key-level" : "";
  return { key: `key key-${line.colour}${kind}${line.hatched ? " hatched" : ""}`, letter: line.letter };
}

function sayX(axis) {
  return axis === "step" ? (value) => Math.round(value).toLocaleString("en") : seconds;
}
