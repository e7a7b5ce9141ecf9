// The figures of the run over its steps: what the gateway told of the past, and each step as it comes.

/** Of which figures the page has curves, whatever the run is; the components of its reward come to them. */
const WANTED = [
  "reward/mean",
  "eval/score",
  "staleness/mean",
  "staleness/max",
  "learner/wait_share",
  "rollout/idle_share",
  "queue/unscored",
  "queue/scored",
  "rollout/tokens_per_s",
  "weights/seconds",
  "weights/load_max_s",
  "weights/stall_s",
];
const POINTS = 1000;

const NONE = { step: [], time: [], value: [] };

export class Series {
  #extra = [];
  #figures = new Map();
  #clock = { step: [], time_s: [] };
  #added = 0;

  /** Names of the figures that are taken in. */
  get wanted() {
    return [...WANTED, ...this.#extra];
  }

  /** Have these figures, too. False: they are had already. Otherwise the past has to be loaded anew. */
  want(names) {
    if (names.join("\n") === this.#extra.join("\n")) return false;
    this.#extra = names;
    return true;
  }

  /** What to ask the gateway for, of this run or of another one. */
  question(run = "") {
    const figures = this.wanted.map((name) => `figure=${encodeURIComponent(name)}`).join("&");
    return `/api/history?points=${POINTS}&${figures}${run && `&run=${encodeURIComponent(run)}`}`;
  }

  /** Begin anew with what `/api/history` told. */
  load(history) {
    this.#clock = history.clock;
    this.#added = 0;
    this.#figures.clear();
    for (const [name, { step, value }] of Object.entries(history.figures)) {
      this.#figures.set(name, { step, value, time: this.#times(step) });
    }
  }

  get lastStep() {
    return this.#clock.step.at(-1) ?? -1;
  }

  get lastTime() {
    return this.#clock.time_s.at(-1) ?? 0;
  }

  /** Take the row of a step in. False: the past has to be loaded anew, since it was made again or has become long. */
  add(row) {
    if (row.step === this.lastStep) return true;
    if (row.step < this.lastStep || this.#added >= POINTS) return false;
    const time = this.lastTime + (row["time/step"] ?? 0);
    this.#clock.step.push(row.step);
    this.#clock.time_s.push(time);
    this.#added += 1;
    const figures = { ...row, ...derived(row) };
    for (const name of this.wanted) {
      if (typeof figures[name] === "number") this.#append(name, row.step, time, figures[name]);
    }
    return true;
  }

  /** {step, time, value}, three lists of one length. */
  of(name) {
    return this.#figures.get(name) ?? NONE;
  }

  #append(name, step, time, value) {
    if (!this.#figures.has(name)) this.#figures.set(name, { step: [], time: [], value: [] });
    const figure = this.#figures.get(name);
    figure.step.push(step);
    figure.time.push(time);
    figure.value.push(value);
  }

  /** The time of each of these steps, which ascend, between the points of the clock. */
  #times(steps) {
    const { step, time_s: time } = this.#clock;
    let place = 0;
    return steps.map((wanted) => {
      while (place < step.length - 1 && step[place + 1] <= wanted) place += 1;
      const [from, to] = [step[place], step[place + 1] ?? step[place]];
      const share = to > from ? (wanted - from) / (to - from) : 0;
      return time[place] + share * ((time[place + 1] ?? time[place]) - time[place]);
    });
  }
}

/** As the gateway derives them for the past (streamrl/gateway/page/history.py). */
function derived(row) {
  const found = {};
  if (row["time/step"] > 0 && typeof row["time/wait"] === "number") {
    found["learner/wait_share"] = row["time/wait"] / row["time/step"];
  }
  if (typeof row["queue/rows"] === "number" && typeof row["queue/unscored"] === "number") {
    found["queue/scored"] = row["queue/rows"] - row["queue/unscored"];
  }
  return found;
}
