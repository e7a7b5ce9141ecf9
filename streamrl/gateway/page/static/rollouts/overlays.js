// What can be laid over the tokens of a rollout: of each overlay its words, its number for a token, and the bins that a number
// falls into. A bin is a class of the style sheet, which has a colour and, since not everybody sees it, a line below.

import { number, signed } from "../format.js";

const VERSIONS = 6;
const NATS = " nats";
export const MASKS = {
  trained: "trained",
  clipped: "clipped: a bound of the loss decides",
  truncated: "weight bounded: by the correction",
  rejected: "rejected: left out of the loss",
  left_out: "not trained: no score, or an advantage of 0",
  sampled: "sampled, and not known what became of it",
  given: "not sampled: written by the environment",
};

/** By name: `of(facts)` a number, or null; `bounds`, ascending, which part the numbers into bins; `prefix` of their classes. */
const NUMBERS = {
  logprob: { of: (facts) => flipped(facts.logprob), bounds: [0.1, 0.7, 1.6, 3, 4.6], prefix: "l", words: probabilities() },
  entropy: { of: (facts) => facts.entropy, bounds: [0.1, 0.5, 1, 2, 3], prefix: "l", words: upTo([0.1, 0.5, 1, 2, 3]) },
  mismatch: {
    of: (facts) => facts.mismatch,
    bounds: [-0.5, -0.1, -0.01, 0.01, 0.1, 0.5],
    prefix: "a",
    words: around([0.01, 0.1, 0.5], NATS),
  },
  advantage: {
    of: (facts) => facts.advantage,
    bounds: [-1, -0.3, -1e-9, 1e-9, 0.3, 1],
    prefix: "a",
    words: ["\u2264 \u22121", "\u2264 \u22120.3", "< 0", "0", "> 0", "> 0.3", "> 1"],
  },
};

/** What the classes of an overlay mean, as [class, words]. */
export function legend(overlay) {
  if (overlay === "version") return [["v0", "the oldest version of a rollout"], ["v1", "the next one"], ["v2", "and so on"]];
  if (overlay === "mask") return Object.entries(MASKS).map(([name, words]) => [`m-${name}`, words]);
  const { prefix, words } = NUMBERS[overlay];
  return words.map((text, place) => [`${prefix}${place}`, text]);
}

/** The class of a token under an overlay; "" where nothing is known. */
export function classOf(facts, overlay) {
  if (overlay === "version") return `v${facts.version.number % VERSIONS}`;
  if (overlay === "mask") return facts.mask === null ? "" : `m-${facts.mask}`;
  const { of, bounds, prefix } = NUMBERS[overlay];
  const value = of(facts);
  return value === null ? "" : `${prefix}${binOf(value, bounds)}`;
}

/** The number of a token that a picture of an overlay has; null for an overlay without numbers, and where none is known. */
export function valueOf(facts, overlay) {
  if (overlay === "logprob") return facts.logprob;
  return overlay in NUMBERS ? NUMBERS[overlay].of(facts) : null;
}

/** All that is known of each token of a sample. */
export function factsOf(sample) {
  const versions = spread(sample.version_spans, sample.tokens.length);
  const masks = spread(sample.mask, sample.tokens.length);
  return sample.tokens.map((text, place) => {
    const mask = masks[place]?.name ?? null;
    const version = versions[place];
    return {
      text,
      id: sample.token_ids?.[place] ?? null,
      version: { number: version?.number ?? 0, name: version ? versionName(version.name) : "-", first: version?.first ?? false },
      logprob: mask === "given" ? null : known(sample.logprobs?.[place]),
      entropy: known(sample.entropy?.[place]),
      mismatch: known(sample.mismatch?.[place]),
      mask,
      // Of a sample there is one advantage, or one for each token; what was not sampled has none.
      advantage: mask === "given" ? null : known(Array.isArray(sample.advantage) ? sample.advantage[place] : sample.advantage),
    };
  });
}

/** [name, value] of all that is known of a token, with units. */
export function said(facts) {
  const probability = facts.logprob === null ? "" : ` (p ${number(Math.exp(facts.logprob))})`;
  const nats = (value, words) => (value === null ? "-" : `${words(value)}${NATS}`);
  return [
    ["id", number(facts.id)],
    ["version", facts.version.name],
    ["log-prob", `${nats(facts.logprob, signed)}${probability}`],
    ["entropy", nats(facts.entropy, number)],
    ["mismatch", nats(facts.mismatch, (value) => signed(value, 4))],
    ["mask", facts.mask === null ? "-" : MASKS[facts.mask]],
    ["advantage", signed(facts.advantage)],
  ];
}

export function versionName(version) {
  return Array.isArray(version) ? version.join(".") : String(version);
}

/** Of each token the span that it is in: its number, its name, and whether it begins there. Before the first span: null. */
function spread(spans, count) {
  let span = -1;
  const list = spans ?? [];
  return Array.from({ length: count }, (_, place) => {
    const before = span;
    while (span + 1 < list.length && list[span + 1][0] <= place) span += 1;
    return span < 0 ? null : { number: span, name: list[span][1], first: span !== before };
  });
}

function known(value) {
  return typeof value === "number" ? value : null;
}

function flipped(value) {
  return value === null ? null : -value;
}

/** In which of the bins that `bounds` part the numbers into. */
function binOf(value, bounds) {
  const bin = bounds.findIndex((bound) => value <= bound);
  return bin < 0 ? bounds.length : bin;
}

function probabilities() {
  return ["p \u2265 0.9", "p \u2265 0.5", "p \u2265 0.2", "p \u2265 0.05", "p \u2265 0.01", "less"];
}

function upTo(bounds) {
  return [...bounds.map((bound) => `\u2264 ${bound}${NATS}`), "more"];
}

/** Words for bins that lie around 0: what the trainer finds less likely, alike, and more likely than the engine. */
function around([near, far, farther], unit) {
  const low = [farther, far, near].map((bound) => `\u2264 \u2212${bound}${unit}`);
  return [...low, `within ${near}`, ...[near, far, farther].map((bound) => `> ${bound}${unit}`)];
}
