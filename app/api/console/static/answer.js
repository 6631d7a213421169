// An answer as it comes: reasoning, text, calls of tools, pictures; then its figures, its route and its timeline.

import { copyButton, h, say } from "./dom.js";
import { markdownView } from "./markdown.js";
import { routeOf } from "./route.js";
import { timeline } from "./timeline.js";

/** `again()`: answers the question once more; `code()`: shows the request as a program. */
export function answerView(turn, { again, code }) {
  const text = markdownView();
  const thoughts = h("div", { class: "plain" });
  const reasoning = h("details", { class: "reasoning", $hidden: true }, h("summary", {}, "Reasoning"), thoughts);
  const calls = h("div", { class: "calls" });
  const picture = h("img", { class: "painted", alt: "", $hidden: true });
  const status = h("p", { class: "hint", role: "status" });
  const figures = h("dl", { class: "figures" });
  const buttons = h("div", { class: "actions", $hidden: true }, copyButton("Copy answer", () => turn.content),
    h("button", { type: "button", class: "small", onclick: again }, "Regenerate"),
    h("button", { type: "button", class: "small", onclick: code }, "As code"));
  const about = h("div", { class: "about" });
  const element = h("article", { class: "answer", "aria-label": `Answer of ${turn.model}`, "aria-busy": "true" },
    h("h3", {}, turn.model), reasoning, text.element, calls, picture, status, figures, buttons, about);
  let frame = 0;

  function draw() {
    cancelAnimationFrame(frame);
    frame = 0;
    if (turn.reasoning && reasoning.hidden) {
      reasoning.hidden = false;
      reasoning.open = true;
    }
    say(thoughts, turn.reasoning);
    text.set(turn.content);
    turn.calls.forEach((call, i) => {
      const { name, arguments: given } = call.function;
      const shown = calls.children[i] ?? calls.appendChild(h("div", { class: "call" }, h("b", {}, name), h("pre", { tabindex: "0" })));
      say(shown.lastElementChild, given);
    });
    if (turn.picture) {
      picture.src = `data:image/png;base64,${turn.picture}`;
      picture.alt = turn.body.prompt;
      picture.hidden = false;
    }
    figures.replaceChildren(...turn.figures.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }

  return {
    element,
    /** Shows what the turn has now: once a frame, however fast it comes. */
    update() {
      frame ||= requestAnimationFrame(draw);
    },
    says: (words) => say(status, words),
    ended() {
      draw();
      element.setAttribute("aria-busy", "false");
      status.textContent = "";
      if (turn.reasoning && turn.content) reasoning.open = false;
      if (turn.failed) element.append(h("p", { class: "failed" }, turn.failed));
      buttons.hidden = false;
      if (turn.id) about.append(loaded("Why this worker", () => routeOf(turn.id)), loaded("Timeline", () => timeline(turn.id, "api")),
        h("p", { class: "hint" }, `Request ${turn.id}`));
    },
    /** Asks for what the tools say; `send` gets it by the calls' order. */
    askResults(send) {
      const inputs = turn.calls.map((call, i) => h("input", { id: `result-${call.id}-${i}` }));
      const form = h("form", { class: "results" },
        turn.calls.map((call, i) => [h("label", { for: inputs[i].id }, `Result of ${call.function.name}`), inputs[i]]),
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

/** Something that is read when it is opened. */
function loaded(title, load) {
  const details = h("details", {}, h("summary", {}, title));
  details.addEventListener("toggle", async () => {
    if (details.open && details.childElementCount === 1) details.append(await load());
  });
  return details;
}
