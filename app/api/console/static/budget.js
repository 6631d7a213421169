// What is spent of a budget, and left of it: more than all of it looks different from all of it.

import { setStack, stack } from "./bars.js";
import { h, say } from "./dom.js";
import { compact, date, money } from "./format.js";

export function budgetMeter() {
  const bar = stack([], "");
  const text = h("span", { class: "figure" });
  const element = h("div", { class: "meter", $hidden: true }, text, bar);
  return {
    element,
    /** `budget`: as /admin/spending has it; none: it is hidden. */
    set(budget) {
      element.hidden = !budget;
      if (!budget) return;
      const { spent, amount } = budget;
      const over = spent > amount;
      const words = budgetText(budget);
      say(text, words);
      text.classList.toggle("failed", over);
      const whole = Math.max(spent, amount); // over it, the bar is what was spent, and the end of it is too much
      setStack(bar, [{ kind: "lent", share: Math.min(spent, amount) / whole }, { kind: "bad", share: over ? (spent - amount) / whole : 0 }], words);
    },
  };
}

export function budgetText({ spent, amount, unit, per, ends }) {
  const show = (n) => (unit === "tokens" ? `${compact(n)} tokens` : money(n));
  const left = spent > amount ? `over budget by ${show(spent - amount)}` : spent === amount ? "used up" : `${show(amount - spent)} left`;
  return `${show(spent)} of ${show(amount)} ${per === "day" ? "today" : `this ${per}`}: ${left} until ${date(Date.parse(ends) / 1000)}`;
}
