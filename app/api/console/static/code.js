// The request of an answer as a program: curl, Python, JavaScript.

import { ROOT } from "./api.js";
import { copyButton, h } from "./dom.js";
import { key } from "./keys.js";

const LONG = 300; // characters of a text that is shown in full
const CALLS = { // of a task: its path, the method of OpenAI's clients, and where its answer is
  generate: ["/chat/completions", "chat.completions.create", "answer.choices[0].message.content"],
  image: ["/images/generations", "images.generate", "answer.data[0].b64_json"],
  transcribe: ["/audio/transcriptions", "audio.transcriptions.create", "answer.text"],
};
const FORMS = { curl, Python: python, JavaScript: javascript };

/** Opens a dialog. `asked`: the question's turn. */
export function showCode(turn, asked) {
  const call = { task: turn.task, body: turn.body, file: asked?.files[0]?.name };
  const shown = h("code", {});
  const pre = h("pre", { tabindex: "0" }, shown);
  const choices = Object.entries(FORMS).map(([name, write]) => {
    const radio = h("input", { type: "radio", name: "language", id: `language-${name}`, onchange: () => { shown.textContent = write(call); } });
    return [radio, h("label", { for: radio.id }, name)];
  });
  const element = h("dialog", { class: "broad", "aria-labelledby": "code-title", onclose: () => element.remove() },
    h("h2", { id: "code-title" }, "This request as code"),
    h("div", { class: "choices", role: "radiogroup", "aria-labelledby": "code-title" }, choices), pre,
    h("div", { class: "actions" }, copyButton("Copy code", () => shown.textContent),
      h("button", { type: "button", onclick: () => element.close() }, "Close")));
  document.body.append(element);
  choices[0][0].click();
  element.showModal();
}

const base = () => `${location.origin}${ROOT}/v1`;

/** Long pictures and sounds are cut: they would fill the page. */
const short = (value) => JSON.parse(JSON.stringify(value, (name, one) => (
  typeof one === "string" && one.length > LONG && (one.startsWith("data:") || name === "data") ? `${one.slice(0, 40)}…` : one)));

function curl({ task, body, file }) {
  const url = `curl ${base()}${CALLS[task][0]}`;
  const bearer = key("api") ? ' -H "Authorization: Bearer $XYLEM_API_KEY"' : "";
  if (task === "transcribe") return `${url}${bearer} ${Object.entries(body).map(([name, value]) => `-F ${quoted(`${name}=${value}`)}`).join(" ")} -F ${quoted(`file=@${file}`)}`;
  return `${url}${bearer} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(short(body), null, 2))}`;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function python({ task, body, file }) {
  const ours = new Set(["num_inference_steps", "seed"]); // OpenAI's client has no such argument for pictures
  const all = Object.entries(short(body));
  const own = task === "image" ? all.filter(([name]) => ours.has(name)) : [];
  const lines = all.filter((pair) => !own.includes(pair)).map(([name, value]) => `    ${name}=${literal(value)},\n`);
  if (own.length) lines.push(`    extra_body=${literal(Object.fromEntries(own))},\n`);
  if (task === "transcribe") lines.push(`    file=open(${literal(file)}, "rb"),\n`);
  return `${key("api") ? "import os\n\n" : ""}from openai import OpenAI\n\n`
    + `client = OpenAI(base_url="${base()}", api_key=${key("api") ? 'os.environ["XYLEM_API_KEY"]' : '"none"'})\n`
    + `answer = client.${CALLS[task][1]}(\n${lines.join("")})\nprint(${CALLS[task][2]})\n`;
}

function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

function javascript({ task, body, file }) {
  const fields = JSON.stringify(short(body), null, 2);
  const given = task === "transcribe" ? `{ ...${fields}, file: fs.createReadStream(${JSON.stringify(file)}) }` : fields;
  return `${task === "transcribe" ? 'import fs from "node:fs";\n' : ""}import OpenAI from "openai";\n\n`
    + `const client = new OpenAI({ baseURL: "${base()}", apiKey: ${key("api") ? "process.env.XYLEM_API_KEY" : '"none"'} });\n`
    + `const answer = await client.${CALLS[task][1]}(${given});\n`
    + `console.log(${CALLS[task][2]});\n`;
}
