// Pictures and sound that go with a question: chosen, dropped or pasted, shown small, and sent as data: URLs.

import { h, say } from "./dom.js";

const SOUNDS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3" };

export function attachments() {
  const input = h("input", { type: "file", id: "attachments", multiple: true, class: "unseen" });
  const list = h("ul", { class: "thumbnails", "aria-label": "Files of this message" });
  const label = h("label", { for: "attachments", class: "button" });
  const element = h("div", { class: "attachments" }, input, label, list);
  let chosen = [];
  let takes = []; // kinds

  const show = () => list.replaceChildren(...chosen.map((one, i) => h("li", {},
    one.kind === "image" ? h("img", { src: one.url, alt: one.name }) : h("span", {}, one.name),
    h("button", { type: "button", "aria-label": `Remove ${one.name}`, onclick: () => remove(i) }, "×"))));
  const remove = (i) => {
    chosen = chosen.filter((_, other) => other !== i);
    show();
  };
  async function add(files) {
    const fit = [...files].filter((file) => takes.includes(kindOf(file)));
    chosen = chosen.concat(await Promise.all(fit.map(async (file) => (
      { kind: kindOf(file), name: file.name, format: SOUNDS[file.type], url: await asUrl(file) }))));
    show();
  }
  input.addEventListener("change", () => add(input.files).then(() => { input.value = ""; }));

  return {
    element,
    add,
    suit(model) {
      const { pictures, sound } = model?.capabilities ?? {};
      const speech = model?.task === "transcribe";
      takes = [...(pictures && model.task === "generate" ? ["image"] : []), ...(sound || speech ? ["sound"] : [])];
      element.hidden = !takes.length;
      input.accept = takes.map((kind) => ({ image: "image/*", sound: Object.keys(SOUNDS).join() })[kind]).join();
      say(label, takes.map((kind) => ({ image: "Add pictures", sound: "Add sound" })[kind]).join(", ").replace(", Add", " or"));
    },
    /** The files that fit the model; they are gone then. */
    take() {
      const taken = chosen.filter(({ kind }) => takes.includes(kind));
      chosen = [];
      show();
      return taken;
    },
  };
}

const kindOf = (file) => (file.type.startsWith("image/") ? "image" : SOUNDS[file.type] && "sound");

const asUrl = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => resolve(reader.result));
  reader.addEventListener("error", () => reject(reader.error));
  reader.readAsDataURL(file);
});

/** As a part of a message. */
export const partOf = ({ kind, url, format }) => (kind === "sound"
  ? { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format } }
  : { type: "image_url", image_url: { url } });

/** As a file. */
export function blobOf({ url }) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (char) => char.charCodeAt(0));
  return new Blob([bytes]);
}
