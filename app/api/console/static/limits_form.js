// The form of a tenant's or a key's limits, in a dialog: for a new one, or to change it.

import { ROOT, ask, read } from "./api.js";
import { copyButton, h, newId } from "./dom.js";

const FIELDS = [ // name in the API, label, and how it is typed
  ["weight", "Weight (share of a full fleet)", { type: "number", min: "0.001", step: "any", placeholder: "1" }],
  ["models", "Models (with commas between; all if empty)", {}],
  ["budget", "Budget", { placeholder: "50money/day or 1000000tokens/month" }],
  ["requests_per_min", "Requests a minute", { type: "number", min: "1" }],
  ["tokens_per_min", "Tokens a minute", { type: "number", min: "1" }],
  ["parallel", "Requests at once", { type: "number", min: "1" }],
  ["max_tokens", "Max tokens of an answer", { type: "number", min: "1" }],
  ["expires", "Expires (UTC)", { type: "datetime-local" }],
];

/** Opens it. `existing`: what is changed; null: a new one. `tenants`: names among which a key chooses; null: it is a tenant. */
export function openForm({ existing, tenants, changed }) {
  const what = tenants ? "key" : "tenant";
  const title = existing ? `Change ${existing.name}` : `New ${what}`;
  const name = h("input", { id: newId("name"), required: true, maxlength: "64", autocomplete: "off" });
  const tenant = h("select", { id: newId("tenant") }, (tenants ?? []).map((one) => h("option", { value: one, $selected: one === existing?.tenant }, one)));
  const fields = FIELDS.filter(([field]) => field !== "weight" || !tenants)
    .map(([field, label, attributes]) => [field, label, h("input", { id: newId(field), autocomplete: "off", ...attributes, $value: shown(field, existing) })]);
  const failed = h("p", { class: "failed", role: "alert" });
  const result = h("div", { role: "status" });
  const heading = newId("form");
  const form = h("form", {},
    existing ? null : [h("label", { for: name.id }, "Name"), name],
    tenants ? [h("label", { for: tenant.id }, "Tenant"), tenant] : null,
    fields.map(([, label, input]) => [h("label", { for: input.id }, label), input]),
    h("p", { class: "hint" }, "What is empty is not limited here."), failed,
    h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, existing ? "Save" : `Make the ${what}`),
      h("button", { type: "button", onclick: () => element.close() }, "Cancel")));
  const element = h("dialog", { "aria-labelledby": heading, onclose: () => element.remove() }, h("h2", { id: heading }, title), form, result);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    save().catch((error) => { failed.textContent = error.message; });
  });
  document.body.append(element);
  element.showModal();

  async function save() {
    const given = fields.filter(([field, , input]) => input.value.trim() !== shown(field, existing));
    const values = Object.fromEntries(given.map(([field, , input]) => [field, typed(field, input)]));
    if (tenants && tenant.value !== existing?.tenant) values.tenant = tenant.value;
    const path = `/admin/${what}s`;
    const own = `${path}/${encodeURIComponent(existing?.name ?? name.value.trim())}`;
    if (existing) await ask(own, { kind: "admin", json: values, method: "PATCH" });
    else if (!tenants) await makeTenant(own, values);
    else show(await read(path, { kind: "admin", json: { name: name.value.trim(), ...values } }));
    changed();
    if (existing || !tenants) element.close();
  }

  /** A key is shown once, with a link that signs in with it. */
  function show({ key }) {
    form.hidden = true;
    const link = `${location.origin}${ROOT}/console/usage#api-key=${key}`;
    result.replaceChildren(h("p", {}, `The key ${name.value.trim()}. It can't be shown again.`),
      h("pre", {}, key), h("div", { class: "actions" }, copyButton("Copy key", () => key)),
      h("p", {}, "A link to the console that signs in with it:"), h("pre", {}, link),
      h("div", { class: "actions" }, copyButton("Copy link", () => link), h("button", { type: "button", class: "primary", onclick: () => element.close() }, "Done")));
  }
}

/** Throws: Error, if there is one of that name: it would get these limits in place of its own. */
async function makeTenant(path, values) {
  const there = await read("/admin/tenants", { kind: "admin" });
  const name = decodeURIComponent(path.slice(path.lastIndexOf("/") + 1));
  if (there.data.some((tenant) => tenant.name === name)) throw new Error(`There is a tenant '${name}' already.`);
  await ask(path, { kind: "admin", json: values, method: "PUT" });
}

function shown(field, existing) {
  const value = existing?.[field] ?? "";
  if (field === "expires") return value.slice(0, 16);
  return Array.isArray(value) ? value.join(", ") : String(value);
}

/** Null: there is none. */
function typed(field, input) {
  const text = input.value.trim();
  if (!text) return null;
  if (field === "models") return text.split(",").map((one) => one.trim()).filter(Boolean);
  return input.type === "number" ? Number(text) : text;
}
