// Makes an API key, and shows it this once.

import { read } from "./api.js";
import { h, newId, problem } from "./dom.js";

export function newKey(made) {
  const heading = newId("new-key");
  const ids = { name: newId("name"), tenant: newId("tenant"), budget: newId("budget"), rate: newId("rate") };
  const name = h("input", { id: ids.name, maxlength: "64", autocomplete: "off" });
  const tenant = h("select", { id: ids.tenant });
  const budget = h("input", { id: ids.budget, placeholder: "1000000tokens/month", autocomplete: "off" });
  const rate = h("input", { id: ids.rate, type: "number", min: "1" });
  const shown = h("div", { role: "status" });
  const button = h("button", { type: "button", class: "primary", onclick: () => make() }, "Make the key");
  const element = h("section", { "aria-labelledby": heading }, h("h2", { id: heading }, "New key"),
    h("div", { class: "pairs" },
      h("div", {}, h("label", { for: ids.name }, "Name"), name),
      h("div", {}, h("label", { for: ids.tenant }, "Tenant"), tenant),
      h("div", {}, h("label", { for: ids.budget }, "Budget (none if empty)"), budget),
      h("div", {}, h("label", { for: ids.rate }, "Requests a minute (no limit if empty)"), rate)),
    h("div", { class: "actions" }, button), shown);

  async function make() {
    const json = { name: name.value.trim(), tenant: tenant.value };
    if (budget.value.trim()) json.budget = budget.value.trim();
    if (rate.value) json.requests_per_min = Number(rate.value);
    button.disabled = true;
    try {
      const { key } = await read("/admin/keys", { kind: "admin", json });
      shown.replaceChildren(h("p", {}, `The key of ${json.name}, which can't be shown again:`), h("pre", {}, key));
      name.value = "";
      problem("");
      made();
    } catch (error) {
      problem(error.message);
    } finally {
      button.disabled = false;
    }
  }

  function update(names) {
    if (names.join() === [...tenant.options].map((option) => option.value).join()) return;
    const before = tenant.value;
    tenant.replaceChildren(...names.map((one) => h("option", { value: one }, one)));
    if (names.includes(before)) tenant.value = before;
  }
  return { element, update };
}
