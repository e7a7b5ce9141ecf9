// The replicas: a row for each, and a strip for each of how many steps it was behind, over the last minutes.

import { Canvas } from "./charts/canvas.js";
import { made, number, say } from "./format.js";

const LOOKS = 300;
/** So many fill the strip from the start; more become narrower. */
const FEW_LOOKS = 30;
const HEATS = 5;
const COLUMNS = ["name", "state", "version", "behind", "running", "waiting", "guests", "generated_tokens"];

export class Replicas {
  #body = document.getElementById("replica-rows");
  #canvas;
  #rows = new Map();
  #looks = [];
  #bound = 1;

  constructor() {
    this.#canvas = new Canvas(document.getElementById("behind"), (...drawn) => this.#draw(...drawn));
  }

  /** Show those of a status. bound: the staleness that the run allows. */
  show(told, behind, bound) {
    const replicas = told.toSorted((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
    this.#bound = Math.max(1, bound);
    const steps = new Map(behind.map((one) => [one.name, one.steps]));
    this.#looks.push(replicas.map((one) => steps.get(one.name) ?? null));
    if (this.#looks.length > LOOKS) this.#looks.shift();
    const there = new Set(replicas.map((one) => one.name));
    for (const [name, row] of this.#rows) {
      if (!there.has(name)) {
        row.remove();
        this.#rows.delete(name);
      }
    }
    const fresh = replicas.some((one) => !this.#rows.has(one.name));
    for (const one of replicas) this.#row({ ...one, behind: steps.get(one.name) });
    if (fresh) this.#body.append(...replicas.map((one) => this.#rows.get(one.name)));
    this.#label(replicas, behind);
    this.#canvas.request();
  }

  #row(replica) {
    let row = this.#rows.get(replica.name);
    if (!row) {
      row = made("tr");
      row.append(...COLUMNS.map(() => made("td")));
      this.#rows.set(replica.name, row);
    }
    COLUMNS.forEach((column, place) => {
      const value = replica[column];
      say(row.cells[place], typeof value === "number" ? number(value) : String(value ?? "-"));
    });
    if (replica.paused) say(row.cells[1], `${replica.state}, ${replica.paused}`);
  }

  #label(replicas, behind) {
    const known = behind.map((one) => one.steps).filter((steps) => steps !== null);
    const text = `${replicas.length} replicas, at most ${known.length ? Math.max(...known) : "-"} steps behind`;
    this.#canvas.element.setAttribute("aria-label", text);
  }

  #draw(context, width, height, colour) {
    const count = Math.max(1, ...this.#looks.map((look) => look.length));
    const heats = Array.from({ length: HEATS }, (_, heat) => colour(`heat-${heat}`));
    const [wide, high] = [width / Math.max(FEW_LOOKS, this.#looks.length), height / count];
    this.#looks.forEach((look, place) => {
      const left = width - (this.#looks.length - place) * wide;
      look.forEach((steps, row) => {
        if (steps === null) return;
        context.fillStyle = heats[this.#heat(steps)];
        context.fillRect(left, row * high, Math.ceil(wide), Math.max(1, high - (high > 4 ? 1 : 0)));
      });
    });
  }

  /** 0: up to date. The last two: at the bound, and beyond it. */
  #heat(steps) {
    if (steps >= this.#bound) return steps > this.#bound ? HEATS - 1 : HEATS - 2;
    return steps === 0 ? 0 : 1 + Math.floor(((HEATS - 3) * steps) / this.#bound);
  }
}
