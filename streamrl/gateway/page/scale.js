// Have more or fewer replicas.

import { ask, Refused } from "./connection.js";
import { say } from "./format.js";

export class Scale {
  #form = document.getElementById("scale");
  #input = document.getElementById("scale-rollout");
  #button = this.#form.querySelector("button");
  #now = document.getElementById("scale-now");
  #said = document.getElementById("scale-said");
  #refused;

  /** refused(error): the token was not taken. */
  constructor(refused) {
    this.#refused = refused;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#order(Number(this.#input.value));
    });
  }

  /** Show how many there are and are wanted. */
  async look() {
    try {
      const { rollout, reward } = await ask("/api/scale");
      const scorers = reward ? `; ${reward.now} reward workers` : "";
      say(this.#now, `${rollout.now} wanted, ${rollout.serving} serve${scorers}`);
      if (document.activeElement !== this.#input) this.#input.value = rollout.now;
      this.#form.hidden = false;
    } catch (error) {
      this.#fail(error);
    }
  }

  async #order(rollout) {
    this.#button.disabled = true;
    try {
      const { rollout: wanted, before } = await ask("/api/scale", { rollout });
      this.#say(`${before} -> ${wanted}`);
    } catch (error) {
      this.#fail(error);
    }
    this.#button.disabled = false;
    await this.look();
  }

  #fail(error) {
    if (!(error instanceof Refused)) return this.#say("the gateway does not answer", true);
    if (error.ofToken) return this.#refused(error);
    // A gateway that knows no such route cannot do it.
    if (error.status === 404) this.#form.hidden = true;
    return this.#say(error.message, true);
  }

  #say(text, bad = false) {
    say(this.#said, text);
    this.#said.toggleAttribute("data-bad", bad);
  }
}
