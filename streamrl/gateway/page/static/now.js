// How the run stands at this moment, in words and numbers: its waits, its queue, what was dropped, what bounds it.

import { bytes, made, number, percent, say } from "./format.js";
import { showQueue } from "./queue.js";

/** Show a status. */
export function showNow(status) {
  const { run, metrics } = status;
  say(document.getElementById("name"), run.name);
  const step = metrics?.step ?? 0;
  const held = Object.entries(status.eval ?? {}).at(-1);
  const score = held ? `, held-out score ${number(held[1])} at step ${held[0]}` : "";
  say(document.getElementById("progress"), `step ${number(step)} of ${number(run.steps)}, version ${metrics?.version ?? "-"}${score}`);
  document.title = `${run.name}: step ${step}`;
  list("findings", status.why.length ? status.why : ["nothing stands out"]);
  list("waits-now", status.waits.map(({ who, what, share }) => `${who}: ${percent(share)} waiting for ${what}`));
  showQueue(status.queue_rows);
  list("evaluations", Object.entries(status.evaluations ?? {}).map(evaluated));
  showWeights(metrics ?? {});
  showDrops(status.dropped);
}

/** What `streamrl eval` measured of one task, and when. */
function evaluated([name, { step, version, last_version, source, samples, temperature, limit, ...scores }]) {
  const told = Object.entries(scores).map(([metric, score]) => `${metric} ${number(score)}`);
  return `${name}: ${told.join(", ")} at step ${step}`;
}

function showWeights(metrics) {
  if (metrics["weights/bytes"] === undefined) return;
  const [sent, full] = [bytes(metrics["weights/bytes"]), bytes(metrics["weights/full_bytes"])];
  say(document.getElementById("weights-now"), `version ${metrics.version}: ${sent} written, of a model of ${full}`);
}

function showDrops(dropped) {
  const rows = Object.entries(dropped);
  const body = document.getElementById("drop-rows");
  body.replaceChildren(
    ...rows.map(([reason, groups]) => {
      const row = made("tr");
      row.append(made("td", reason), made("td", number(groups)));
      return row;
    }),
  );
  document.getElementById("drops-none").hidden = rows.length > 0;
}

function list(id, texts) {
  const element = document.getElementById(id);
  while (element.children.length > texts.length) element.lastChild.remove();
  texts.forEach((text, place) => {
    const item = element.children[place] ?? element.appendChild(made("li"));
    say(item, text);
  });
}
