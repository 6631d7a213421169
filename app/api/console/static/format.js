// Numbers as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => whole.format(n);
export const compact = (n) => (n < 10_000 ? whole.format(n) : short.format(n));
export const money = (amount) => amount.toFixed(amount > 0 && amount < 0.1 ? 4 : 2);
export const plural = (n, noun) => `${whole.format(n)} ${noun}${n === 1 ? "" : "s"}`;
export const percent = (share) => `${Math.round(share * 100)} %`;

export function seconds(s) {
  if (s === null || s === undefined) return "–";
  if (s < 0.0005) return "0 ms";
  if (s < 1) return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
  return s < 100 ? `${s.toFixed(s < 10 ? 2 : 1)} s` : `${count(s)} s`;
}

export function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  for (; n >= 1000 && power < units.length - 1; power++) n /= 1000;
  return `${n.toFixed(power && n < 10 ? 1 : 0)} ${units[power]}`;
}

export const clock = (epoch) => new Date(epoch * 1000).toLocaleTimeString();
export const date = (epoch) => new Date(epoch * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
