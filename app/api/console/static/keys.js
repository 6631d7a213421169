// The API key and the admin key: in this tab's sessionStorage, and nowhere else.

import { h } from "./dom.js";

const NAMES = { api: "xylem.api-key", admin: "xylem.admin-key" };
const LABELS = { api: "API key, for Play, Batches and Usage", admin: "Admin key, for Fleet and Tenants" };
const TAKEN = document.body.dataset.keys.split(" ").filter(Boolean); // kinds that this server looks at
let dialog = null;

/** Whether the server looks at keys of that kind. */
export const takes = (kind) => TAKEN.includes(kind);

/** The key of that kind; "" if none was given. */
export const key = (kind) => sessionStorage.getItem(NAMES[kind]) ?? "";

/** The headers with which a request of that kind is allowed. */
export const authorisation = (kind) => (key(kind) ? { authorization: `Bearer ${key(kind)}` } : {});

/** Takes the key of a link, `#admin-key=…` or `#api-key=…`, and removes it from the address bar. */
export function signIn() {
  const [, kind, given] = location.hash.match(/^#(admin|api)-key=(.+)$/) ?? [];
  if (!kind) return;
  history.replaceState(history.state, "", location.pathname + location.search);
  keep(kind, decodeURIComponent(given));
  window.dispatchEvent(new Event("xylem-keys"));
}

/** Shows the button that asks for keys, if there is anything to ask for. */
export function showButton(button) {
  button.hidden = !TAKEN.length;
  button.addEventListener("click", () => openDialog(""));
}

/** Asks for a key of that kind, unless no key could help. `why`: what needs it. */
export function askForKeys(kind, why) {
  if (takes(kind)) openDialog(why);
}

function openDialog(why) {
  dialog ??= build();
  if (dialog.element.open) return;
  dialog.why.textContent = why;
  dialog.why.hidden = !why;
  for (const [kind, input] of dialog.inputs) input.value = key(kind);
  dialog.element.showModal();
}

function build() {
  const why = h("p", { class: "why" });
  const inputs = TAKEN.map((kind) => [kind, h("input", { type: "password", id: `${kind}-key`, autocomplete: "off", spellcheck: "false" })]);
  const element = h("dialog", { "aria-labelledby": "keys-title" },
    h("h2", { id: "keys-title" }, "Keys"), why,
    inputs.map(([kind, input]) => [h("label", { for: input.id }, LABELS[kind]), input]),
    h("p", { class: "hint" }, "They stay in this tab, and are forgotten when it is closed."),
    h("div", { class: "actions" },
      h("button", { type: "button", class: "primary", onclick: () => save(inputs) }, "Use these keys"),
      h("button", { type: "button", onclick: () => element.close() }, "Cancel")));
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
    event.preventDefault(); // or it would press the button that gets the focus back
    save(inputs);
  });
  document.body.append(element);
  return { element, why, inputs };
}

function save(inputs) {
  for (const [kind, input] of inputs) keep(kind, input.value.trim());
  dialog.element.close();
  window.dispatchEvent(new Event("xylem-keys"));
}

function keep(kind, given) {
  if (given) sessionStorage.setItem(NAMES[kind], given);
  else sessionStorage.removeItem(NAMES[kind]);
}
