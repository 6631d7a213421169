// The hosts of the fleet, each with its workers and what they do.

import { h, keyed, newId, say } from "./dom.js";
import { compact, count, percent } from "./format.js";

/** Tokens a second of a worker's answers, by the time that a step takes and the requests in it; null: nobody knows. */
export function decodingSpeed({ running, ranks, speeds: { step_s: step, request_step_s: more, busy } }) {
  if (!step && !more) return null;
  return running ? (running / (step + (running / ranks) * more)) * (1 - busy) : 0;
}

export function hosts() {
  const heading = newId("hosts");
  const rows = h("tbody");
  const element = h("section", { "aria-labelledby": heading }, h("h2", { id: heading }, "Hosts"),
    h("div", { class: "wide", role: "region", "aria-label": "Table of hosts", tabindex: "0" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Host", "Workers", "Running", "Waiting", "Tokens/s (about)", "KV blocks in use"].map((name) => h("th", { scope: "col" }, name)))), rows)));
  return { element, update: (pools) => keyed(rows, byHost(pools.flatMap(({ workers }) => workers)), ([host]) => host, row) };
}

/** [[host, workers]]. */
function byHost(workers) {
  const found = new Map();
  for (const worker of workers) found.set(worker.host, [...(found.get(worker.host) ?? []), worker]);
  return [...found].sort(([a], [b]) => a.localeCompare(b));
}

function row([host]) {
  const cells = Array.from({ length: 5 }, () => h("td", { class: "figure" }));
  return {
    element: h("tr", {}, h("th", { scope: "row" }, host), cells),
    update([, workers]) {
      const sum = (of) => workers.reduce((total, worker) => total + of(worker), 0);
      const speeds = workers.map(decodingSpeed);
      const blocks = sum((worker) => worker.blocks.total);
      [count(workers.length), count(sum((worker) => worker.running)), count(sum((worker) => worker.waiting)),
        speeds.every((one) => one === null) ? "–" : compact(speeds.reduce((total, one) => total + (one ?? 0), 0)),
        blocks ? percent(sum((worker) => worker.blocks.held) / blocks) : "–"].forEach((text, i) => say(cells[i], text));
    },
  };
}
