// The turns of the conversation. They are kept in the tab's sessionStorage, and so survive a reload.

import { partOf } from "./attachments.js";
import { announce } from "./dom.js";

const KEPT = "xylem.chat";

/** Turns: `{role: "user", text, files}`, `{role: "tool", results: [{id, name, content}]}`, and answers, as `answer` makes them. */
export function load() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) ?? [];
  } catch {
    return []; // of another version
  }
}

export function save(turns) {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(turns));
  } catch { // it has some 5 MB
    sessionStorage.removeItem(KEPT);
    announce("This chat is too large to be kept when the page is loaded again.");
  }
}

/** A new answer. `key`: the name under which it goes on without its reader; "": it doesn't. */
export const answer = (model, body, key) => ({
  role: "assistant", model, body, key, sent: Date.now(), id: "", ended: false, failed: "",
  content: "", reasoning: "", calls: [], figures: [],
});

/** What the model is told of the turns. */
export function messages(turns) {
  const told = [];
  for (const turn of turns) {
    if (turn.role === "user") told.push({ role: "user", content: contentOf(turn) });
    else if (turn.role === "tool") told.push(...turn.results.map(({ id, content }) => ({ role: "tool", tool_call_id: id, content })));
    else if (turn.content || turn.calls.length) {
      told.push({ role: "assistant", content: turn.content, ...(turn.calls.length ? { tool_calls: turn.calls } : {}) });
    } else if (told.at(-1)?.role === "user") told.pop(); // it was not answered: templates want questions and answers in turn
  }
  return told;
}

function contentOf({ text, files }) {
  if (!files.length) return text;
  return [...files.map(partOf), ...(text ? [{ type: "text", text }] : [])];
}
