// Requests to this server, with the keys that were entered, and streams of events.

import { askForKeys, authorisation } from "./keys.js";

const AGAIN_MS = 2000;

/** The path below which this server is, behind a proxy; else "". This file is two folders below it. */
export const ROOT = new URL("../..", import.meta.url).pathname.replace(/\/$/, "");

/** The server refused. */
export class ApiError extends Error {
  constructor(status, message, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The response. `kind`: whose key: "api" or "admin". Throws: ApiError; TypeError without a connection. */
export async function ask(path, { kind = "api", json, headers = {}, ...options } = {}) {
  const body = json === undefined ? {} : { method: "POST", body: JSON.stringify(json) };
  const typed = json === undefined ? {} : { "content-type": "application/json" };
  const response = await fetch(ROOT + path, { ...body, ...options, headers: { ...typed, ...authorisation(kind), ...headers } });
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  const message = said?.error?.message ?? `The server answered ${response.status}.`;
  if (response.status === 401 || (response.status === 403 && kind === "admin")) askForKeys(kind, message);
  throw new ApiError(response.status, message, said?.error?.code);
}

/** The JSON of an answer. */
export const read = async (path, options) => (await ask(path, options)).json();

/** The server-sent events of a response: `{id, data}`, parsed; `data` is null at the end. Throws: ApiError, if one tells an error. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
      text += value;
      const ended = text.split("\n\n");
      text = ended.pop();
      for (const event of ended) {
        const lines = event.split("\n");
        const field = (name) => lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2)).join("\n");
        if (!field("data")) continue;
        const data = field("data") === "[DONE]" ? null : JSON.parse(field("data"));
        if (data?.error) throw new ApiError(response.status, data.error.message, data.error.code);
        yield { id: field("id"), data };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Calls `show` with each event, and connects again, until `signal` says to stop. `failed`: with "" when it goes on.
 *  A refusal for want of a key ends it: the keys' event begins it anew. */
export async function watch(path, { kind, signal, show, failed }) {
  while (!signal.aborted) {
    try {
      const response = await ask(path, { kind, signal, headers: { accept: "text/event-stream" } });
      failed("");
      for await (const { data } of events(response)) show(data);
    } catch (error) {
      if (signal.aborted) return;
      failed(error instanceof ApiError ? error.message : "The server does not answer. Trying again.");
      if (error.status === 401 || error.status === 403) return;
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}
