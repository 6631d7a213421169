// Markdown as elements: blocks and words of a text become elements with text in them, and never markup.

import { copyButton, h } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*(\S*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])\s*(\1\s*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
// The first alternative that fits: code, a link, strong, emphasis, struck out, an address.
const WORDS = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\[([^\]\n]+)\]\(((?:[^\s()]|\([^\s()]*\))+)\)|\*\*([^\s*](?:[\s\S]*?[^\s*])?)\*\*|\*([^\s*](?:[^*]*?[^\s*])?)\*|(?<!\w)_([^\s_](?:[^_]*?[^\s_])?)_(?!\w)|~~([^~]+)~~|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?])/g;

/** An element that shows a growing text; blocks that have not changed stay as they are, with what is selected in them. */
export function markdownView() {
  const element = h("div", { class: "text" });
  let shown = [];
  return {
    element,
    set(text) {
      const now = blocks(text.split("\n"));
      let same = 0;
      while (same < now.length && now[same].join("\n") === shown[same]) same++;
      while (element.childElementCount > same) element.lastElementChild.remove();
      element.append(...now.slice(same).map(block));
      shown = now.map((lines) => lines.join("\n"));
    },
  };
}

/** The lines of each block. */
function blocks(lines) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const end = endOf(lines, at);
    found.push(lines.slice(at, end));
    at = end;
  }
  return found;
}

function endOf(lines, at) {
  const fence = lines[at].match(FENCE);
  if (fence) {
    const close = lines.findIndex((line, i) => i > at && line.trim().startsWith(fence[1]) && !line.trim().replaceAll(fence[1][0], ""));
    return close < 0 ? lines.length : close + 1;
  }
  if (HEADING.test(lines[at]) || RULE.test(lines[at])) return at + 1;
  const isList = ITEM.test(lines[at]);
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    if (isList && !line.trim()) { // an empty line ends a list, unless it goes on behind it
      const next = lines.slice(end).find((later) => later.trim());
      if (next === undefined || !(ITEM.test(next) || /^\s/.test(next))) break;
    } else if (!isList && (!line.trim() || ITEM.test(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line))) {
      break;
    } else if (isList && /^\S/.test(line) && !ITEM.test(line)) {
      break;
    }
    end++;
  }
  return end;
}

function block(lines) {
  const [first] = lines;
  const fence = first.match(FENCE);
  if (fence) return code(lines.slice(1, closes(lines, fence[1]) ? -1 : undefined).join("\n"), fence[2]);
  const heading = first.match(HEADING);
  if (heading) return h(`h${Math.min(6, heading[1].length + 3)}`, {}, words(heading[2]));
  if (RULE.test(first)) return h("hr");
  if (QUOTE.test(first)) return h("blockquote", {}, blocks(lines.map((line) => line.replace(QUOTE, ""))).map(block));
  if (ITEM.test(first)) return list(lines);
  if (lines.length > 1 && first.includes("|") && DIVIDER.test(lines[1])) return table(lines);
  return h("p", {}, words(lines.join("\n")));
}

const closes = (lines, mark) => lines.length > 1 && lines.at(-1).trim().startsWith(mark);

function code(text, language) {
  return h("div", { class: "code" },
    h("div", { class: "row" }, h("span", { class: "hint" }, language || "code"), copyButton("Copy code", () => text)),
    h("pre", { tabindex: "0" }, h("code", {}, text)));
}

/** Items begin at the first one's indent; what stands deeper belongs to the item before it. */
function list(lines) {
  const [, indent, mark] = lines[0].match(ITEM);
  const items = [];
  for (const line of lines) {
    const item = line.match(ITEM);
    if (item && item[1].length <= indent.length + 1) items.push([line.slice(item[0].length)]);
    else items.at(-1).push(line.replace(/^ {1,4}|^\t/, ""));
  }
  const ordered = /\d/.test(mark);
  return h(ordered ? "ol" : "ul", ordered ? { start: String(parseInt(mark, 10)) } : {}, items.map((item) => h("li", {}, inItem(blocks(item)))));
}

/** A tight item has no paragraph of its own. */
const inItem = (parts) => parts.map((lines, i) => (i === 0 && !FENCE.test(lines[0]) ? words(lines.join("\n")) : block(lines)));

function table(lines) {
  const rows = lines.filter((_, i) => i !== 1).map((line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|")));
  const [head, ...body] = rows;
  return h("div", { class: "wide", role: "region", "aria-label": "Table", tabindex: "0" }, h("table", {},
    h("thead", {}, h("tr", {}, head.map((cell) => h("th", { scope: "col" }, words(cell))))),
    h("tbody", {}, body.map((row) => h("tr", {}, row.map((cell) => h("td", {}, words(cell))))))));
}

/** The nodes of a paragraph. */
function words(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(WORDS)) {
    const [whole, , inCode, label, address, strong, emphasis, underlined, struck, url] = match;
    nodes.push(text.slice(at, match.index));
    at = match.index + whole.length;
    if (inCode !== undefined) nodes.push(h("code", {}, inCode.trim()));
    else if (label !== undefined) nodes.push(link(address, words(label)));
    else if (strong !== undefined) nodes.push(h("strong", {}, words(strong)));
    else if (struck !== undefined) nodes.push(h("s", {}, words(struck)));
    else if (url !== undefined) nodes.push(link(url, url));
    else nodes.push(h("em", {}, words(emphasis ?? underlined)));
  }
  nodes.push(text.slice(at));
  return nodes;
}

/** Only to pages of the web: `javascript:` and such stay text. */
const link = (address, label) => (/^https?:\/\//i.test(address)
  ? h("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, label) : label);
