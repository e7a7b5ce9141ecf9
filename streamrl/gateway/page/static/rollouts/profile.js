// A picture of the tokens of a rollout in a row: of each the number under the overlay, as a bar. It is a slider, too: the token
// that is looked at moves with the arrow keys or the pointer.

import { Canvas } from "../charts/canvas.js";
import { number, signed } from "../format.js";
import { classOf, valueOf } from "./overlays.js";

const LEFT = 52;
const HIGH = 4;

export class Profile {
  #facts;
  #overlay;
  #moved;
  #canvas;
  #place = 0;

  /** facts: of each token. moved(place): another token is looked at. */
  constructor(facts, overlay, moved) {
    this.#facts = facts;
    this.#overlay = overlay;
    this.#moved = moved;
    const element = document.createElement("canvas");
    const said = { role: "slider", tabindex: "0", "aria-label": "Token", "aria-valuemin": "1", "aria-valuemax": String(facts.length) };
    for (const [name, value] of Object.entries(said)) element.setAttribute(name, value);
    element.className = "profile";
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("pointermove", (event) => event.offsetX >= LEFT && this.#moved(this.#at(event.offsetX)));
    this.#canvas = new Canvas(element, (...drawn) => this.#draw(...drawn));
  }

  get element() {
    return this.#canvas.element;
  }

  lay(overlay) {
    this.#overlay = overlay;
    this.#canvas.request();
  }

  /** The token at this place is looked at; words: what is said of it. */
  mark(place, words) {
    this.#place = place;
    this.element.setAttribute("aria-valuenow", String(place + 1));
    this.element.setAttribute("aria-valuetext", words);
    this.#canvas.request();
  }

  #at(pixel) {
    const wide = this.element.clientWidth - LEFT;
    return Math.max(0, Math.min(this.#facts.length - 1, Math.floor(((pixel - LEFT) * this.#facts.length) / wide)));
  }

  #key(event) {
    const last = this.#facts.length - 1;
    const far = Math.max(1, Math.round(last / 20));
    const to = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -far, PageUp: far, Home: -last, End: last };
    if (!(event.key in to)) return;
    event.preventDefault();
    this.#moved(Math.max(0, Math.min(last, this.#place + to[event.key])));
  }

  #draw(context, width, height, colour) {
    const values = this.#facts.map((facts) => valueOf(facts, this.#overlay));
    const known = values.filter((value) => value !== null);
    const [low, high] = [Math.min(0, ...extremes(known)), Math.max(0, ...extremes(known))];
    const y = (value) => HIGH + ((height - 2 * HIGH) * (high - value)) / (high - low || 1);
    const wide = (width - LEFT) / values.length;
    const x = (place) => LEFT + place * wide;
    if (known.length) this.#scale(context, y, [low, high], width, colour);
    this.#facts.forEach((facts, place) => {
      context.fillStyle = known.length ? colour("line-1") : colour(classOf(facts, this.#overlay)) || colour("rule");
      const value = values[place];
      const [top, bottom] = known.length ? [y(Math.max(0, value ?? 0)), y(Math.min(0, value ?? 0))] : [HIGH, height - HIGH];
      if (!known.length || value !== null) context.fillRect(x(place), top, Math.max(1, wide - (wide > 4 ? 1 : 0)), Math.max(1, bottom - top));
    });
    context.strokeStyle = colour("text");
    context.strokeRect(x(this.#place) - 0.5, 0.5, Math.max(2, wide), height - 1);
  }

  /** The lowest and the highest number at the left, with a line at 0. */
  #scale(context, y, [low, high], width, colour) {
    context.fillStyle = colour("muted");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const room = 7;
    if (high) context.fillText(signed(high, 2), LEFT - 6, Math.max(room, y(high)));
    if (low) context.fillText(signed(low, 2), LEFT - 6, Math.min(context.canvas.clientHeight - room, y(low)));
    context.fillText(number(0), LEFT - 6, Math.min(context.canvas.clientHeight - room, Math.max(room, y(0))));
    context.fillStyle = colour("rule");
    context.fillRect(LEFT, y(0), width - LEFT, 1);
  }
}

/** The lowest and the highest of a list that may be long. */
function extremes(values) {
  if (!values.length) return [];
  return [values.reduce((one, other) => Math.min(one, other)), values.reduce((one, other) => Math.max(one, other))];
}
