// The rows that are on their way now, by state: a bar in the order in which they go through it, and the same in words.

import { made, number, percent, say } from "./format.js";

const STATES = {
  pending: { words: "being generated", colour: 5 },
  complete: { words: "wait for a score", colour: 2 },
  scored: { words: "wait for their group", colour: 3 },
  ready: { words: "ready", colour: 1 },
  leased: { words: "with the learner", colour: 4 },
};

/** rows: how many, by state. */
export function showQueue(rows) {
  const counts = Object.entries(rows);
  const whole = counts.reduce((sum, [, count]) => sum + count, 0);
  const bar = document.getElementById("queue-bar");
  bar.hidden = !counts.length;
  const words = counts.map(([state, count]) => `${number(count)} ${STATES[state].words}`);
  bar.setAttribute("aria-label", `${number(whole)} rows on their way: ${words.join(", ")}`);
  fit(bar, counts.length, "div");
  fit(document.getElementById("queue-now"), counts.length, "li");
  counts.forEach(([state, count], place) => {
    const key = `state state-${state} line-${STATES[state].colour}`;
    const part = bar.children[place];
    part.className = key;
    part.style.flexGrow = count;
    part.hidden = !count;
    const item = document.getElementById("queue-now").children[place];
    say(item, words[place]);
    item.className = key;
    item.dataset.share = whole ? percent(count / whole) : "";
  });
  say(document.getElementById("queue-whole"), counts.length ? `${number(whole)} rows on their way` : "");
}

function fit(element, count, name) {
  while (element.children.length > count) element.lastChild.remove();
  while (element.children.length < count) element.append(made(name));
}
