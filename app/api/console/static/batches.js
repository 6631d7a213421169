// Batches: upload, progress, pause, resume, cancel, results, and failures by reason.

import { watch } from "./api.js";
import { batchCard } from "./batch.js";
import { h, keyed, problem, say } from "./dom.js";
import { upload } from "./upload.js";

export function page() {
  const none = h("p", { class: "hint" }, "There are no batches yet.");
  const list = h("ul", { class: "cards wider", "aria-label": "Batches" });
  const element = h("div", { class: "batches" }, h("h1", {}, "Batches"), upload(), h("h2", {}, "Your batches"), none, list);
  let watching = null;

  function update({ data, has_more: more }) {
    none.hidden = data.length > 0 && !more;
    say(none, data.length ? `The newest ${data.length}: xylem batch list shows more.` : "There are no batches yet.");
    keyed(list, data, (batch) => batch.id, batchCard);
  }

  return {
    element,
    show() {
      watching = new AbortController();
      watch("/v1/batches?limit=50", { kind: "api", signal: watching.signal, show: update, failed: problem });
    },
    hide: () => watching?.abort(),
  };
}
