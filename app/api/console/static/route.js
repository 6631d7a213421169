// Why a request was placed where it was, as bars.

import { read } from "./api.js";
import { legend, stack } from "./bars.js";
import { h } from "./dom.js";
import { count, seconds } from "./format.js";

const PARTS = [["wait", "wait"], ["prefill", "computing the prompt"], ["others", "delay to other requests"]];

/** Loads it; also shows why there is none. */
export async function routeOf(id) {
  try {
    const { prompts: [{ route }] } = await read(`/requests/${encodeURIComponent(id)}`);
    return route ? routeView(route) : h("p", {}, "It is not known: another API replica took the answer over.");
  } catch (error) {
    return h("p", { class: "failed" }, error.message);
  }
}

/** `route`: of one prompt. */
function routeView(route) {
  const candidates = route.candidates ?? [];
  const most = Math.max(...candidates.map(total), 1e-9);
  const rows = candidates.map((one) => candidate(one, one.worker === route.worker && one.rank === route.rank, most, route.policy));
  return h("div", { class: "route" },
    h("p", {}, summary(route)),
    route.prefill ? h("p", {}, prefilled(route)) : null,
    rows.length ? legend(route.policy === "kv" ? PARTS : [["wait", `cost by the policy ${route.policy}`]]) : null,
    h("ol", { class: "candidates" }, rows));
}

const total = ({ wait, prefill, others, saves = 0 }) => wait + prefill + others - saves;

function summary(route) {
  const attempt = route.attempt ? ` Attempt ${route.attempt + 1}.` : "";
  return `Worker ${place(route)} of ${route.pool}: ${count(route.blocks_cached)} blocks of the prompt were cached there, `
    + `${count(route.tokens_to_compute)} tokens to compute.${attempt}`;
}

function prefilled({ prefill, blocks_to_pull }) {
  return `Its prompt was computed by worker ${place(prefill)} of ${prefill.pool} (${count(prefill.blocks_cached)} blocks cached, `
    + `${count(prefill.tokens_to_compute)} tokens to compute); ${count(blocks_to_pull)} blocks of KV to pull.`;
}

const place = ({ worker, rank }) => (rank ? `${worker}, rank ${rank}` : worker);

function candidate(one, chosen, most, policy) {
  const costs = policy === "kv"
    ? PARTS.map(([kind, text]) => `${text} ${seconds(one[kind])}`).join(", ")
    : `cost ${one.wait}`;
  const state = `${count(one.blocks_cached)} blocks cached`
    + (one.blocks_coming > 0 ? `, ${count(one.blocks_coming)} coming` : "")
    + (one.blocks_in_host || one.blocks_in_store ? `, ${count(one.blocks_in_host)} in host memory, ${count(one.blocks_in_store)} stored` : "")
    + `; ${count(one.requests)} requests, ${count(one.queued_tokens)} tokens queued`;
  return h("li", { class: chosen ? "chosen" : null },
    h("div", { class: "row" }, h("b", {}, `${place(one)}${chosen ? " (chosen)" : ""}`),
      h("span", { class: "figure" }, policy === "kv" ? seconds(total(one)) : String(one.wait))),
    stack(PARTS.map(([kind]) => ({ kind, share: one[kind] / most })), costs),
    h("p", { class: "hint" }, `${costs}. ${state}.`));
}
