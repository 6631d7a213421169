// Usage: what the API key's own tenant has used and has left, for the team itself. Read anew now and then.

import { ApiError, read } from "./api.js";
import { budgetMeter } from "./budget.js";
import { h, problem, say } from "./dom.js";
import { count, plural } from "./format.js";
import { usagePlot } from "./plot.js";

const AGAIN_MS = 15_000;
const DAY_S = 86_400;
const DAYS = 30;

export function page() {
  const summary = h("p", { class: "hint" }, "Waiting for the server …");
  const parts = { of_tenant: account("Tenant"), of_key: account("API key") };
  const plot = usagePlot("Usage by day", ["model", "Model"], "day", DAYS);
  const element = h("div", { class: "usage" }, h("h1", {}, "Usage"), summary,
    h("ul", { class: "cards" }, parts.of_tenant.element, parts.of_key.element), plot.element);
  let timer = null;

  async function look() {
    clearTimeout(timer);
    timer = setTimeout(look, AGAIN_MS);
    try {
      const from = Math.floor(Date.now() / 1000 / DAY_S) * DAY_S - (DAYS - 1) * DAY_S;
      const spending = await read("/v1/spending");
      const days = spending.usage_recorded ? await read(`/v1/usage?group_by=model,day&from=${from}`).catch(() => null) : null;
      say(summary, `What the tenant ${spending.tenant} has used`
        + (days ? ` since ${new Date(from * 1000).toLocaleDateString("en", { dateStyle: "medium", timeZone: "UTC" })}, in days of UTC.` : ": it is not recorded here."));
      parts.of_tenant.update(spending.tenant, spending.of_tenant);
      parts.of_key.update(spending.key, spending.of_key);
      plot.update(days?.data ?? [], from);
      problem("");
    } catch (error) {
      problem(error instanceof ApiError ? error.message : "The server does not answer. Trying again.");
      if (error.status === 401) hide();
    }
  }

  function hide() {
    clearTimeout(timer);
    timer = null;
  }
  return { element, show: look, hide };
}

function account(what) {
  const name = h("h2", {});
  const budget = budgetMeter();
  const left = h("p", { class: "hint" });
  return {
    element: h("li", { class: "card" }, name, budget.element, left),
    update(title, spent) {
      say(name, title ? `${what} ${title}` : `No ${what}`);
      budget.set(spent.budget);
      const words = [
        spent.requests_left === undefined ? "" : `${plural(spent.requests_left, "request")} left this minute`,
        spent.tokens_left === undefined ? "" : `${count(spent.tokens_left)} tokens left this minute`,
        spent.parallel === undefined ? "" : `${plural(spent.parallel, "request")} under way`,
      ].filter(Boolean);
      say(left, words.join("; ") || (spent.budget ? "" : "No budget, and no limit of its own."));
    },
  };
}
