// The parameters of a request.

import { h } from "./dom.js";

const EXAMPLE = `[{"type": "function", "function": {"name": "get_weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]`;

export function options() {
  const system = h("textarea", { id: "system", rows: 2 });
  const tools = h("textarea", { id: "tools", rows: 3, spellcheck: "false", placeholder: EXAMPLE });
  const numbers = {
    temperature: number("temperature", "Temperature", { min: 0, max: 2, step: 0.1 }),
    top_p: number("top_p", "Top p", { min: 0, max: 1, step: 0.05 }),
    max_tokens: number("max_tokens", "Max tokens", { min: 1, step: 1, placeholder: "no limit" }),
    seed: number("seed", "Seed", { step: 1 }),
  };
  const size = h("input", { id: "size", placeholder: "512x512", pattern: "[0-9]+x[0-9]+" });
  const steps = number("steps", "Steps", { min: 1, step: 1 });
  const pictureSeed = number("picture_seed", "Seed", { min: 0, step: 1 });
  const ofChats = h("div", {},
    h("label", { for: "system" }, "System message"), system,
    h("div", { class: "pairs" }, Object.values(numbers).map((one) => one.element)),
    h("label", { for: "tools" }, "Tools, as JSON"), tools);
  const ofPictures = h("div", { class: "pairs" },
    h("div", {}, h("label", { for: "size" }, "Size"), size), steps.element, pictureSeed.element);
  const element = h("details", { class: "options", $open: matchMedia("(min-width: 60rem)").matches },
    h("summary", {}, "Parameters"), ofChats, ofPictures);

  return {
    element,
    suit(model) {
      ofChats.hidden = model?.task !== "generate";
      ofPictures.hidden = model?.task !== "image";
      element.hidden = ofChats.hidden && ofPictures.hidden;
    },
    /** Throws: Error, for tools that are no JSON. */
    ofChat() {
      const given = Object.entries(numbers).map(([name, one]) => [name, one.value()]).filter(([, value]) => value !== null);
      return { ...Object.fromEntries(given), ...(tools.value.trim() ? { tools: parsed(tools.value) } : {}) };
    },
    ofPicture: () => ({
      ...(size.value ? { size: size.value } : {}),
      ...(steps.value() === null ? {} : { num_inference_steps: steps.value() }),
      ...(pictureSeed.value() === null ? {} : { seed: pictureSeed.value() }),
    }),
    system: () => (system.value.trim() ? [{ role: "system", content: system.value }] : []),
  };
}

function number(id, text, attributes) {
  const input = h("input", { type: "number", id, ...attributes });
  return {
    element: h("div", {}, h("label", { for: id }, text), input),
    value: () => (input.value === "" || Number.isNaN(input.valueAsNumber) ? null : input.valueAsNumber),
  };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not valid JSON: ${error.message}`);
  }
}
