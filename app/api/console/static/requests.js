// The latest requests of this replica, and the timeline of one: of any replica, by its id.

import { announce, h, keyed, newId, say } from "./dom.js";
import { count, seconds } from "./format.js";
import { timeline } from "./timeline.js";

export function requests() {
  const rows = h("tbody");
  const id = h("input", { id: "request-id", required: true, placeholder: "chatcmpl-…", spellcheck: "false" });
  const form = h("form", { class: "find" }, h("label", { for: "request-id" }, "Request"), id, h("button", { type: "submit" }, "Show its timeline"));
  const title = h("h3", { tabindex: "-1", $hidden: true });
  const way = h("div", {});
  const heading = newId("requests");
  const element = h("section", { "aria-labelledby": heading }, h("h2", { id: heading }, "Latest requests"),
    h("div", { class: "wide", role: "region", "aria-label": "Table of requests", tabindex: "0" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Request", "Model", "State", "Prompt", "First token", "Total"].map((name) => h("th", { scope: "col" }, name)))),
      rows)),
    form, title, way);

  async function show(request) {
    id.value = request;
    title.textContent = `Timeline of ${request}`;
    title.hidden = false;
    way.replaceChildren(await timeline(request, "admin"));
    title.focus();
    announce("The timeline is shown.");
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(id.value.trim());
  });

  return { element, update: (now) => keyed(rows, now, (one) => one.id, ({ id: request }) => row(request, show)) };
}

function row(request, show) {
  const cells = Array.from({ length: 5 }, () => h("td"));
  const button = h("button", { type: "button", class: "link", onclick: () => show(request) }, request);
  return {
    element: h("tr", {}, h("th", { scope: "row" }, button), cells),
    update(one) {
      const state = one.outcome ?? `${one.state}${one.workers.length ? ` on ${one.workers.join(", ")}` : ""}`;
      const moved = one.attempts > 1 ? `, attempt ${one.attempts}` : "";
      [one.model, state + moved, `${count(one.prompt_tokens)} tokens`,
        seconds(one.first_token_s), seconds(one.ended_s)].forEach((text, i) => say(cells[i], text));
    },
  };
}
