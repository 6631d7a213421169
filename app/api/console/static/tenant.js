// A tenant's card: its share and what it used, its budget, its keys.

import { ask } from "./api.js";
import { setStack, stack } from "./bars.js";
import { announce, h, problem, say } from "./dom.js";
import { compact, count, percent } from "./format.js";

const OTHER = new Set(["name", "id", "tenant", "created", "keys", "weight", "content_logged"]); // not limits

export function tenantCard(changed) {
  const name = h("h2", {});
  const weight = h("span", { class: "figure" });
  const share = meter("cached");
  const use = meter("held");
  const budget = meter("lent");
  const about = h("p", { class: "hint" });
  const list = h("ul", { class: "keys" });
  const element = h("li", { class: "card" },
    h("div", { class: "row" }, name, weight), share.element, use.element, budget.element, about,
    h("details", {}, h("summary", {}, "Keys"), list));

  function update({ tenant, keys, spent, spentByKeys, share: wanted, use: used }) {
    say(name, tenant.name);
    say(weight, `weight ${tenant.weight}`);
    share.set(wanted, `${percent(wanted)} of a full fleet`);
    use.set(used, `${percent(used)} of the engine seconds of the last hour`);
    budget.element.hidden = !spent?.budget;
    if (spent?.budget) budget.set(spent.budget.spent / spent.budget.amount, budgetText(spent.budget));
    say(about, [limitsText(tenant), spent?.parallel ? `${count(spent.parallel)} requests now` : ""].filter(Boolean).join("; "));
    list.replaceChildren(...keys.map((key) => keyRow(key, spentByKeys[key.id])));
  }

  function keyRow(key, spent) {
    const used = spent?.budget ? `, ${budgetText(spent.budget)}` : "";
    return h("li", { class: "row" },
      h("span", {}, key.name, h("span", { class: "hint" }, ` ${limitsText(key) || "no limits of its own"}${used}`)),
      h("button", { type: "button", "aria-label": `Revoke ${key.name}`, onclick: () => revoke(key) }, "Revoke"));
  }

  async function revoke(key) {
    if (!window.confirm(`Revoke the key ${key.name}? Its clients are refused from then on.`)) return;
    try {
      await ask(`/admin/keys/${encodeURIComponent(key.name)}`, { kind: "admin", method: "DELETE" });
      announce(`${key.name} is revoked`);
      changed();
    } catch (error) {
      problem(error.message);
    }
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

const budgetText = ({ spent, amount, unit, per }) => `${compact(spent)} of ${compact(amount)} ${unit} this ${per}`;

const limitsText = (limited) => Object.entries(limited).filter(([name]) => !OTHER.has(name) && name !== "budget")
  .map(([name, value]) => `${name.replaceAll("_", " ")} ${Array.isArray(value) ? value.join(", ") : typeof value === "number" ? count(value) : value}`)
  .join("; ");
