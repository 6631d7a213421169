// A bar of parts. Widths are set by script: the page's policy allows no style in HTML.

import { h } from "./dom.js";

/** `parts`: [{ kind, share }], shares of the bar's whole; `label`: what a screen reader says. */
export function stack(parts, label) {
  const bar = h("div", { class: "bar", role: "img", "aria-label": label });
  setStack(bar, parts, label);
  return bar;
}

export function setStack(bar, parts, label) {
  bar.setAttribute("aria-label", label);
  while (bar.childElementCount < parts.length) bar.append(h("span"));
  while (bar.childElementCount > parts.length) bar.lastElementChild.remove();
  parts.forEach(({ kind, share }, i) => {
    bar.children[i].className = `part ${kind}`;
    bar.children[i].style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  });
}

/** What the parts' colours mean: [[kind, text]]. */
export const legend = (kinds) =>
  h("ul", { class: "legend" }, kinds.map(([kind, text]) => h("li", {}, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), text)));
