// Play: a conversation with any model.

import { answerView } from "./answer.js";
import { chat, paint } from "./chat.js";
import { announce, h, problem } from "./dom.js";
import { modelPicker } from "./models.js";
import { options } from "./options.js";
import { pictureInput } from "./pictures.js";

export function page() {
  const log = h("section", { class: "log", "aria-label": "Conversation", tabindex: "0" });
  const question = h("textarea", { id: "question", rows: 3, placeholder: "Ask something. Enter sends, Shift+Enter begins a line." });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = h("button", { type: "button", $hidden: true, onclick: () => running?.abort() }, "Stop");
  const clear = h("button", { type: "button", onclick: () => forget() }, "New chat");
  const pictures = pictureInput();
  const parameters = options();
  const models = modelPicker((model) => {
    parameters.suit(model);
    pictures.suit(model);
    send.disabled = !model;
  });
  const form = h("form", { class: "ask" },
    h("label", { for: "question", class: "unseen" }, "Message"), question,
    h("div", { class: "actions" }, send, stop, clear, pictures.element));
  const element = h("div", { class: "play" },
    h("h1", { class: "unseen" }, "Play"),
    h("div", { class: "side" }, models.element, parameters.element),
    h("div", { class: "talk" }, log, form));
  let messages = [];
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
  question.addEventListener("paste", (event) => pictures.add(event.clipboardData.files));
  element.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());

  function ask() {
    const text = question.value.trim();
    if (!text || running || !models.current()) return;
    const added = pictures.take();
    question.value = "";
    log.append(h("article", { class: "question", "aria-label": "Your message" },
      h("div", { class: "text" }, text), added.map((one) => h("img", { src: one.url, alt: one.name }))));
    const parts = added.map(({ url }) => ({ type: "image_url", image_url: { url } }));
    const content = parts.length ? [...parts, { type: "text", text }] : text;
    answer([{ role: "user", content }], text);
  }

  /** Sends what is `added` to the conversation; if that fails, it is not in it. */
  async function answer(added, prompt) {
    const model = models.current();
    const view = answerView(model.id);
    log.append(view.element);
    log.scrollTop = log.scrollHeight;
    const growing = new MutationObserver(() => {
      if (log.scrollHeight - log.scrollTop - log.clientHeight < 200) log.scrollTop = log.scrollHeight;
    });
    growing.observe(view.element, { childList: true, subtree: true, characterData: true });
    running = new AbortController();
    busy(true);
    try {
      if (model.task === "image") {
        await paint({ model: model.id, prompt, ...parameters.ofPicture() }, view, running.signal);
      } else {
        const asked = [...messages, ...added];
        const body = { model: model.id, messages: [...parameters.system(), ...asked], ...parameters.ofChat() };
        const message = await chat(body, view, running.signal);
        messages = [...asked, message];
        if (message.tool_calls) view.askResults(message.tool_calls, (said) => answer(results(message.tool_calls, said), ""));
      }
      announce("The answer is complete.");
    } catch (error) {
      const stopped = error.name === "AbortError";
      view.failed(stopped ? "Stopped." : error.message);
      announce(stopped ? "Stopped." : `It failed: ${error.message}`);
    } finally {
      running = null;
      busy(false);
      setTimeout(() => growing.disconnect());
    }
  }

  function busy(now) {
    send.hidden = now;
    stop.hidden = !now;
  }

  function forget() {
    running?.abort();
    messages = [];
    log.replaceChildren();
    question.focus();
  }

  return {
    element,
    async show() {
      try {
        await models.load();
        performance.mark("console-ready");
      } catch (error) {
        problem(error.message);
      }
    },
    hide() {}, // an answer goes on
  };
}

const results = (calls, said) => calls.map(({ id }, i) => ({ role: "tool", tool_call_id: id, content: said[i] }));
