// What went wrong, and what the run says by the way. Of several failures the first is shown: the others follow from it.

import { made, say } from "./format.js";

const NOTICES = 8;
const BEFORE_TRAINING = ["running", "warm-up", "resuming"];

export class Alerts {
  #failure = document.getElementById("failure");
  #notices = document.getElementById("notices");
  #phase = document.getElementById("phase");
  #first = null;

  /** Everything is told anew, from the begin of the story. */
  restart() {
    this.#first = null;
    this.#notices.replaceChildren();
    this.#show("");
  }

  take(event) {
    if (event.kind === "phase") this.#enter(event.name);
    if (event.kind === "failure") this.#fail(`${event.component} failed in ${event.phase}: ${event.cause}`);
    if (event.kind === "end") this.#end(event);
    if (event.kind === "notice" || event.kind === "resumed") this.#notice(event.text);
  }

  /** A step was made: nobody says so of the phase before. */
  trains() {
    if (BEFORE_TRAINING.some((phase) => this.#phase.textContent.startsWith(phase))) say(this.#phase, "training");
  }

  #enter(name) {
    say(this.#phase, name);
    // The system starts, or starts again: what failed before is behind it.
    if (name === "ray") {
      this.#first = null;
      this.#show("");
    }
  }

  #end(event) {
    say(this.#phase, `the run has ended: ${event.how}`);
    if (event.error) this.#fail(event.error.message);
  }

  #fail(text) {
    this.#first ??= text;
    this.#show(this.#first);
  }

  #show(text) {
    say(this.#failure, text);
    this.#failure.hidden = !text;
  }

  #notice(text) {
    // What is said again each second is said once.
    if (this.#notices.lastChild?.textContent === text) return;
    this.#notices.append(made("li", text));
    while (this.#notices.children.length > NOTICES) this.#notices.firstChild.remove();
  }
}
