// A batch's card.

import { ask, read } from "./api.js";
import { setStack, stack } from "./bars.js";
import { h, problem, say } from "./dom.js";
import { failures } from "./failures.js";
import { compact, count, date, percent } from "./format.js";

const LIVE = ["validating", "in_progress", "finalizing", "cancelling"];

export function batchCard({ id }) {
  const state = h("span", { class: "state" });
  const about = h("p", { class: "hint" });
  const bar = stack([], "Lines");
  const counts = h("p", {});
  const reasons = failures();
  const buttons = {
    pause: button("Pause", id, () => change("pause")),
    resume: button("Resume", id, () => change("resume")),
    cancel: button("Cancel", id, () => change("cancel")),
    results: button("Results", id, () => save(latest.output_file_id, `${id}.jsonl`)),
    errors: button("Error file", id, () => save(latest.error_file_id, `${id}-failed.jsonl`)),
    reasons: button("Failures by reason", id, () => reasons.load(latest)),
  };
  let latest = null;
  const element = h("li", { class: "card" },
    h("div", { class: "row" }, h("h3", {}, id), state), about, bar, counts,
    h("div", { class: "actions" }, Object.values(buttons)), reasons.element);

  async function change(what) {
    try {
      update(await read(`/v1/batches/${id}/${what}`, { method: "POST" }));
      problem("");
    } catch (error) {
      problem(error.message);
    }
  }

  function update(batch) {
    latest = batch;
    const { total, completed, failed } = batch.request_counts;
    const shown = batch.paused && LIVE.includes(batch.status) ? "paused" : batch.status.replace("_", " ");
    say(state, shown);
    state.className = `state ${shown.replace(" ", "-")}`;
    say(about, `${batch.model ?? "model not known yet"}, ${batch.endpoint}; from ${date(batch.created_at)}, until ${date(batch.expires_at)}`);
    const others = batch.not_executed;
    setStack(bar, [{ kind: "held", share: completed / total }, { kind: "bad", share: (failed - others) / total }, { kind: "wait", share: others / total }],
      `${percent(total ? (completed + failed) / total : 0)} of the lines have ended`);
    say(counts, `${count(completed)} of ${count(total)} lines answered, ${count(failed - others)} failed`
      + `${others ? `, ${count(others)} ${batch.status === "expired" ? "expired" : "cancelled"}` : ""}; `
      + `${compact(batch.usage.input_tokens)} tokens in, ${compact(batch.usage.input_tokens_details.cached_tokens)} of them cached, `
      + `${compact(batch.usage.output_tokens)} out`);
    const runs = ["validating", "in_progress"].includes(batch.status);
    buttons.pause.hidden = !runs || batch.paused;
    buttons.resume.hidden = !runs || !batch.paused;
    buttons.cancel.hidden = !runs;
    buttons.results.hidden = !batch.output_file_id;
    buttons.errors.hidden = !batch.error_file_id;
    buttons.reasons.hidden = !batch.error_file_id && !batch.errors;
  }
  return { element, update };
}

const button = (text, id, onclick) => h("button", { type: "button", "aria-label": `${text}: ${id}`, onclick }, text);

async function save(file, name) {
  try {
    const url = URL.createObjectURL(await (await ask(`/v1/files/${file}/content`)).blob());
    h("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } catch (error) {
    problem(error.message);
  }
}
