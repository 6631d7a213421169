// Play: a conversation with any model.

import { answerView } from "./answer.js";
import { attachments } from "./attachments.js";
import { chat, paint, transcribe } from "./chat.js";
import { answer, load, messages, save } from "./conversation.js";
import { announce, h, problem } from "./dom.js";
import { modelPicker } from "./models.js";
import { options } from "./options.js";
import { questionView, resultsView } from "./question.js";

const ASKED = { generate: chat, image: paint, transcribe };

export function page() {
  const log = h("section", { class: "log", "aria-label": "Conversation", tabindex: "0" });
  const question = h("textarea", { id: "question", rows: 2, placeholder: "Ask something. Enter sends, Shift+Enter begins a line." });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = h("button", { type: "button", $hidden: true, onclick: () => running?.abort() }, "Stop");
  const clear = h("button", { type: "button", onclick: () => forget() }, "New chat");
  const files = attachments();
  const parameters = options();
  const models = modelPicker((model) => {
    parameters.suit(model);
    files.suit(model);
    send.disabled = !model;
  });
  const form = h("form", { class: "ask" },
    h("label", { for: "question", class: "unseen" }, "Message"), question,
    h("div", { class: "actions" }, send, stop, clear, files.element));
  const element = h("div", { class: "play" },
    h("h1", { class: "unseen" }, "Play"),
    h("div", { class: "side" }, models.element, parameters.element),
    h("div", { class: "talk" }, log, form));
  const turns = [];
  let running = null; // an AbortController

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      ask();
    }
  });
  question.addEventListener("paste", (event) => files.add(event.clipboardData.files));
  element.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());

  function ask() {
    const text = question.value.trim();
    const model = models.current();
    if (running || !model) return;
    const taken = files.take();
    if (!text && !taken.length) return;
    question.value = "";
    add({ role: "user", text, files: taken });
    run();
  }

  /** Answers what was asked last. */
  function run() {
    const model = models.current();
    let turn;
    try {
      turn = answer(model.id, bodyOf(model), model.task === "generate" && !model.pipeline ? newKey() : "");
    } catch (error) {
      turn = { ...answer(model.id, {}, ""), failed: error.message, ended: true };
    }
    turn.task = model.task;
    go(turn, add(turn));
  }

  /** Throws: Error, for parameters that are no JSON. */
  function bodyOf(model) {
    const asked = turns.findLast(({ role }) => role === "user");
    if (model.task === "image") return { model: model.id, prompt: asked.text, ...parameters.ofPicture() };
    if (model.task === "transcribe") return { model: model.id, ...(asked.text ? { prompt: asked.text } : {}) };
    return { model: model.id, messages: [...parameters.system(), ...messages(turns)], ...parameters.ofChat() };
  }

  async function go(turn, view) {
    const growing = new MutationObserver(() => {
      if (log.scrollHeight - log.scrollTop - log.clientHeight < 200) log.scrollTop = log.scrollHeight;
    });
    growing.observe(view.element, { childList: true, subtree: true, characterData: true });
    running = new AbortController();
    busy(true);
    save(turns);
    try {
      if (!turn.ended) await ASKED[turn.task](turn, view, running.signal, asked(turn));
    } catch (error) {
      turn.failed = error.name === "AbortError" ? "Stopped." : error.message;
    }
    turn.ended = true;
    running = null;
    busy(false);
    if (!turns.includes(turn)) return; // the chat was left meanwhile
    save(turns);
    view.ended();
    follow(turn, view);
    announce(turn.failed || "The answer is complete.");
    requestAnimationFrame(() => growing.disconnect());
  }

  const asked = (turn) => turns[turns.indexOf(turn) - 1];

  /** Tools may have to say something. */
  function follow(turn, view) {
    if (turn.failed || !turn.calls.length || turns.at(-1) !== turn) return;
    view.askResults((said) => {
      add({ role: "tool", results: turn.calls.map(({ id, function: { name } }, i) => ({ id, name, content: said[i] })) });
      run();
    });
  }

  /** Shows one more turn. */
  function add(turn) {
    const at = turns.length;
    const view = turn.role === "user" ? questionView(turn, (text) => from(at, { ...turn, text }))
      : turn.role === "tool" ? resultsView(turn)
      : answerView(turn, { again: () => from(at), code: async () => (await import("./code.js")).showCode(turn, asked(turn)) });
    turns.push(turn);
    log.append(view.element);
    log.scrollTop = log.scrollHeight;
    return view;
  }

  /** Forgets the turns from that one on, and goes on from there. */
  function from(at, turn) {
    if (running || !models.current()) return;
    turns.length = at;
    while (log.childElementCount > at) log.lastElementChild.remove();
    if (turn) add(turn);
    run();
    question.focus();
  }

  function busy(now) {
    send.hidden = now;
    stop.hidden = !now;
  }

  function forget() {
    running?.abort();
    turns.length = 0;
    save(turns);
    log.replaceChildren();
    question.focus();
  }

  /** Shows what was kept; an answer that was under way goes on. */
  function restore() {
    let last = () => {};
    for (const turn of load()) {
      const view = add(turn);
      if (turn.role !== "assistant") continue;
      if (turn.ended) view.ended();
      else if (turn.key) go(Object.assign(turn, { sent: 0 }), view);
      else go(Object.assign(turn, { ended: true, failed: "The page was loaded again before its end." }), view);
      if (turn.ended) last = () => follow(turn, view);
    }
    last();
  }

  return {
    element,
    async show() {
      try {
        await models.load();
        if (!turns.length) restore();
        performance.mark("console-ready");
      } catch (error) {
        problem(error.message);
      }
    },
    hide() {}, // an answer goes on
  };
}

/** A name that nobody else has. `crypto.randomUUID` is not there on http of another machine. */
const newKey = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(36)).join("-");
