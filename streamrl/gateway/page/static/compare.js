// Another run beside this one: its curves in the same charts, and both in a table, at the last step that both have made.

import { componentFigure } from "./charts/figures.js";
import { nearest } from "./charts/nearest.js";
import { Series } from "./charts/series.js";
import { ask, Refused } from "./connection.js";
import { made, number, percent, say, signed } from "./format.js";

const AGAIN_MS = 10000;
/** Steps that a figure of the table is the mean of. */
const STEPS = 20;
const FIGURES = [
  { name: "reward/mean", label: "reward" },
  { name: "eval/score", label: "held-out score, the last", last: true },
  { name: "staleness/mean", label: "staleness, in steps" },
  { name: "learner/wait_share", label: "learner waits, of its time", show: percent },
  { name: "rollout/idle_share", label: "replicas idle, of their time", show: percent },
  { name: "rollout/tokens_per_s", label: "tokens a second" },
  { name: "weights/seconds", label: "version to publish, in seconds" },
];

export class Compare {
  #series;
  #changed;
  #refused;
  #section = document.getElementById("compare");
  #select = document.getElementById("compare-run");
  #said = document.getElementById("compare-said");
  #table = document.getElementById("compare-table");
  #other = null;
  #states = new Map();
  #loaded = 0;
  #components = [];

  /** series: of this run. changed(): the curves have to be drawn anew. refused(error): the token was not taken. */
  constructor(series, changed, refused) {
    this.#series = series;
    this.#changed = changed;
    this.#refused = refused;
    this.#select.addEventListener("change", () => this.#choose(this.#select.value));
    // What has come to the folder meanwhile is looked up when somebody is about to choose.
    this.#select.addEventListener("focus", () => this.#list());
  }

  /** The run that is looked at beside this one, as `name` and `series`; null for none. */
  get other() {
    return this.#other;
  }

  /** Another connection, maybe another run. */
  restart() {
    this.#list();
    if (this.#other) this.#load(this.#other.name);
  }

  /** Something happened: this run has gone on, and the other one maybe too. components: of the reward. */
  refresh(components) {
    this.#components = components;
    if (!this.#other) return;
    this.#show();
    const running = this.#states.get(this.#other.name) === "running";
    if (running && performance.now() - this.#loaded > AGAIN_MS) this.#load(this.#other.name);
  }

  async #list() {
    try {
      const { runs } = await ask("/api/runs");
      this.#states = new Map(runs.map((run) => [run.name, run.state]));
      this.#offer();
    } catch (error) {
      this.#fail(error);
    }
  }

  #offer() {
    const chosen = this.#other?.name ?? "";
    const options = [...this.#states].map(([name, state]) => option(name, `${name} (${state})`, chosen));
    if (chosen && !this.#states.has(chosen)) options.push(option(chosen, `${chosen} (gone)`, chosen));
    // A list that is open keeps its place.
    const texts = (list) => list.map((one) => one.textContent).join("\n");
    const wanted = [option("", "no other run", chosen), ...options];
    if (texts([...this.#select.options]) !== texts(wanted)) this.#select.replaceChildren(...wanted);
    this.#section.hidden = !options.length;
  }

  #choose(name) {
    if (name) return this.#load(name);
    this.#other = null;
    say(this.#said, "");
    return this.#show();
  }

  async #load(name) {
    this.#loaded = performance.now();
    const series = new Series();
    series.want(this.#components.map(componentFigure));
    try {
      series.load(await ask(series.question(name)));
    } catch (error) {
      return this.#fail(error);
    }
    if (this.#select.value !== name) return null; // somebody has chosen another one meanwhile
    this.#other = { name, series };
    return this.#show();
  }

  #show() {
    this.#changed();
    const other = this.#other;
    this.#table.hidden = !other;
    if (!other) return;
    const step = Math.min(this.#series.lastStep, other.series.lastStep);
    const from = step >= STEPS ? `means of the ${STEPS} steps up to` : "means up to";
    say(this.#said, step < 0 ? `${other.name} has made no step yet` : `${from} step ${number(step)}`);
    say(document.getElementById("compare-name"), other.name);
    this.#rows(step, other.series);
  }

  #rows(step, other) {
    const components = this.#components.map((name) => ({ name: componentFigure(name), label: `reward: ${name}` }));
    const figures = [FIGURES[0], ...components, ...FIGURES.slice(1)];
    const rows = figures.map((figure) => [figure, at(this.#series.of(figure.name), step, figure), at(other.of(figure.name), step, figure)]);
    const told = rows.filter(([, ...both]) => both.some((one) => one !== null)).map((row) => shown(...row));
    const body = document.getElementById("compare-rows");
    // Who reads the table, or has marked a part of it, is not disturbed by what stays the same.
    const text = (list) => list.map((row) => row.textContent).join("\n");
    if (text(told) !== text([...body.children])) body.replaceChildren(...told);
  }

  #fail(error) {
    if (!(error instanceof Refused)) return say(this.#said, "the gateway does not answer");
    if (error.ofToken) return this.#refused(error);
    return say(this.#said, error.message);
  }
}

function option(value, text, chosen) {
  const element = made("option", text);
  element.value = value;
  element.selected = value === chosen;
  return element;
}

/** The mean of a figure over the steps up to one, or its last value by then; null where there is none. */
function at({ step, value }, last, figure) {
  if (!step.length || step[0] > last) return null;
  let end = nearest(step, last);
  if (step[end] > last) end -= 1;
  let begin = end;
  while (!figure.last && begin > 0 && step[begin - 1] > last - STEPS) begin -= 1;
  const values = value.slice(begin, end + 1);
  return values.reduce((sum, one) => sum + one, 0) / values.length;
}

function shown(figure, own, other) {
  const row = made("tr");
  const head = made("th", figure.label);
  head.scope = "row";
  const text = (value) => (value === null ? "-" : (figure.show ?? number)(value));
  row.append(head, made("td", text(own)), made("td", text(other)), made("td", less(figure, own, other)));
  return row;
}

/** By how much this run has more than the other. */
function less(figure, own, other) {
  if (own === null || other === null) return "-";
  if (figure.show === percent) return `${signed(Math.round(100 * (own - other)))} points`;
  return signed(own - other, Math.abs(own - other) >= 100 ? 0 : 3);
}
