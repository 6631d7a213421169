// The prefixes that the latest prompts share, as a tree; read when it is asked for.

import { read } from "./api.js";
import { stack } from "./bars.js";
import { h, newId } from "./dom.js";
import { count } from "./format.js";

export function prefixes() {
  const heading = newId("prefixes");
  const found = h("div", {});
  const button = h("button", { type: "button", onclick: () => load() }, "Show prefixes");
  const element = h("section", { "aria-labelledby": heading },
    h("h2", { id: heading }, "Shared prefixes"),
    h("p", { class: "hint" }, "What the last prompts of this API replica have in common, by digests of their blocks; prompts themselves are not kept."),
    button, found);

  async function load() {
    button.disabled = true;
    try {
      const { pools } = await read("/admin/fleet/prefixes", { kind: "admin" });
      const shown = pools.flatMap(poolTree);
      found.replaceChildren(...(shown.length ? shown : [h("p", {}, "No two prompts had a block in common lately.")]));
      button.textContent = "Refresh";
    } catch (error) {
      found.replaceChildren(h("p", { class: "failed" }, error.message));
    } finally {
      button.disabled = false;
    }
  }
  return { element };
}

const poolTree = ({ pool, prompts, prefixes: roots }) => (roots.length
  ? [h("h3", {}, `${pool}: the last ${count(prompts)} prompts`), branch(roots, prompts)] : []);

const branch = (nodes, among) => h("ul", { class: "tree" }, nodes.map((node) => h("li", {},
  h("div", { class: "row" }, h("span", {}, h("code", {}, node.digest.slice(0, 8)), ` ${count(node.tokens)} tokens`),
    h("span", { class: "figure" }, `${count(node.prompts)} prompts`)),
  stack([{ kind: "cached", share: node.prompts / among }], `${count(node.prompts)} of ${count(among)} prompts`),
  h("p", { class: "hint" }, where(node.places)),
  node.longer.length ? branch(node.longer, among) : null)));

function where(places) {
  if (places === null) return "The engine does not report where it is cached.";
  return places.length ? `Cached on ${places.join(", ")}.` : "No worker has all of it cached now.";
}
