// The models that Play can talk to.

import { read } from "./api.js";
import { h } from "./dom.js";

const PLAYED = new Set(["generate", "image", "transcribe"]);

export function modelPicker(changed) {
  const select = h("select", { id: "model", onchange: () => changed(current()) });
  const hint = h("p", { class: "hint", id: "model-hint" });
  select.setAttribute("aria-describedby", "model-hint");
  let cards = [];

  const current = () => cards.find((card) => card.id === select.value) ?? null;

  async function load() {
    const { data } = await read("/v1/models");
    cards = data.filter((card) => PLAYED.has(card.task));
    const before = select.value;
    select.replaceChildren(...cards.map((card) => h("option", { value: card.id }, card.id)));
    if (cards.some((card) => card.id === before)) select.value = before;
    const others = data.length - cards.length;
    hint.textContent = others ? `Not shown: ${others} without chats, pictures and speech.` : "";
    changed(current());
  }

  return { element: h("div", {}, h("label", { for: "model" }, "Model"), select, hint), load, current };
}
