// An answer as it comes: reasoning, text, calls of tools, pictures; then its figures, its route and its timeline.

import { h } from "./dom.js";
import { compact, seconds } from "./format.js";
import { routeView } from "./route.js";
import { timeline } from "./timeline.js";

export function answerView(model) {
  const thoughts = h("div", { class: "text" });
  const reasoning = h("details", { class: "reasoning", $hidden: true }, h("summary", {}, "Reasoning"), thoughts);
  const text = h("div", { class: "text" });
  const calls = h("div", { class: "calls" });
  const picture = h("img", { class: "painted", alt: "", $hidden: true });
  const figures = h("dl", { class: "figures" });
  const about = h("div", { class: "about" });
  const element = h("article", { class: "answer", "aria-label": `Answer of ${model}`, "aria-busy": "true" },
    h("h3", {}, model), reasoning, text, calls, picture, figures, about);
  const shownCalls = [];

  return {
    element,
    addText: (piece) => text.append(piece),
    addReasoning(piece) {
      if (reasoning.hidden) {
        reasoning.hidden = false;
        reasoning.open = true;
      }
      thoughts.append(piece);
    },
    /** A piece of the call with this number. */
    addCall(number, name, piece) {
      shownCalls[number] ??= calls.appendChild(h("div", { class: "call" }, h("b", {}, name), h("pre", { tabindex: "0" })));
      shownCalls[number].lastElementChild.append(piece);
    },
    picture(base64, alt) {
      picture.src = `data:image/png;base64,${base64}`;
      picture.alt = alt;
      picture.hidden = false;
    },
    figures: (pairs) => figures.replaceChildren(...pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    route(route) {
      if (route) about.append(h("details", { class: "why" }, h("summary", {}, "Why this worker"), routeView(route)));
    },
    /** `id`: of the request. */
    ended(id) {
      element.setAttribute("aria-busy", "false");
      if (reasoning.open && text.textContent) reasoning.open = false;
      if (!id) return;
      const details = h("details", {}, h("summary", {}, "Timeline"));
      details.addEventListener("toggle", async () => {
        if (!details.open || details.childElementCount > 1) return;
        details.append(await timeline(id, "api"), h("p", { class: "hint" }, `Request ${id}`));
      });
      about.append(details);
    },
    failed: (message) => element.append(h("p", { class: "failed" }, message)),
    /** Asks for what the tools say; `send` gets it by the calls' order. */
    askResults(found, send) {
      const inputs = found.map((call, i) => h("input", { id: `result-${call.id}-${i}` }));
      const form = h("form", { class: "results" },
        found.map((call, i) => [h("label", { for: inputs[i].id }, `Result of ${call.function.name}`), inputs[i]]),
        h("button", { type: "submit" }, "Send results"));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        form.remove();
        send(inputs.map((input) => input.value));
      });
      element.append(form);
    },
  };
}

/** What is measured here, and what the server counted. */
export function figuresOf({ sent, first, last, usage, finish }) {
  const rows = [["time to first token", first ? seconds((first - sent) / 1000) : "–"]];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    const steps = usage.completion_tokens - 1;
    if (steps > 0 && last > first) rows.push(["tokens a second", ((steps * 1000) / (last - first)).toFixed(1)]);
    rows.push(["prompt", `${compact(usage.prompt_tokens)} tokens`], ["of these cached", compact(cached)],
      ["answer", `${compact(usage.completion_tokens)} tokens`]);
  }
  if (finish) rows.push(["ended by", finish]);
  return rows;
}
