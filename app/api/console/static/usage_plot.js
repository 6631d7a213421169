// What tenants used hour by hour: a column for each hour, a part for each tenant; and the same as a table.

import { h, newId, say } from "./dom.js";
import { compact, seconds } from "./format.js";

const HOUR_MS = 3_600_000;
const HOURS = 24;
const KINDS = ["held", "lent", "cached", "wait", "others"]; // colours, the tenants with most first; the last: all others
const SUMS = [["requests", compact], ["prompt_tokens", compact], ["cached_tokens", compact], ["completion_tokens", compact],
  ["engine_s", seconds], ["cost", (money) => money.toFixed(2)]];

export function usagePlot() {
  const heading = newId("usage");
  const columns = h("div", { class: "columns", role: "img", hidden: true });
  const key = h("ul", { class: "legend", hidden: true });
  const body = h("tbody", {});
  const region = h("div", { class: "wide", role: "region", "aria-label": "Usage of a day", tabindex: "0" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Tenant", "Requests", "Prompt tokens", "of these cached", "Answer tokens", "Engine time", "Cost"]
      .map((name) => h("th", { scope: "col" }, name)))), body));
  const none = h("p", { class: "hint" }, "Nothing was used.");
  const element = h("section", { "aria-labelledby": heading }, h("h2", { id: heading }, "Engine seconds by hour"), key, columns, none, region);

  function update(rows, from) {
    const totals = byTenant(rows);
    const names = [...totals.keys()].sort((a, b) => totals.get(b).engine_s - totals.get(a).engine_s);
    const kind = (name) => KINDS[Math.min(names.indexOf(name), KINDS.length - 1)];
    none.hidden = names.length > 0;
    for (const part of [columns, region, key]) part.hidden = !names.length;
    const hours = Array.from({ length: HOURS }, (_, i) => new Date(from * 1000 + i * HOUR_MS));
    const most = Math.max(...hours.map((hour) => sum(at(rows, hour))), 1e-9);
    columns.setAttribute("aria-label", `Engine seconds of ${HOURS} hours, at most ${seconds(most)} in one; the table has the sums.`);
    columns.replaceChildren(...hours.map((hour) => column(hour, at(rows, hour), most, kind)));
    key.replaceChildren(...names.slice(0, KINDS.length - 1).map((name) => entry(kind(name), name)),
      ...(names.length >= KINDS.length ? [entry(KINDS.at(-1), names.length === KINDS.length ? names.at(-1) : "all others")] : []));
    body.replaceChildren(...names.map((name) => h("tr", {}, h("th", { scope: "row" }, name),
      SUMS.map(([field, show]) => h("td", { class: "figure" }, show(totals.get(name)[field]))))));
  }
  return { element, update };
}

const entry = (kind, name) => h("li", {}, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), name);

function byTenant(rows) {
  const totals = new Map();
  for (const row of rows) {
    const sums = totals.get(row.tenant) ?? Object.fromEntries(SUMS.map(([field]) => [field, 0]));
    for (const [field] of SUMS) sums[field] += row[field];
    totals.set(row.tenant, sums);
  }
  return totals;
}

const at = (rows, hour) => rows.filter((row) => Date.parse(row.hour) === hour.getTime());
const sum = (rows) => rows.reduce((total, row) => total + row.engine_s, 0);

function column(hour, rows, most, kind) {
  const element = h("div", { class: "column", title: `${hour.toLocaleTimeString([], { timeStyle: "short" })}: ${seconds(sum(rows))}` });
  for (const row of rows) {
    const part = h("span", { class: kind(row.tenant) });
    part.style.height = `${(row.engine_s / most) * 100}%`;
    element.append(part);
  }
  return element;
}
