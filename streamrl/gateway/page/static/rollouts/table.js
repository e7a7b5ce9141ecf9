// The newest samples as a table; each opens to its prompt and its tokens.

import { ask, Refused } from "../connection.js";
import { made, number, say, signed } from "../format.js";
import { legend, versionName } from "./overlays.js";
import { Rollout } from "./rollout.js";

const PAGE = 50;
const MOST = 500;
const COLUMNS = 9;
// New samples are asked for when something happens, but no more often than this, and a tenth of the time at most: a page of
// long ones has megabytes.
const PAUSE_MS = 2000;
const PAUSES = 10;

export class Samples {
  #section = document.getElementById("samples");
  #body = document.getElementById("sample-rows");
  #live = document.getElementById("samples-live");
  #older = document.getElementById("samples-older");
  #said = document.getElementById("samples-said");
  #refused;
  #next = null;
  #asking = false;
  #rests = 0;
  #missing = false;
  /** Those that are opened, by the row of the table. */
  #opened = new Map();

  /** refused(error): the token was not taken. */
  constructor(refused) {
    this.#refused = refused;
    this.#older.addEventListener("click", () => this.#ask(this.#next));
    this.#section.querySelector("#colour").addEventListener("change", () => this.#lay());
    this.#legend();
  }

  get #overlay() {
    return this.#section.querySelector("input[name=colour]:checked").value;
  }

  /** Begin anew: another connection, maybe another run. */
  restart() {
    this.#missing = false;
    this.#rests = 0;
  }

  /** Something happened: there may be new ones. */
  refresh() {
    const rested = performance.now() >= this.#rests;
    if (this.#live.checked && rested && !this.#missing && !document.hidden) this.#ask(null);
  }

  async #ask(before) {
    if (this.#asking) return;
    this.#asking = true;
    const begun = performance.now();
    try {
      const cursor = before === null ? "" : `&before=${encodeURIComponent(before)}`;
      const { samples, next } = await ask(`/api/samples?limit=${PAGE}${cursor}`);
      this.#show(samples, before === null);
      // What was asked for before stays: the newest ones do not move where the older ones go on.
      if (before !== null || this.#next === null) this.#next = next;
      this.#older.hidden = this.#next === null;
      say(this.#said, this.#body.children.length ? "" : "No sample yet.");
    } catch (error) {
      this.#fail(error);
    }
    this.#asking = false;
    this.#rests = performance.now() + Math.max(PAUSE_MS, PAUSES * (performance.now() - begun));
  }

  #fail(error) {
    if (!(error instanceof Refused)) return say(this.#said, "the gateway does not answer");
    if (error.ofToken) return this.#refused(error);
    this.#missing = error.status === 404;
    return say(this.#said, this.#missing ? "This gateway does not tell samples." : error.message);
  }

  /** Put rows in, the newest first; those that are there stay as they are, opened or not. */
  #show(samples, newest) {
    const there = new Map([...this.#body.querySelectorAll("tr[data-key]")].map((row) => [row.dataset.key, row]));
    let after = null;
    for (const sample of samples) {
      const key = `${sample.group}/${sample.sample}/${sample.branch}`;
      let row = there.get(key);
      if (row) {
        this.#renew(row, sample);
      } else {
        row = this.#row(key, sample);
        if (!newest) this.#body.append(row);
        else if (after === null) this.#body.prepend(row);
        else after.after(row);
      }
      after = row.nextElementSibling?.classList.contains("opened") ? row.nextElementSibling : row;
    }
    if (newest) this.#shorten();
  }

  /** What is known of a rollout grows: it is trained some time after it was sampled. */
  #renew(row, sample) {
    const more = row.sample.step !== sample.step || row.sample.lacks !== sample.lacks;
    fill(row, sample);
    if (more && this.#opened.has(row)) this.#open(row, row.nextElementSibling.cells[0]);
  }

  #shorten() {
    while (this.#body.querySelectorAll("tr[data-key]").length > MOST) {
      this.#opened.delete(this.#body.lastElementChild);
      this.#body.lastElementChild.remove();
    }
  }

  #row(key, sample) {
    const row = made("tr");
    row.dataset.key = key;
    row.append(...Array.from({ length: COLUMNS }, () => made("td")));
    const button = made("button", key);
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => this.#toggle(row, button));
    row.cells[0].append(button, made("span", "", "signs"));
    fill(row, sample);
    return row;
  }

  #toggle(row, button) {
    const opens = button.getAttribute("aria-expanded") === "false";
    button.setAttribute("aria-expanded", String(opens));
    if (!opens) {
      this.#opened.delete(row);
      row.nextElementSibling.remove();
      return;
    }
    const detail = made("tr", "", "opened");
    const cell = made("td");
    cell.colSpan = COLUMNS;
    detail.append(cell);
    row.after(detail);
    this.#open(row, cell);
  }

  #open(row, cell) {
    const rollout = new Rollout(row.sample, this.#overlay);
    this.#opened.set(row, rollout);
    cell.replaceChildren(rollout.element);
  }

  #lay() {
    this.#legend();
    for (const rollout of this.#opened.values()) rollout.lay(this.#overlay);
  }

  #legend() {
    const items = legend(this.#overlay).map(([name, words]) => made("li", words, name));
    document.getElementById("legend").replaceChildren(...items);
  }
}

/** The cells of a sample, the first apart: it has the button. */
function fill(row, sample) {
  row.sample = sample;
  const advantage = Array.isArray(sample.advantage) ? "by token" : signed(sample.advantage);
  const versions = (sample.version_spans ?? []).map((span) => versionName(span[1])).join(", ");
  const texts = [sample.stream, number(sample.step), versions, number(sample.reward), advantage];
  texts.push(number(sample.tokens.length), sample.prompt, sample.completion);
  texts.forEach((text, place) => say(row.cells[place + 1], String(text)));
  say(row.cells[0].querySelector(".signs"), (sample.oddities ?? []).join(", "));
  for (const cell of [row.cells[7], row.cells[8]]) cell.className = "text";
}
