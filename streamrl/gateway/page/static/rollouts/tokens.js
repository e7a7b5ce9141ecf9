// The tokens of a rollout as text under an overlay. What the model wrote is text and nothing else.

import { made, number } from "../format.js";
import { classOf } from "./overlays.js";

// As many tokens as are shown at once: more make a page slow, and nobody reads them at a glance.
const AT_ONCE = 4000;

export class TokenText {
  #facts;
  #overlay;
  #spans = [];
  #current = null;

  /** facts: of each token. overlay: its name. points(place): somebody points at a token. */
  constructor(facts, overlay, points) {
    this.#facts = facts;
    this.#overlay = overlay;
    this.element = made("div", "", "answer");
    const place = (event) => this.#spans.indexOf(event.target.closest(".token"));
    for (const kind of ["pointerover", "click"]) {
      this.element.addEventListener(kind, (event) => place(event) >= 0 && points(place(event)));
    }
    this.#add(0);
  }

  /** Lay another overlay over them. */
  lay(overlay) {
    this.#overlay = overlay;
    this.#spans.forEach((span, place) => this.#dress(span, place));
  }

  /** Show which token is looked at, if it is among those that are shown. */
  mark(place) {
    this.#current?.classList.remove("current");
    this.#current = this.#spans[place] ?? null;
    this.#current?.classList.add("current");
  }

  #add(from) {
    const to = Math.min(this.#facts.length, from + AT_ONCE);
    for (let place = from; place < to; place += 1) {
      const span = made("span", readable(this.#facts[place].text));
      this.#dress(span, place);
      this.#spans.push(span);
      this.element.append(span);
    }
    if (to === this.#facts.length) return;
    const more = made("button", `${number(this.#facts.length - to)} more tokens`);
    more.type = "button";
    more.addEventListener("click", () => {
      more.remove();
      this.#add(to);
    });
    this.element.append(more);
  }

  #dress(span, place) {
    const facts = this.#facts[place];
    const kind = classOf(facts, this.#overlay);
    span.className = `token ${kind}${span === this.#current ? " current" : ""}`;
    // The name of a version stands where it begins, so that a change is seen without its colour.
    if (this.#overlay === "version" && facts.version.first) span.dataset.mark = facts.version.name;
    else delete span.dataset.mark;
  }
}

/** With line breaks that are seen, and something where a token has no text of its own. */
function readable(text) {
  return text === "" ? "\u2205" : text.replaceAll("\n", "\u21b5\n");
}
