// A file of requests becomes a batch: dropped or chosen, looked at, uploaded, submitted.

import { read } from "./api.js";
import { announce, h, say } from "./dom.js";
import { bytes, count } from "./format.js";

const WINDOWS = [["1h", "an hour"], ["8h", "8 hours"], ["24h", "a day"], ["7d", "a week"]];
const FIRST_BYTES = 256 * 1024; // enough for the first line

export function upload() {
  const input = h("input", { type: "file", id: "batch-file", accept: ".jsonl,.ndjson,.json,application/jsonl", class: "unseen" });
  const zone = h("label", { for: "batch-file", class: "zone" }, "Drop a file of requests here, or choose one (JSON lines)");
  const window_ = h("select", { id: "window" }, WINDOWS.map(([value, text]) => h("option", { value, $selected: value === "24h" }, text)));
  const about = h("p", { role: "status" });
  const submit = h("button", { type: "submit", class: "primary", disabled: true }, "Submit the batch");
  const form = h("form", { class: "upload", "aria-label": "A new batch" }, input, zone,
    h("div", { class: "actions" }, h("label", { for: "window" }, "Completion window"), window_, submit), about);
  let chosen = null; // { file, endpoint }

  async function choose(file) {
    if (!file) return;
    chosen = null;
    try {
      const { endpoint, lines } = await lookAt(file);
      chosen = { file, endpoint };
      say(about, `${file.name}: ${bytes(file.size)}${lines ? `, ${count(lines)} lines` : ""}, for ${endpoint}.`);
    } catch (error) {
      say(about, `${file.name}: ${error.message}`);
    }
    submit.disabled = !chosen;
  }

  input.addEventListener("change", () => choose(input.files[0]));
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      zone.classList.toggle("over", kind === "dragenter" || kind === "dragover");
      if (kind === "drop") choose(event.dataTransfer.files[0]);
    });
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!chosen) return;
    submit.disabled = true;
    say(about, `Uploading ${chosen.file.name} …`);
    try {
      const body = new FormData();
      body.append("purpose", "batch");
      body.append("file", chosen.file, chosen.file.name);
      const file = await read("/v1/files", { method: "POST", body });
      const batch = await read("/v1/batches", {
        json: { input_file_id: file.id, endpoint: chosen.endpoint, completion_window: window_.value },
      });
      say(about, `Submitted as ${batch.id}.`);
      announce("The batch is submitted.");
      chosen = null;
      input.value = "";
    } catch (error) {
      say(about, `Not submitted: ${error.message}`);
      submit.disabled = false;
    }
  });
  return form;
}

/** The endpoint that the first line names, and how many lines a small file has. Throws: Error, if it is no such file. */
async function lookAt(file) {
  const text = await file.slice(0, FIRST_BYTES).text();
  const lines = text.split("\n").filter((line) => line.trim());
  if (!lines.length) throw new Error("it is empty.");
  let first;
  try {
    first = JSON.parse(lines[0]);
  } catch (error) {
    if (lines.length > 1 || file.size <= FIRST_BYTES) throw new Error(`its first line is not JSON: ${error.message}`);
    throw new Error("its first line is too long to be looked at here: use xylem batch submit.");
  }
  if (typeof first?.url !== "string") throw new Error('its first line has no "url", such as /v1/chat/completions.');
  return { endpoint: first.url, lines: file.size <= FIRST_BYTES ? lines.length : 0 };
}
