// The page of a run: asks for the token, follows what happens, and has each part show it.
//
//   /api/history  -> series -> charts            once for each connection, and when steps are made again
//   /api/events   -> step   -> series -> charts
//                 -> status -> now, replicas, samples, the run beside this one
//                 -> others -> alerts

import { Alerts } from "./alerts.js";
import { Replicas } from "./behind.js";
import { charts, componentFigure, MOST_COMPONENTS } from "./charts/figures.js";
import { Series } from "./charts/series.js";
import { Compare } from "./compare.js";
import { ask, Refused, Stream } from "./connection.js";
import { askForToken } from "./form.js";
import { say } from "./format.js";
import { showNow } from "./now.js";
import { Samples } from "./rollouts/table.js";
import { Scale } from "./scale.js";
import { takeFromLink, token } from "./session.js";

class Page {
  #series = new Series();
  #alerts = new Alerts();
  #replicas = new Replicas();
  #scale = new Scale((error) => this.#refuse(error));
  #samples = new Samples((error) => this.#refuse(error));
  #connection = document.getElementById("connection");
  #facts = null;
  #compare = new Compare(this.#series, () => this.#request(), (error) => this.#refuse(error));
  #charts = charts(this.#series, () => this.#facts, () => this.#compare.other);
  #loading = null;
  #lost = null;
  #names = null;
  #refuse = () => {};

  constructor() {
    document.getElementById("axis").addEventListener("change", (event) => {
      for (const chart of this.#charts) chart.axis = event.target.value;
      this.#request();
    });
    setInterval(() => this.#sayConnection(), 500);
  }

  /** Show the run as long as the token is good. Throws Refused when it is not. */
  async show() {
    const refused = new Promise((_, reject) => {
      this.#refuse = reject;
    });
    const told = { opened: () => this.#opened(), took: (event) => this.#took(event), lost: (since) => this.#isLost(since) };
    const stream = new Stream(told);
    // A browser may keep a page that was left, as it was, for the way back: it comes up again then.
    addEventListener("pagehide", () => stream.drop());
    try {
      await Promise.race([stream.run(), refused]);
    } finally {
      stream.stop();
    }
  }

  #opened() {
    document.getElementById("run").hidden = false;
    this.#lost = null;
    this.#sayConnection();
    this.#alerts.restart();
    this.#samples.restart();
    this.#compare.restart();
    this.#names = null;
    this.#load();
  }

  #isLost(since) {
    this.#lost = since;
    this.#sayConnection();
  }

  #sayConnection() {
    const off = this.#lost !== null || document.getElementById("run").hidden;
    this.#connection.dataset.state = off ? "off" : "on";
    const since = this.#lost === null ? "" : ` since ${Math.round((Date.now() - this.#lost) / 1000)} s`;
    say(this.#connection, off ? `not connected${since}` : "connected");
  }

  /** The past anew. Steps that come meanwhile are in it, or are added when it is there. */
  async #load() {
    if (this.#loading) return;
    this.#loading = [];
    const asked = this.#series.question();
    try {
      this.#series.load(await ask(asked));
      for (const row of this.#loading) this.#series.add(row);
      this.#request();
    } catch (error) {
      if (error instanceof Refused && error.ofToken) this.#refuse(error);
      else this.#alerts.take({ kind: "notice", text: `the figures so far: ${error.message}` });
    }
    this.#loading = null;
    // More figures were wanted meanwhile.
    if (asked !== this.#series.question()) this.#load();
  }

  #took(event) {
    if (event.kind === "step") this.#step(event);
    else if (event.kind === "status") this.#status(event);
    else this.#alerts.take(event);
  }

  #step(row) {
    this.#alerts.trains();
    if (this.#loading) this.#loading.push(row);
    else if (this.#series.add(row)) this.#request();
    else this.#load();
  }

  #status(status) {
    if (status.error) {
      this.#alerts.take({ kind: "notice", text: status.error });
      return;
    }
    this.#facts = status.run;
    this.#showComponents(status.run.components);
    showNow(status);
    const replicas = status.replicas ?? [];
    this.#replicas.show(replicas, status.behind, status.run.max_staleness);
    const scoring = status.reward?.workers;
    const names = [scoring, ...replicas.map((one) => one.name)].join();
    if (names !== this.#names) {
      this.#names = names;
      this.#scale.look(scoring);
    }
    this.#samples.refresh();
    this.#compare.refresh(status.run.components);
  }

  /** Of a run whose reward has some. Their names are known once scores were told: then the past of them is had, too. */
  #showComponents(names) {
    document.getElementById("components").hidden = !names.length;
    const left = names.length - MOST_COMPONENTS;
    say(document.getElementById("components-left"), left > 0 ? `and ${left} more, which /api/history has` : "");
    if (this.#series.want(names.map(componentFigure))) this.#load();
  }

  #request() {
    for (const chart of this.#charts) chart.request();
  }
}

async function main() {
  addEventListener("hashchange", () => takeFromLink() && location.reload());
  takeFromLink();
  if (token() === null) await askForToken(null);
  const page = new Page();
  for (;;) {
    try {
      await page.show();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      await askForToken(error);
    }
  }
}

main();
