// Have more or fewer replicas, and children that score.

import { ask, Refused } from "./connection.js";
import { say } from "./format.js";

/** One part that can be scaled: its form, whose `data-part` names it. order(part, size): somebody wants so many. */
class Part {
  #form;
  #input;
  #button;
  #now;
  #said;

  constructor(form, order) {
    this.#form = form;
    this.#input = form.querySelector("input");
    this.#button = form.querySelector("button");
    this.#now = form.querySelector(".now");
    this.#said = form.querySelector("[role=status]");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      order(this, Number(this.#input.value));
    });
  }

  get name() {
    return this.#form.dataset.part;
  }

  set waits(on) {
    this.#button.disabled = on;
  }

  /** Show how many are wanted and are there; undefined where that is not known. */
  show(wanted, there) {
    say(this.#now, `${wanted} wanted${there === undefined ? "" : `, ${there} ${this.#form.dataset.does}`}`);
    if (document.activeElement !== this.#input) this.#input.value = wanted;
    this.#form.hidden = false;
  }

  hide() {
    this.#form.hidden = true;
  }

  say(text, bad = false) {
    say(this.#said, text);
    this.#said.toggleAttribute("data-bad", bad);
  }
}

export class Scale {
  #parts = [...document.querySelectorAll("form.scale")].map((form) => new Part(form, (...told) => this.#order(...told)));
  #scoring;
  #refused;

  /** refused(error): the token was not taken. */
  constructor(refused) {
    this.#refused = refused;
  }

  /** Show how many there are and are wanted. scoring: how many children score, where that is known. */
  async look(scoring) {
    this.#scoring = scoring;
    try {
      const sizes = await ask("/api/scale");
      for (const part of this.#parts) {
        if (part.name in sizes) part.show(sizes[part.name].now, sizes[part.name].serving ?? this.#scoring);
        else part.hide();
      }
    } catch (error) {
      this.#fail(this.#parts[0], error);
    }
  }

  async #order(part, size) {
    part.waits = true;
    try {
      const { [part.name]: wanted, before } = await ask("/api/scale", { [part.name]: size });
      part.say(`${before} -> ${wanted}`);
    } catch (error) {
      this.#fail(part, error);
    }
    part.waits = false;
    await this.look(this.#scoring);
  }

  #fail(part, error) {
    if (!(error instanceof Refused)) return part.say("the gateway does not answer", true);
    if (error.ofToken) return this.#refused(error);
    // A gateway that knows no such route cannot do it.
    if (error.status === 404) for (const one of this.#parts) one.hide();
    return part.say(error.message, true);
  }
}
