// One request: sends it, and takes its answer as it comes into a turn of the conversation.

import { blobOf } from "./attachments.js";
import { ApiError, ask, events } from "./api.js";
import { figuresOf } from "./figures.js";

const PATH = "/v1/chat/completions";
const AGAIN_MS = 1000;
const PASSES = new Set([502, 503, 504]); // what a proxy says meanwhile, or a replica that has just begun

/** A chat. It goes on without its reader, so that it is found again after a reload, and at another replica after a
 *  failure: `turn.key` names it. Throws: ApiError; AbortError, and then it is cancelled. */
export async function chat(turn, view, signal) {
  let last = ""; // the id of the last event
  const isKnown = () => turn.id || !turn.sent; // to the server: here, or before the page was loaded again
  while (true) {
    try {
      const response = await opened(turn, last, signal);
      turn.id = response.headers.get("x-xylem-kept") ?? turn.id;
      view.says("");
      if (!last) begin(turn);
      for await (const { id, data } of events(response)) {
        signal.throwIfAborted();
        last = id || last;
        if (data === null) return;
        take(data, turn);
        view.update();
      }
    } catch (error) {
      if (signal.aborted) {
        cancel(turn);
        throw error;
      }
      if (error.code === "kept_answers_full" && !turn.id) turn.key = ""; // then for this connection only
      else if (!turn.key || !isKnown() || (error instanceof ApiError && !PASSES.has(error.status))) throw error;
    }
    if (isKnown() && turn.key) {
      view.says("The connection is lost. Trying again …");
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
    if (signal.aborted) {
      cancel(turn);
      signal.throwIfAborted();
    }
  }
}

/** The response. What is stopped before it comes is cancelled when it does: its id is in its headers. */
async function opened(turn, last, signal) {
  const headers = { "x-xylem-explain": "1" };
  if (turn.key) headers["idempotency-key"] = turn.key;
  if (last) headers["last-event-id"] = last;
  const json = { ...turn.body, stream: true, stream_options: { include_usage: true } };
  const own = new AbortController(); // aborted with `signal`, once the id is known
  const asked = ask(PATH, { json, headers, signal: own.signal });
  const stopped = new Promise((_, reject) => { signal.addEventListener("abort", () => reject(signal.reason)); });
  try {
    const response = await Promise.race([asked, stopped]);
    signal.addEventListener("abort", () => own.abort());
    return response;
  } catch (error) {
    if (signal.aborted && turn.key) {
      asked.then((response) => cancel({ id: response.headers.get("x-xylem-kept") })).catch(() => {}).finally(() => own.abort());
    } else own.abort();
    throw error;
  }
}

function cancel({ id }) {
  if (id) ask(`${PATH}/${id}/cancel`, { method: "POST" }).catch(() => {}); // it has ended, or was not kept
}

/** Forgets what came: it comes again from the beginning. */
function begin(turn) {
  Object.assign(turn, { content: "", reasoning: "", calls: [], usage: null, finish: "", first: 0, last: 0 });
}

function take(chunk, turn) {
  turn.id = chunk.id ?? turn.id;
  turn.usage = chunk.usage ?? turn.usage;
  for (const { delta, finish_reason: finish } of chunk.choices ?? []) {
    if (add(delta, turn)) {
      turn.last = Date.now();
      turn.first ||= turn.last;
    }
    turn.finish = finish ?? turn.finish;
  }
  turn.figures = figuresOf(turn);
}

/** Whether the delta had anything. */
function add(delta, turn) {
  const thought = delta.reasoning_content ?? delta.reasoning ?? "";
  turn.reasoning += thought;
  turn.content += delta.content ?? "";
  for (const { index, id, function: called } of delta.tool_calls ?? []) {
    turn.calls[index] ??= { id, type: "function", function: { name: called.name, arguments: "" } };
    turn.calls[index].function.arguments += called.arguments ?? "";
  }
  return Boolean(thought || delta.content || delta.tool_calls?.length);
}

/** A picture of a text, with what can be seen of it earlier. */
export async function paint(turn, view, signal) {
  const json = { ...turn.body, stream: true, partial_images: 2 };
  const response = await ask("/v1/images/generations", { json, signal });
  for await (const { data } of events(response)) {
    if (data === null) break;
    turn.first ||= Date.now();
    turn.picture = data.b64_json;
    view.update();
  }
  turn.figures = [["first picture after", `${((turn.first - turn.sent) / 1000).toFixed(2)} s`],
    ["in all", `${((Date.now() - turn.sent) / 1000).toFixed(2)} s`]];
}

/** What is said in a sound. */
export async function transcribe(turn, view, signal, { files: [sound] }) {
  if (!sound) throw new Error("Add a sound: this model writes down what is said in it.");
  const form = new FormData();
  for (const [name, value] of Object.entries(turn.body)) form.append(name, value);
  form.append("file", blobOf(sound), sound.name);
  const response = await ask("/v1/audio/transcriptions", { method: "POST", body: form, signal });
  turn.content = (await response.json()).text;
  turn.figures = [["in all", `${((Date.now() - turn.sent) / 1000).toFixed(2)} s`]];
  view.update();
}
