// A worker's card.

import { setStack, stack } from "./bars.js";
import { h, say } from "./dom.js";
import { bytes, compact, count, percent, plural, seconds } from "./format.js";
import { decodingSpeed } from "./hosts.js";

export function workerCard({ id }) {
  const state = h("span", { class: "state" });
  const host = h("p", { class: "hint" });
  const byLoad = h("p", { class: "hint", $hidden: true });
  const seats = meter("Running requests");
  const blocks = meter("KV blocks in use");
  const cached = meter("KV blocks cached");
  const facts = h("dl", { class: "figures" });
  const element = h("li", { class: "card" },
    h("div", { class: "row" }, h("h3", {}, id), state), host, byLoad, seats.element, blocks.element, cached.element, facts);
  return {
    element,
    update(worker) {
      say(state, worker.state);
      state.className = `state ${worker.state}`;
      say(host, `${worker.host}, ${worker.engine}${worker.ranks > 1 ? `, ${worker.ranks} ranks` : ""}`
        + `${worker.weights ? `, weights ${worker.weights}` : ""}${worker.adapters.length ? `, ${worker.adapters.length} adapters` : ""}`);
      byLoad.hidden = !worker.by_load;
      say(byLoad, worker.by_load);
      showSeats(seats, worker);
      if (worker.blocks.total > 1) showBlocks(blocks, cached, worker.blocks); // painters have none
      showFacts(facts, worker);
    },
  };
}

function meter(name) {
  const value = h("span", { class: "figure" });
  const bar = stack([], name);
  return { element: h("div", { class: "meter", $hidden: true }, h("div", { class: "row" }, h("span", {}, name), value), bar), value, bar, name };
}

function show(meter, text, parts) {
  meter.element.hidden = false;
  say(meter.value, text);
  setStack(meter.bar, parts, `${meter.name}: ${text}`);
}

function showSeats(meter, { running, waiting, seats }) {
  show(meter, `${count(running)} of ${count(seats)}${waiting ? `, ${count(waiting)} waiting` : ""}`,
    [{ kind: "held", share: running / Math.max(seats, running) }]);
}

function showBlocks(held, cached, { total, held: used, lent, cached: known }) {
  show(held, `${compact(used)} of ${compact(total)}${lent ? `, ${compact(lent)} kept for decode workers` : ""}`,
    [{ kind: "held", share: (used - lent) / total }, { kind: "lent", share: lent / total }]);
  if (known === null) cached.element.hidden = true;
  else show(cached, `${compact(known)} of ${compact(total)}`, [{ kind: "cached", share: known / total }]);
}

function showFacts(list, worker) {
  const { aside, reserved, speeds } = worker;
  const decoding = decodingSpeed(worker);
  const rows = [
    ["queue", `${plural(reserved.without_first_token, "request")}, ${compact(reserved.tokens_to_compute)} tokens`],
    ["decode", decoding === null ? "–" : `about ${compact(decoding)} tokens/s`],
    ["prefill", speeds.prefill_tokens_per_s ? `${compact(speeds.prefill_tokens_per_s)} tokens/s` : "–"],
    ["time in prefill", percent(speeds.busy)],
    ["time per request", speeds.request_s ? seconds(speeds.request_s) : "–"],
  ];
  if (aside) rows.push(["preemptible", plural(aside, "request")]);
  if (reserved.blocks_to_pull) rows.push(["to pull", `${compact(reserved.blocks_to_pull)} blocks`]);
  if (speeds.pulled_bytes_per_s) rows.push(["KV pulled", `${bytes(speeds.pulled_bytes_per_s)}/s`]);
  if (speeds.host_bytes_per_s) rows.push(["KV from host", `${bytes(speeds.host_bytes_per_s)}/s`]);
  if (speeds.store_bytes_per_s) rows.push(["KV from store", `${bytes(speeds.store_bytes_per_s)}/s`]);
  while (list.childElementCount < rows.length) list.append(h("div", {}, h("dt"), h("dd")));
  while (list.childElementCount > rows.length) list.lastElementChild.remove();
  rows.forEach(([name, value], i) => {
    say(list.children[i].firstElementChild, name);
    say(list.children[i].lastElementChild, value);
  });
}
