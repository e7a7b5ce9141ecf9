// Which figures of the run are shown where.

import { bandRange, paintBand } from "./band.js";
import { Chart } from "./chart.js";
import { number, percent, seconds } from "../format.js";
import { lineRange, paintLines } from "./lines.js";
import { LANES, paintStrip } from "./strip.js";

const curves = { range: lineRange, paint: paintLines, compares: true };
const whole = (value) => number(Math.round(value));
const rows = (value) => `${whole(value)} rows`;
const COLOURS = 5;
/** More lines in one picture cannot be told apart. */
export const MOST_COMPONENTS = 8;

/**
 * The charts of the page. facts(): what does not change while the run lasts, null before it is told. compared(): the run beside
 * it, as `name` and `series`, or null.
 */
export function charts(series, facts, compared) {
  const told = { ...learning(facts), ...waiting(facts), ...moving() };
  return Object.entries(told).map(([id, one]) => new Chart(document.getElementById(id), series, one, compared));
}

function learning(facts) {
  return {
    reward: {
      ...curves,
      lines: [
        { name: "reward/mean", label: "reward", colour: 1 },
        { name: "eval/score", label: "held-out", colour: 2 },
      ],
    },
    components: {
      ...curves,
      lines: () =>
        (facts()?.components ?? [])
          .slice(0, MOST_COMPONENTS)
          .map((name, place) => ({ name: componentFigure(name), label: name, colour: 1 + (place % COLOURS) })),
    },
    staleness: {
      ...curves,
      lines: [
        { name: "staleness/mean", label: "mean", colour: 1 },
        { name: "staleness/max", label: "highest", colour: 2 },
        { level: () => facts()?.max_staleness, label: "bound", colour: 5 },
      ],
    },
  };
}

function waiting(facts) {
  return {
    waits: {
      range: () => LANES,
      paint: paintStrip,
      left: false,
      lines: [
        { name: "learner/wait_share", label: "learner waits for rows", short: "learner", colour: 2, show: percent },
        {
          name: "rollout/idle_share",
          label: "replicas wait for admission",
          short: "replicas",
          colour: 1,
          show: percent,
        },
      ],
    },
    queue: {
      range: bandRange,
      paint: paintBand,
      lines: [
        { name: "queue/scored", label: "scored", colour: 1, show: rows },
        { name: "queue/unscored", label: "wait for a score", colour: 2, show: rows, hatched: true },
        { level: () => facts()?.rollouts_per_step, label: "a step trains", colour: 5, show: rows },
      ],
    },
  };
}

function moving() {
  return {
    tokens: {
      ...curves,
      lines: [{ name: "rollout/tokens_per_s", label: "generated", colour: 3, show: (value) => `${whole(value)} tokens/s` }],
    },
    weights: {
      ...curves,
      lines: [
        { name: "weights/seconds", label: "to publish", colour: 1, show: short },
        { name: "weights/load_max_s", label: "slowest to load", colour: 2, show: short },
        { name: "weights/stall_s", label: "learner stalled", colour: 4, show: short },
      ],
    },
  };
}

export function componentFigure(name) {
  return `reward/${name}/mean`;
}

function short(value) {
  return value < 1 ? `${whole(1000 * value)} ms` : seconds(value);
}
