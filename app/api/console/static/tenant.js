// A tenant's card: its share and what it used, its budget, its keys.

import { ask } from "./api.js";
import { setStack, stack } from "./bars.js";
import { budgetMeter, budgetText } from "./budget.js";
import { announce, h, keyed, problem, say } from "./dom.js";
import { count, percent, plural } from "./format.js";
import { takes } from "./keys.js";
import { openForm } from "./limits_form.js";

const OTHER = new Set(["name", "id", "tenant", "created", "keys", "weight", "content_logged", "budget"]); // not limits in words
const DEFAULT = "default"; // the tenant that is always there

/** `names()`: of all tenants. */
export function tenantCard({ changed, names }) {
  const name = h("h2", {});
  const weight = h("span", { class: "figure" });
  const share = meter("cached");
  const use = meter("held");
  const budget = budgetMeter();
  const about = h("p", { class: "hint" });
  const list = h("ul", { class: "keys" });
  const summary = h("summary", {});
  let latest = null;
  const buttons = h("div", { class: "actions", $hidden: !takes("admin") },
    button("New key", () => openForm({ existing: null, tenants: [latest.name, ...names().filter((one) => one !== latest.name)], changed })),
    button("Change", () => openForm({ existing: latest, tenants: null, changed })));
  const element = h("li", { class: "card" },
    h("div", { class: "row" }, name, weight), share.element, use.element, budget.element, about,
    h("details", {}, summary, list), buttons);

  function update({ tenant, keys, spent, spentByKeys, share: wanted, use: used }) {
    if (!latest && tenant.name !== DEFAULT) {
      buttons.append(button("Delete", () => remove(`/admin/tenants/${encodeURIComponent(tenant.name)}`, `Delete the tenant ${tenant.name}?`)));
    }
    latest = tenant;
    say(name, tenant.name);
    say(weight, `weight ${tenant.weight}`);
    share.set(wanted, `${percent(wanted)} of a full fleet`);
    use.set(used, `${percent(used)} of the engine time of the last hour`);
    budget.set(spent?.budget);
    say(about, [limitsText(tenant), spent?.parallel ? `${plural(spent.parallel, "request")} now` : ""].filter(Boolean).join("; "));
    say(summary, plural(keys.length, "key"));
    keyed(list, keys.map((key) => ({ key, spent: spentByKeys[key.id] })), ({ key }) => key.id, keyRow);
  }

  function keyRow({ key: { name: of } }) {
    const words = h("span", { class: "hint" });
    let now = null;
    return {
      element: h("li", { class: "row" }, h("span", {}, of, " ", words), takes("admin") && h("span", { class: "actions" },
        button("Change", () => openForm({ existing: now, tenants: names(), changed }), of),
        button("Revoke", () => remove(`/admin/keys/${encodeURIComponent(of)}`, `Revoke the key ${of}? Its clients are refused from then on.`), of))),
      update({ key, spent }) {
        now = key;
        say(words, [limitsText(key), spent?.budget ? budgetText(spent.budget) : ""].filter(Boolean).join("; ") || "no limits of its own");
      },
    };
  }

  async function remove(path, question) {
    if (!window.confirm(question)) return;
    try {
      await ask(path, { kind: "admin", method: "DELETE" });
      announce("It is done.");
      problem("");
      changed();
    } catch (error) {
      problem(error.message);
    }
  }

  function button(text, onclick, of = "") {
    return h("button", { type: "button", class: "small", "aria-label": of ? `${text} ${of}` : null, onclick }, text);
  }
  return { element, update };
}

function meter(kind) {
  const bar = stack([], "");
  const text = h("span", { class: "figure" });
  return {
    element: h("div", { class: "meter" }, text, bar),
    set(share, words) {
      say(text, words);
      setStack(bar, [{ kind, share }], words);
    },
  };
}

const limitsText = (limited) => Object.entries(limited).filter(([name]) => !OTHER.has(name))
  .map(([name, value]) => `${name.replaceAll("_", " ")} ${Array.isArray(value) ? value.join(", ") : typeof value === "number" ? count(value) : value}`)
  .join("; ");
