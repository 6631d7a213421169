// A question of the conversation, and what tools said: read, copied, changed.

import { copyButton, h } from "./dom.js";

/** `edited(text)`: asks it again with another text, and forgets what came after it. */
export function questionView(turn, edited) {
  const text = h("div", { class: "plain" }, turn.text);
  const edit = h("button", { type: "button", class: "small", onclick: () => change() }, "Edit");
  const buttons = h("div", { class: "actions" }, copyButton("Copy message", () => turn.text), edit);
  const element = h("article", { class: "question", "aria-label": "Your message" }, turn.files.map(fileView), text, buttons);

  function change() {
    const area = h("textarea", { "aria-label": "Changed message", rows: 3, $value: turn.text });
    const form = h("form", {}, area, h("div", { class: "actions" },
      h("button", { type: "submit", class: "primary" }, "Send again"),
      h("button", { type: "button", onclick: () => done() }, "Cancel")));
    const done = () => {
      form.replaceWith(text);
      buttons.hidden = false;
      edit.focus();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (area.value.trim()) edited(area.value.trim());
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      done();
    });
    text.replaceWith(form);
    buttons.hidden = true;
    area.focus();
  }
  return { element };
}

export const resultsView = (turn) => ({
  element: h("article", { class: "question", "aria-label": "Results of tools" },
    turn.results.map(({ name, content }) => h("div", { class: "call" }, h("b", {}, name), h("pre", { tabindex: "0" }, content)))),
});

export const fileView = ({ kind, name, url }) => (kind === "sound"
  ? h("audio", { src: url, controls: true, "aria-label": name })
  : h("img", { src: url, alt: name }));
