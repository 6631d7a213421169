// The API key and the admin key: in this tab's sessionStorage, and nowhere else.

import { h } from "./dom.js";

const NAMES = { api: "xylem.api-key", admin: "xylem.admin-key" };
let dialog = null;

/** The key of that kind; "" if none was given. */
export const key = (kind) => sessionStorage.getItem(NAMES[kind]) ?? "";

/** The headers with which a request of that kind is allowed. */
export const authorisation = (kind) => (key(kind) ? { authorization: `Bearer ${key(kind)}` } : {});

/** Opens the dialog. `why`: what needs a key. */
export function askForKeys(why = "") {
  dialog ??= build();
  if (dialog.element.open) return;
  dialog.why.textContent = why;
  dialog.why.hidden = !why;
  for (const kind of Object.keys(NAMES)) dialog[kind].value = key(kind);
  dialog.element.showModal();
}

function build() {
  const why = h("p", { class: "why" });
  const api = h("input", { type: "password", id: "api-key", autocomplete: "off", spellcheck: "false" });
  const admin = h("input", { type: "password", id: "admin-key", autocomplete: "off", spellcheck: "false" });
  const element = h("dialog", { "aria-labelledby": "keys-title" },
    h("h2", { id: "keys-title" }, "Keys"), why,
    h("label", { for: "api-key" }, "API key, for Play and Batches"), api,
    h("label", { for: "admin-key" }, "Admin key, for Fleet and Tenants"), admin,
    h("p", { class: "hint" }, "They stay in this tab, and are forgotten when it is closed."),
    h("div", { class: "actions" },
      h("button", { type: "button", class: "primary", onclick: () => save({ api, admin }) }, "Use these keys"),
      h("button", { type: "button", onclick: () => element.close() }, "Cancel")));
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
    event.preventDefault(); // or it would press the button that gets the focus back
    save({ api, admin });
  });
  document.body.append(element);
  return { element, why, api, admin };
}

function save(inputs) {
  for (const [kind, input] of Object.entries(inputs)) {
    const given = input.value.trim();
    if (given) sessionStorage.setItem(NAMES[kind], given);
    else sessionStorage.removeItem(NAMES[kind]);
  }
  dialog.element.close();
  window.dispatchEvent(new Event("xylem-keys"));
}
