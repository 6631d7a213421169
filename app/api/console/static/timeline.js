// The timeline of a request: GET /requests/{id}, as one bar for each stage.

import { legend } from "./bars.js";
import { read } from "./api.js";
import { h } from "./dom.js";
import { bytes, clock, count, seconds } from "./format.js";

const KINDS = [["wait", "waiting"], ["prefill", "prefill"], ["transfer", "KV transfer"], ["decode", "decode"]];

/** Loads it; also shows why there is none. `kind`: whose key. */
export async function timeline(id, kind) {
  try {
    const { prompts } = await read(`/requests/${encodeURIComponent(id)}`, { kind });
    return h("div", { class: "timeline" }, legend(KINDS), prompts.map((prompt, i) => promptView(prompt, i, prompts.length)));
  } catch (error) {
    return h("p", { class: "failed" }, error.message);
  }
}

function promptView(prompt, number, among) {
  const title = among > 1 ? h("h4", {}, `Prompt ${number + 1}`) : null;
  return prompt.outcome ? h("div", {}, title, ended(prompt)) : h("div", {}, title, h("p", {}, underWay(prompt)));
}

const underWay = (p) => `It is ${p.state}${p.workers.length ? ` on ${p.workers.join(", ")}` : ""}: ${count(p.prompt_tokens)} tokens of prompt, `
  + `${count(p.answer_tokens)} of the answer${p.attempts > 1 ? `, attempt ${p.attempts}` : ""}.`;

function ended(prompt) {
  const attempts = prompt.attempts > 1
    ? ` It moved to another worker ${times(prompt.attempts - 1)}; the times below are those of the last attempt.` : "";
  const rows = stages(prompt);
  return h("div", {},
    h("p", {}, `${prompt.model}: ${prompt.outcome}, arrived at ${clock(prompt.arrived)}, ${count(prompt.prompt_tokens)} tokens of prompt, `
      + `${seconds(prompt.ended_s)} in all.${attempts}`),
    h("ol", { class: "stages" }, rows.map((stage) => row(stage, prompt.ended_s))));
}

const times = (n) => (n === 1 ? "once" : n === 2 ? "twice" : `${n} times`);

/** [{ name, kind, from, to, where }], in seconds since the request's arrival. */
export function stages(prompt) {
  const placed = prompt.placed_s;
  if (placed === null) return [];
  const found = [{ name: "placed", kind: "wait", from: 0, to: placed, where: "" }];
  let before = placed;
  prompt.workers.forEach((part, i) => {
    const last = i === prompt.workers.length - 1;
    const name = i ? "hop" : "queue";
    found.push({ name, kind: "wait", from: before, to: part.taken_s, where: "" });
    const first = part.first_token_s;
    if (first !== null) found.push({ ...work(part, i), from: part.taken_s, to: first, where: part.worker });
    if (last) found.push({ name: "decode", kind: "decode", from: first ?? part.taken_s, to: part.ended_s, where: part.worker });
    before = part.ended_s;
  });
  return found.map((stage) => ({ ...stage, to: Math.max(stage.from, stage.to) }));
}

function work(part, i) {
  if (part.pulled) {
    const { size, seconds: took } = part.pulled;
    const moved = size ? ` of ${bytes(size)}${took ? ` in ${seconds(took)}` : ""}` : "";
    return { name: `KV transfer${moved} and first token`, kind: "transfer" };
  }
  if (part.handoff_refused) return { name: `prefill here: the handoff was refused (${part.handoff_refused})`, kind: "prefill" };
  return { name: i ? "resume" : "prefill, to the first token", kind: "prefill" };
}

function row({ name, kind, from, to, where }, whole) {
  const bar = h("span", { class: `part ${kind}` });
  bar.style.marginInlineStart = `${(from / (whole || 1)) * 100}%`;
  bar.style.width = `${((to - from) / (whole || 1)) * 100}%`;
  return h("li", {},
    h("div", { class: "row" }, h("span", {}, where ? `${name}, ${where}` : name),
      h("span", { class: "figure" }, `${seconds(to - from)}, from ${seconds(from)}`)),
    h("div", { class: "bar", "aria-hidden": "true" }, bar));
}
