// One request: sends it, and shows its answer as it comes.

import { ask, events } from "./api.js";
import { figuresOf } from "./answer.js";

const EXPLAIN = { "x-xylem-explain": "1" };

/** A chat's answer, as the message that it adds to the conversation. Throws: ApiError, and AbortError. */
export async function chat(body, view, signal) {
  const told = { sent: performance.now(), first: 0, last: 0, usage: null, finish: "" };
  const message = { role: "assistant", content: "" };
  let id = "";
  try {
    const json = { ...body, stream: true, stream_options: { include_usage: true } };
    const response = await ask("/v1/chat/completions", { json, headers: EXPLAIN, signal });
    view.route(routeOf(response));
    for await (const chunk of events(response)) {
      id = chunk.id ?? id;
      told.usage = chunk.usage ?? told.usage;
      for (const { delta, finish_reason: finish } of chunk.choices ?? []) {
        if (add(delta, message, view)) {
          told.last = performance.now();
          told.first ||= told.last;
        }
        told.finish = finish ?? told.finish;
      }
    }
  } finally {
    view.figures(figuresOf(told));
    view.ended(id);
  }
  return message;
}

/** Whether the delta had anything. */
function add(delta, message, view) {
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (thought) view.addReasoning(thought);
  if (delta.content) {
    message.content += delta.content;
    view.addText(delta.content);
  }
  for (const { index, id, function: called } of delta.tool_calls ?? []) {
    message.tool_calls ??= [];
    message.tool_calls[index] ??= { id, type: "function", function: { name: called.name, arguments: "" } };
    message.tool_calls[index].function.arguments += called.arguments ?? "";
    view.addCall(index, message.tool_calls[index].function.name, called.arguments ?? "");
  }
  return Boolean(thought || delta.content || delta.tool_calls?.length);
}

/** A picture of a text, with what can be seen of it earlier. */
export async function paint(body, view, signal) {
  const told = { sent: performance.now(), first: 0, last: 0, usage: null, finish: "" };
  try {
    const response = await ask("/v1/images/generations", { json: { ...body, stream: true, partial_images: 2 }, headers: EXPLAIN, signal });
    view.route(routeOf(response));
    for await (const event of events(response)) {
      told.first ||= performance.now();
      view.picture(event.b64_json, body.prompt);
    }
  } finally {
    view.figures([["first picture after", figuresOf(told)[0][1]],
      ["in all", `${((performance.now() - told.sent) / 1000).toFixed(2)} s`]]);
    view.ended("");
  }
}

function routeOf(response) {
  const said = response.headers.get("x-xylem-route");
  return said ? JSON.parse(said)[0] : null;
}
