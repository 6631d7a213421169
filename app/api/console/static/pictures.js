// Pictures that go with a question: chosen, dropped or pasted, shown small, and sent as data: URLs.

import { h, say } from "./dom.js";

export function pictureInput() {
  const input = h("input", { type: "file", id: "pictures", accept: "image/*", multiple: true, class: "unseen" });
  const list = h("ul", { class: "thumbnails", "aria-label": "Pictures of this message" });
  const label = h("label", { for: "pictures", class: "button" }, "Add pictures");
  const element = h("div", { class: "pictures" }, input, label, list);
  let chosen = [];

  const show = () => list.replaceChildren(...chosen.map((one, i) => h("li", {},
    h("img", { src: one.url, alt: one.name }),
    h("button", { type: "button", "aria-label": `Remove ${one.name}`, onclick: () => remove(i) }, "×"))));
  const remove = (i) => {
    chosen = chosen.filter((_, other) => other !== i);
    show();
  };
  async function add(files) {
    const found = [...files].filter((file) => file.type.startsWith("image/"));
    chosen = chosen.concat(await Promise.all(found.map(async (file) => ({ name: file.name, url: await asUrl(file) }))));
    show();
  }
  input.addEventListener("change", () => add(input.files).then(() => { input.value = ""; }));

  return {
    element,
    add,
    suit(model) {
      element.hidden = !model?.capabilities?.pictures || model.task === "image";
      say(label, "Add pictures");
    },
    /** The pictures, which are gone then. */
    take() {
      const taken = element.hidden ? [] : chosen;
      chosen = [];
      show();
      return taken;
    },
  };
}

const asUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => resolve(reader.result));
  reader.addEventListener("error", () => reject(reader.error));
  reader.readAsDataURL(file);
});
