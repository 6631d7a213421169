// Fleet: pools and workers live, the latest requests, and the prefixes that they share.

import { watch } from "./api.js";
import { legend } from "./bars.js";
import { h, keyed, problem, say } from "./dom.js";
import { clock, compact, plural } from "./format.js";
import { decodingSpeed, hosts } from "./hosts.js";
import { logs } from "./logs.js";
import { prefixes } from "./prefixes.js";
import { requests } from "./requests.js";
import { workerCard } from "./worker.js";

const BARS = [["held", "used by requests"], ["lent", "of these kept for decode workers"], ["cached", "cached"]];

export function page() {
  const summary = h("p", { class: "hint" }, "Waiting for the fleet …");
  const pools = h("div", { class: "pools" });
  const latest = requests();
  const shared = prefixes();
  const machines = hosts();
  const ends = logs();
  const element = h("div", { class: "fleet" }, h("h1", {}, "Fleet"), summary, legend(BARS), pools, machines.element, latest.element, shared.element, ends.element);
  let watching = null;

  function update(now) {
    const workers = now.pools.reduce((sum, pool) => sum + pool.workers.length, 0);
    const speed = now.pools.flatMap((pool) => pool.workers).reduce((sum, worker) => sum + (decodingSpeed(worker) ?? 0), 0);
    say(summary, `${plural(workers, "worker")} in ${plural(now.pools.length, "pool")}, about ${compact(speed)} tokens/s. This API replica, ${now.replica}, has `
      + `${plural(now.in_flight, "request")}, ${now.held} of them waiting for a worker with room.`);
    machines.update(now.pools);
    keyed(pools, now.pools, (pool) => pool.pool, poolSection);
    latest.update(now.requests);
  }

  return {
    element,
    show() {
      watching = new AbortController();
      ends.load();
      watch("/admin/fleet", { kind: "admin", signal: watching.signal, show: update, failed: problem });
    },
    hide: () => watching?.abort(),
  };
}

function poolSection({ pool: name }) {
  const id = `pool-${name}`;
  const about = h("p", { class: "hint" });
  const cards = h("ul", { class: "cards" });
  const element = h("section", { "aria-labelledby": id }, h("h2", { id }, name), about, cards);
  return {
    element,
    update(pool) {
      const does = { both: "prefill and decode", prefill: "prefill", decode: "decode", encode: "encoding pictures for other workers" };
      say(about, `${pool.model} on ${pool.engine}: ${pool.task === "generate" ? (does[pool.role] ?? pool.role) : pool.task}`
        + (pool.workers.length ? "." : ". No worker is live.")
        + (pool.held ? ` ${plural(pool.held, "request")} waiting for room.` : ""));
      keyed(cards, [...pool.lost, ...pool.workers], (worker) => worker.id, (worker) => (worker.at ? lostCard(worker) : workerCard(worker)));
    },
  };
}

/** A worker that died: it is shown for a minute. */
function lostCard({ id }) {
  const about = h("p", { class: "hint" });
  return {
    element: h("li", { class: "card" }, h("div", { class: "row" }, h("h3", {}, id), h("span", { class: "state failed" }, "lost")), about),
    update: ({ at }) => say(about, `Found dead at ${clock(at)}: its requests go on elsewhere.`),
  };
}
