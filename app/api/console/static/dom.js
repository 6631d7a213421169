// Elements without a library: `h` makes one, `keyed` keeps a list of them in step with data.

/** An element. `props`: attributes, `on…` listeners, `$name` properties; `null` and `false` leave one out. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("$")) element[name.slice(1)] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Gives `parent` one child for each item, in order. One that stays is updated: it keeps focus and what is open in it.
 *  `make(item)`: `{element, update(item)}`. */
export function keyed(parent, items, keyOf, make) {
  const before = (parent.parts ??= new Map());
  const after = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const part = before.get(key) ?? make(item);
    part.update(item);
    after.set(key, part);
  }
  for (const [key, part] of before) if (!after.has(key)) part.element.remove();
  parent.parts = after;
  let next = parent.firstElementChild;
  for (const { element } of after.values()) {
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
}

/** Sets a text only if it is another one. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Tells screen readers. */
export function announce(text) {
  document.getElementById("said").textContent = text;
}

/** Shows a problem on top of the page; none: an empty text. */
export function problem(text) {
  const place = document.getElementById("problem");
  place.textContent = text;
  place.hidden = !text;
}

/** A button that copies what `textOf` gives. */
export function copyButton(label, textOf) {
  const button = h("button", { type: "button", class: "small", "aria-label": label, onclick: async () => {
    await copy(textOf());
    button.textContent = "Copied";
    announce("It is copied.");
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } }, "Copy");
  return button;
}

/** Pages of http on another machine have no `navigator.clipboard`. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea", { class: "unseen", $value: text });
  const before = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  before?.focus();
}

let ids = 0;
export const newId = (name) => `${name}-${++ids}`;
