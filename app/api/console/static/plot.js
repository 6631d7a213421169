// What was used, as columns over time with axes: a part for each group, and the same as a table of sums.

import { h, newId } from "./dom.js";
import { compact, money, seconds } from "./format.js";

const KINDS = ["held", "lent", "cached", "wait", "others"]; // colours, the groups with most first; the last: all others
const LABELS = 6; // of the axis of time
const MEASURES = {
  cost: ["Cost", money], engine_s: ["Engine time", seconds], requests: ["Requests", compact], prompt_tokens: ["Prompt tokens", compact],
  cached_tokens: ["Cached tokens", compact], completion_tokens: ["Answer tokens", compact],
};
const STEPS = { // milliseconds of a column, and how its time is named
  hour: [3_600_000, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }],
  day: [86_400_000, { month: "short", day: "numeric", timeZone: "UTC" }],
};

/** `group`: the field of rows by which the columns are divided, and its name. `step`: "hour" or "day". */
export function usagePlot(title, [group, groupName], step, count) {
  const heading = newId("usage");
  const measure = h("select", { id: newId("measure"), onchange: () => draw() },
    Object.entries(MEASURES).map(([value, [name]]) => h("option", { value }, name)));
  const top = h("span", {});
  const middle = h("span", {});
  const columns = h("div", { class: "columns", role: "img", "aria-label": title });
  const times = h("div", { class: "times", "aria-hidden": "true" });
  const plot = h("div", { class: "plot" }, h("div", { class: "scale", "aria-hidden": "true" }, top, middle, h("span", {}, "0")), columns, times);
  const key = h("ul", { class: "legend" });
  const body = h("tbody", {});
  const region = h("div", { class: "wide", role: "region", "aria-label": `${title}: sums`, tabindex: "0" }, h("table", {},
    h("thead", {}, h("tr", {}, [groupName, ...Object.values(MEASURES).map(([name]) => name)].map((name) => h("th", { scope: "col" }, name)))), body));
  const none = h("p", { class: "hint", $hidden: true }, "Nothing was used.");
  const some = h("div", { $hidden: true }, h("div", { class: "actions" }, h("label", { for: measure.id }, "Show"), measure), key, plot, region);
  const element = h("section", { "aria-labelledby": heading }, h("h2", { id: heading }, title), some, none);
  let rows = [];
  let from = 0;

  function draw() {
    const [name, show] = MEASURES[measure.value];
    const [width, form] = STEPS[step];
    const totals = sumsBy(rows, group);
    const names = [...totals.keys()].sort((a, b) => totals.get(b)[measure.value] - totals.get(a)[measure.value]);
    const kind = (one) => KINDS[Math.min(names.indexOf(one), KINDS.length - 1)];
    none.hidden = names.length > 0;
    some.hidden = !names.length;
    const starts = Array.from({ length: count }, (_, i) => from * 1000 + i * width);
    const parts = starts.map((at) => rows.filter((row) => Date.parse(row[step]) === at));
    const most = round(Math.max(...parts.map((of) => sum(of, measure.value))));
    top.textContent = show(most);
    middle.textContent = show(most / 2);
    columns.setAttribute("aria-label", `${name} of ${count} ${step}s, at most ${show(most)} in one; the table has the sums.`);
    const time = (at) => new Date(at).toLocaleString("en", form);
    columns.replaceChildren(...parts.map((of, i) => column(of, { most, field: measure.value, kindOf: (row) => kind(row[group]) }, `${time(starts[i])}: ${show(sum(of, measure.value))}`)));
    times.replaceChildren(...starts.filter((_, i) => i % (count / LABELS) === 0).map((at) => h("span", {}, time(at))));
    key.replaceChildren(...names.slice(0, KINDS.length - 1).map((one) => entry(kind(one), one)),
      ...(names.length >= KINDS.length ? [entry(KINDS.at(-1), names.length === KINDS.length ? names.at(-1) : "all others")] : []));
    body.replaceChildren(...names.map((one) => h("tr", {}, h("th", { scope: "row" }, one),
      Object.entries(MEASURES).map(([field, [, shown]]) => h("td", { class: "figure" }, shown(totals.get(one)[field]))))));
  }

  return {
    element,
    /** `since`: the first column's begin, in seconds. What costs nothing is first shown by its engine time. */
    update(found, since) {
      const first = !rows.length && found.length;
      rows = found;
      from = since;
      if (first && !sum(rows, "cost")) measure.value = "engine_s";
      draw();
    },
  };
}

const entry = (kind, name) => h("li", {}, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), name);
const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0);

/** Up to 1, 2 or 5 times a power of ten: a number to read off an axis. */
function round(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].find((factor) => factor * power >= most) * power;
}

function sumsBy(rows, group) {
  const totals = new Map();
  for (const row of rows) {
    const sums = totals.get(row[group]) ?? Object.fromEntries(Object.keys(MEASURES).map((field) => [field, 0]));
    for (const field of Object.keys(MEASURES)) sums[field] += row[field];
    totals.set(row[group], sums);
  }
  return totals;
}

function column(rows, { most, field, kindOf }, title) {
  const element = h("div", { class: "column", title });
  for (const row of rows) {
    const part = h("span", { class: kindOf(row) });
    part.style.height = `${(row[field] / most) * 100}%`;
    element.append(part);
  }
  return element;
}
