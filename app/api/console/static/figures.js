// The figures of an answer: what is measured here, and what the server counted.

import { compact, seconds } from "./format.js";

/** `[[name, value]]`. */
export function figuresOf({ sent, first, last, usage, finish }) {
  const rows = [["time to first token", first ? seconds((first - sent) / 1000) : "–"]];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    const steps = usage.completion_tokens - 1;
    if (steps > 0 && last > first) rows.push(["tokens/s", ((steps * 1000) / (last - first)).toFixed(1)]);
    rows.push(["prompt", `${compact(usage.prompt_tokens)} tokens`], ["cached", `${compact(cached)} tokens`],
      ["answer", `${compact(usage.completion_tokens)} tokens`]);
  }
  if (finish) rows.push(["finish reason", finish]);
  return rows;
}
