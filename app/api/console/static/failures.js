// Why lines of a batch failed: the lines of its error file, by code and message.

import { ask } from "./api.js";
import { h } from "./dom.js";
import { count, plural } from "./format.js";

const MOST_LINES = 3; // named for each reason
const MOST_REASONS = 50;
const NOT_EXECUTED = new Set(["batch_cancelled", "batch_expired"]); // those lines did not fail: they were not begun

export function failures() {
  const element = h("div", { "aria-live": "polite" });
  return {
    element,
    async load(batch) {
      try {
        const of_lines = batch.error_file_id ? await read(batch.error_file_id) : [];
        const of_batch = (batch.errors?.data ?? []).map(({ code, message, line }) => ({ code, message, line: line ? `line ${line}` : "" }));
        const [failed, others] = [[], []];
        for (const one of [...of_batch, ...of_lines]) (NOT_EXECUTED.has(one.code) ? others : failed).push(one);
        const reasons = byReason(failed);
        const words = [others.length ? `${plural(others.length, "line")} not executed: the batch had ended.` : "",
          reasons.length > MOST_REASONS ? `The ${MOST_REASONS} most frequent of ${count(reasons.length)} reasons.` : ""].filter(Boolean);
        element.replaceChildren(...words.map((one) => h("p", { class: "hint" }, one)), ...(reasons.length ? [table(reasons.slice(0, MOST_REASONS))] : []));
      } catch (error) {
        element.replaceChildren(h("p", { class: "failed" }, error.message));
      }
    },
  };
}

async function read(file) {
  const text = await (await ask(`/v1/files/${file}/content`)).text();
  return text.split("\n").filter(Boolean).map((line) => reason(JSON.parse(line)));
}

/** Of a line that was not executed `error` says it, else the body of the refusal. */
function reason({ custom_id: line, error, response }) {
  const said = error ?? response?.body?.error ?? {};
  return { code: said.code ?? said.type ?? `status ${response?.status_code}`, message: said.message ?? "", line };
}

/** [{ code, message, lines }], the most frequent first. */
export function byReason(found) {
  const reasons = new Map();
  for (const { code, message, line } of found) {
    const reason = `${code}\n${message}`;
    if (!reasons.has(reason)) reasons.set(reason, { code, message, lines: [] });
    reasons.get(reason).lines.push(line);
  }
  return [...reasons.values()].sort((a, b) => b.lines.length - a.lines.length);
}

const table = (reasons) => h("div", { class: "wide", role: "region", "aria-label": "Failures", tabindex: "0" }, h("table", {},
  h("thead", {}, h("tr", {}, ["Code", "Message", "Lines", "For example"].map((name) => h("th", { scope: "col" }, name)))),
  h("tbody", {}, reasons.map(({ code, message, lines }) => h("tr", {},
    h("th", { scope: "row" }, code), h("td", { class: "broken" }, message), h("td", {}, count(lines.length)),
    h("td", {}, lines.slice(0, MOST_LINES).filter(Boolean).join(", ")))))));
