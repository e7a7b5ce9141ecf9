// A completion, token by token, coloured by what is known of each. What the model wrote is text and nothing else.

import { made, number } from "./format.js";

const VERSIONS = 6;
const PROBABILITIES = [0.9, 0.5, 0.2, 0.05, 0.01];
const ADVANTAGES = [-1, -0.3, -1e-9, 1e-9, 0.3, 1];
// As many tokens as are shown at once: more make a page slow, and nobody reads them at a glance.
const AT_ONCE = 4000;

/** What the colours of a mode mean, as [class, words]. */
export function legend(mode) {
  if (mode === "logprob") {
    const bounds = [...PROBABILITIES, 0];
    return bounds.map((bound, place) => [`l${place}`, place < PROBABILITIES.length ? `p >= ${bound}` : "less"]);
  }
  if (mode === "advantage") {
    const words = ["<= -1", "<= -0.3", "< 0", "0", "> 0", "> 0.3", "> 1"];
    return words.map((text, place) => [`a${place}`, text]);
  }
  return [["v0", "the oldest version of a sample"], ["v1", "the next one"], ["v2", "and so on"]];
}

/** The tokens of a sample as elements of a list, coloured by `mode`. */
export function colouredTokens(sample, mode) {
  const answer = made("div", "", "answer");
  const versions = versionsOf(sample);
  const add = (from) => {
    const to = Math.min(sample.tokens.length, from + AT_ONCE);
    for (let i = from; i < to; i += 1) answer.append(token(sample, i, versions[i], mode));
    if (to === sample.tokens.length) return;
    const more = made("button", `${number(sample.tokens.length - to)} more tokens`);
    more.type = "button";
    more.addEventListener("click", () => {
      more.remove();
      add(to);
    });
    answer.append(more);
  };
  add(0);
  return answer;
}

function token(sample, place, version, mode) {
  const advantage = advantageOf(sample, place);
  const logprob = sample.logprobs?.[place];
  const colours = {
    version: () => `v${version.number % VERSIONS}`,
    logprob: () => (typeof logprob === "number" ? `l${binOf(-Math.exp(logprob), PROBABILITIES.map((one) => -one))}` : ""),
    advantage: () => (typeof advantage === "number" ? `a${binOf(advantage, ADVANTAGES)}` : ""),
  };
  const element = made("span", readable(sample.tokens[place]), `token ${colours[mode]()}`);
  const said = [`id ${sample.token_ids?.[place] ?? "-"}`, `version ${version.name}`];
  said.push(`log-prob ${number(logprob)}`, `advantage ${number(advantage)}`);
  element.title = said.join(", ");
  return element;
}

/** In which of the bins that `bounds`, ascending, part the numbers into. */
function binOf(value, bounds) {
  const bin = bounds.findIndex((bound) => value <= bound);
  return bin < 0 ? bounds.length : bin;
}

/** Of a sample there is one advantage, or one for each token. */
function advantageOf(sample, place) {
  return Array.isArray(sample.advantage) ? sample.advantage[place] : sample.advantage;
}

/** Of each token: its version, and the number of it within the sample. */
function versionsOf(sample) {
  const spans = sample.version_spans ?? [];
  let span = -1;
  return sample.tokens.map((_, place) => {
    while (span + 1 < spans.length && spans[span + 1][0] <= place) span += 1;
    return { number: Math.max(0, span), name: span < 0 ? "-" : versionName(spans[span][1]) };
  });
}

export function versionName(version) {
  return Array.isArray(version) ? version.join(".") : String(version);
}

/** With line breaks that are seen, and something where a token has no text of its own. */
function readable(text) {
  return text === "" ? "\u2205" : text.replaceAll("\n", "\u21b5\n");
}
