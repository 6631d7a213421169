// Which page is shown. A page keeps its state while another one is: a chat, say. `show` and `hide` begin and end what
// it reads live.

import { ROOT } from "./api.js";
import { problem } from "./dom.js";
import { showButton, signIn } from "./keys.js";
import { page as play } from "./play.js";

const PAGES = {
  [`${ROOT}/console`]: { title: "Play", load: async () => play },
  [`${ROOT}/console/fleet`]: { title: "Fleet", load: async () => (await import("./fleet.js")).page },
  [`${ROOT}/console/batches`]: { title: "Batches", load: async () => (await import("./batches.js")).page },
  [`${ROOT}/console/tenants`]: { title: "Tenants", load: async () => (await import("./tenants.js")).page },
  [`${ROOT}/console/usage`]: { title: "Usage", load: async () => (await import("./usage.js")).page },
};
const main = document.getElementById("main");
const made = new Map();
let shown = null;
let latest = null; // what was asked for last: pages load one beside the other

async function show(path) {
  const wanted = path.replace(/\/$/, "");
  const { title, load } = PAGES[wanted] ?? PAGES[`${ROOT}/console`];
  for (const link of document.querySelectorAll("nav a")) {
    if (link.pathname === wanted) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} · Xylem`;
  latest = wanted;
  const make = await load();
  if (latest !== wanted) return;
  if (!made.has(wanted)) made.set(wanted, make());
  const page = made.get(wanted);
  if (page === shown) return;
  shown?.hide();
  problem("");
  shown = page;
  main.replaceChildren(page.element);
  page.show();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("header a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || !PAGES[link.pathname]) return;
  event.preventDefault();
  if (link.pathname !== location.pathname) history.pushState(null, "", link.pathname);
  show(link.pathname).then(() => main.focus());
});
window.addEventListener("popstate", () => show(location.pathname));
window.addEventListener("xylem-keys", () => {
  problem("");
  shown?.hide();
  shown?.show();
});
window.addEventListener("hashchange", signIn);
showButton(document.getElementById("keys"));
signIn();
show(location.pathname);
