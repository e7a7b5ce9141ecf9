// Which figures of the run are shown where.

import { bandRange, paintBand } from "./band.js";
import { Chart } from "./chart.js";
import { number, percent } from "../format.js";
import { lineRange, paintLines } from "./lines.js";
import { LANES, paintStrip } from "./strip.js";

const curves = { range: lineRange, paint: paintLines };
const whole = (value) => number(Math.round(value));

/** The charts of the page. bound(): the staleness that the run allows. */
export function charts(series, bound) {
  const told = {
    reward: {
      ...curves,
      lines: [
        { name: "reward/mean", label: "reward", colour: 1 },
        { name: "eval/score", label: "held-out", colour: 2 },
      ],
    },
    staleness: {
      ...curves,
      lines: [
        { name: "staleness/mean", label: "mean", colour: 1 },
        { name: "staleness/max", label: "highest", colour: 2 },
        { level: bound, label: "bound", colour: 5, dashed: true },
      ],
    },
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
        { name: "queue/scored", label: "scored", colour: 1, show: whole },
        { name: "queue/unscored", label: "wait for a score", colour: 2, show: whole },
      ],
    },
    tokens: { ...curves, lines: [{ name: "rollout/tokens_per_s", label: "generated", colour: 3, show: whole }] },
    weights: {
      ...curves,
      lines: [
        { name: "weights/seconds", label: "to publish", colour: 1 },
        { name: "weights/load_max_s", label: "slowest to load", colour: 2 },
        { name: "weights/stall_s", label: "learner stalled", colour: 4 },
      ],
    },
  };
  return Object.entries(told).map(([id, one]) => new Chart(document.getElementById(id), series, one));
}
