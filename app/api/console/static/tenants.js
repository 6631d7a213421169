// Tenants: shares against use, budgets, keys, and what was used hour by hour. Read anew every few seconds.

import { ApiError, read } from "./api.js";
import { legend } from "./bars.js";
import { h, keyed, problem, say } from "./dom.js";
import { date, plural } from "./format.js";
import { takes } from "./keys.js";
import { openForm } from "./limits_form.js";
import { usagePlot } from "./plot.js";
import { tenantCard } from "./tenant.js";

const AGAIN_MS = 5000;
const DAY_S = 86_400;
const admin = { kind: "admin" };
const NO_KEY = "To change anything here, start the API by xylem up, whose link signs in, or with XYLEM_ADMIN_KEY.";
const NOT_LOOKED_AT = "This server does not look at API keys: nothing here limits anybody until it is started with XYLEM_REQUIRE_KEYS=true.";

export function page() {
  const summary = h("p", { class: "hint" }, "Waiting for the tenants …");
  const cards = h("ul", { class: "cards", "aria-label": "Tenants" });
  const plot = usagePlot("Usage by hour", ["tenant", "Tenant"], "hour", 24);
  const changes = takes("admin")
    ? h("div", { class: "actions" }, h("button", { type: "button", class: "primary", onclick: () => openForm({ existing: null, tenants: null, changed: look }) }, "New tenant"),
      h("button", { type: "button", onclick: () => openForm({ existing: null, tenants: names, changed: look }) }, "New key"))
    : h("p", { class: "hint" }, NO_KEY);
  const element = h("div", { class: "tenants" }, h("h1", {}, "Tenants"), summary,
    takes("api") ? null : h("p", { class: "hint" }, NOT_LOOKED_AT), changes,
    legend([["held", "share of the engine time of the last hour"], ["cached", "share that its weight gives it"], ["lent", "spent of its budget"], ["bad", "over budget"]]),
    cards, plot.element);
  let names = [];
  let timer = null;

  async function look() {
    clearTimeout(timer);
    timer = setTimeout(look, AGAIN_MS);
    try {
      const from = Math.floor(Date.now() / 3_600_000) * 3600 - DAY_S + 3600;
      const [tenants, keys, spending] = await Promise.all([
        read("/admin/tenants", admin), read("/admin/keys", admin), read("/admin/spending", admin),
      ]);
      const hours = spending.usage_recorded ? await read(`/admin/usage?group_by=tenant,hour&from=${from}`, admin).catch(() => null) : null;
      update(tenants.data, keys.data, spending, hours, from);
      problem("");
    } catch (error) {
      problem(error instanceof ApiError ? error.message : "The server does not answer. Trying again.");
      if (error.status === 401 || error.status === 403) hide();
    }
  }

  function update(tenants, keys, spending, hours, from) {
    const weights = tenants.reduce((sum, tenant) => sum + tenant.weight, 0);
    const latest = lastHour(hours?.data ?? []);
    const used = [...latest.values()].reduce((sum, engine_s) => sum + engine_s, 0);
    names = tenants.map((tenant) => tenant.name);
    say(summary, `${plural(tenants.length, "tenant")} with ${plural(keys.length, "key")}. `
      + (hours ? `Usage since ${date(from)}.` : "No usage is shown: `xylem usage write` does not run, or XYLEM_USAGE is off."));
    keyed(cards, tenants.map((tenant) => ({
      tenant,
      keys: keys.filter((key) => key.tenant === tenant.name),
      spent: spending.tenants[tenant.name],
      spentByKeys: spending.keys,
      share: tenant.weight / weights,
      use: used ? (latest.get(tenant.name) ?? 0) / used : 0,
    })), ({ tenant }) => tenant.name, () => tenantCard({ changed: look, names: () => names }));
    plot.update(hours?.data ?? [], from);
  }

  function hide() {
    clearTimeout(timer);
    timer = null;
  }
  return { element, show: look, hide };
}

/** Engine seconds by tenant, of the newest hour that has any. */
function lastHour(rows) {
  const newest = rows.reduce((latest, row) => (row.hour > latest ? row.hour : latest), "");
  return new Map(rows.filter((row) => row.hour === newest).map((row) => [row.tenant, row.engine_s]));
}
