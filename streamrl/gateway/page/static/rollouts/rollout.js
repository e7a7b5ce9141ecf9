// One rollout, opened: what is known of it, its prompt, its tokens under an overlay, and all that is known of the one that is
// pointed at.

import { made, number, say, signed } from "../format.js";
import { factsOf, MASKS, said, versionName } from "./overlays.js";
import { Profile } from "./profile.js";
import { TokenText } from "./tokens.js";

const LACKS = {
  not_trained: "No step has trained this rollout: entropy, mismatch and mask are known of those that were.",
  not_kept:
    "The learner kept nothing of these tokens. Of each step it keeps whole rollouts, 16,384 tokens at most, as far as " +
    "observe.token_bytes reaches.",
  switched_off: "The learner keeps nothing of single tokens in this run: observe.token_bytes = 0.",
};

// Letters of a fact, from which on it takes two columns.
const LONG = 30;

export class Rollout {
  #facts;
  #text;
  #profile;
  #readout = made("p", "", "token-readout");

  /** overlay: its name. */
  constructor(sample, overlay) {
    this.#facts = factsOf(sample);
    this.#text = new TokenText(this.#facts, overlay, (place) => this.#look(place));
    this.#profile = new Profile(this.#facts, overlay, (place) => this.#look(place));
    this.element = made("div", "", "rollout");
    this.element.append(summary(sample, this.#facts));
    if (sample.lacks) this.element.append(made("p", LACKS[sample.lacks] ?? sample.lacks, "hint"));
    this.element.append(made("h3", "Prompt"), made("div", sample.prompt, "answer prompt"), made("h3", "Tokens"));
    this.element.append(this.#profile.element, this.#readout, this.#text.element);
    if (this.#facts.length) this.#look(0);
  }

  lay(overlay) {
    this.#text.lay(overlay);
    this.#profile.lay(overlay);
  }

  #look(place) {
    const facts = this.#facts[place];
    const words = said(facts).map(([name, value]) => `${name} ${value}`);
    words.unshift(`token ${number(place + 1)} of ${number(this.#facts.length)}`, JSON.stringify(facts.text));
    while (this.#readout.children.length < words.length) this.#readout.append(made("span"));
    words.forEach((text, child) => say(this.#readout.children[child], text));
    this.#text.mark(place);
    this.#profile.mark(place, words.join(", "));
  }
}

/** A list of what is known of the rollout as a whole. */
function summary(sample, facts) {
  const versions = (sample.version_spans ?? []).map(([, version]) => versionName(version)).join(", ");
  const told = [
    ["reward", number(sample.reward)],
    ...Object.entries(sample.components ?? {}).map(([name, value]) => [`reward: ${name}`, number(value)]),
    ["advantage", Array.isArray(sample.advantage) ? "by token" : signed(sample.advantage)],
    ["tokens", number(facts.length)],
    ["ended by", sample.finish_reason],
    ["versions", versions || "-"],
    ["trained in step", number(sample.step)],
    ["replica", sample.replica || "-"],
    ["log-prob, mean", nats(mean(facts, "logprob"), signed)],
    ["entropy, mean", nats(mean(facts, "entropy"), number)],
    ["mismatch, mean", nats(mean(facts, "mismatch"), (value) => signed(value, 4))],
    ["mask", masks(facts)],
    ["signs", (sample.oddities ?? []).join(", ") || "none"],
  ];
  const list = made("dl", "", "facts");
  for (const [name, value] of told) {
    const entry = made("div", "", value.length > LONG ? "long" : "");
    entry.append(made("dt", name), made("dd", value));
    list.append(entry);
  }
  return list;
}

function masks(facts) {
  const counts = new Map();
  for (const { mask } of facts) if (mask !== null) counts.set(mask, (counts.get(mask) ?? 0) + 1);
  const words = [...counts].map(([mask, count]) => `${number(count)} ${MASKS[mask].split(":")[0]}`);
  return words.join(", ") || "-";
}

function mean(facts, name) {
  const values = facts.map((one) => one[name]).filter((value) => value !== null);
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

function nats(value, words) {
  return value === null ? "-" : `${words(value)} nats`;
}
