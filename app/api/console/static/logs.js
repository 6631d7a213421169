// The ends of the logs of xylem up's processes, where this API was started by it.

import { read } from "./api.js";
import { h, newId } from "./dom.js";
import { bytes } from "./format.js";

export function logs() {
  const heading = newId("logs");
  const process = h("select", { id: newId("process"), onchange: () => show() });
  const text = h("pre", { class: "log-end", role: "region", tabindex: "0", "aria-label": "End of the log" });
  const again = h("button", { type: "button", onclick: () => show() }, "Show");
  const element = h("section", { "aria-labelledby": heading, $hidden: true }, h("h2", { id: heading }, "Logs"),
    h("div", { class: "actions" }, h("label", { for: process.id }, "Process"), process, again), text);

  async function show() {
    try {
      const { lines } = await read(`/admin/logs/${encodeURIComponent(process.value)}`, { kind: "admin" });
      text.textContent = lines.join("\n") || "It has logged nothing.";
      text.scrollTop = text.scrollHeight;
      again.textContent = "Refresh";
    } catch (error) {
      text.textContent = error.message;
    }
  }

  return {
    element,
    async load() {
      const { data } = await read("/admin/logs", { kind: "admin" }).catch(() => ({ data: [] }));
      const before = process.value;
      process.replaceChildren(...data.map(({ name, bytes: size }) => h("option", { value: name }, `${name} (${bytes(size)})`)));
      if (data.some(({ name }) => name === before)) process.value = before;
      element.hidden = !data.length;
    },
  };
}
