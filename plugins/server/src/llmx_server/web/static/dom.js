// Small helpers: elements without HTML strings, and numbers for people.

export const byId = (id) => document.getElementById(id);

/** An element. props: attributes by name; `on` adds listeners by event; `text` sets the text. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "text") node.textContent = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export const button = (text, act, props = {}) => el("button", { type: "button", text, on: { click: act }, ...props });

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => grouped.format(value);

/** A rate: one digit behind the point where that says something. */
export const rate = (value) => (value > 0 && value < 10 ? value.toFixed(1) : count(value));

export function seconds(value) {
  if (value == null) return "–";
  if (value < 1) return `${value * 1000 < 10 ? (value * 1000).toFixed(1) : Math.round(value * 1000)} ms`;
  return value < 100 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${count(value)} s`;
}

export function span(value) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([size]) => value >= size);
  if (at < 0) return "0 s";
  const [size, unit] = parts[at];
  const rest = parts[at + 1];
  const more = rest ? Math.floor((value % size) / rest[0]) : 0;
  return `${Math.floor(value / size)} ${unit}${more ? ` ${more} ${rest[1]}` : ""}`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${value < 10 && at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(part && part < whole ? 1 : 0)}%` : "–");

/** Copy text and say so on the button for a moment. */
export async function copy(text, node) {
  const before = node.textContent;
  try {
    await navigator.clipboard.writeText(text);
    node.textContent = "Copied";
  } catch {
    node.textContent = "Not allowed"; // no clipboard outside of https and localhost
  }
  setTimeout(() => (node.textContent = before), 1500);
}

/** What this tab remembers: gone when it is closed. Storage may be forbidden; then nothing is kept. */
export const memory = {
  read(name) {
    try {
      return JSON.parse(sessionStorage.getItem(`llmx.${name}`));
    } catch {
      return null;
    }
  },
  write(name, value) {
    try {
      if (value == null) sessionStorage.removeItem(`llmx.${name}`);
      else sessionStorage.setItem(`llmx.${name}`, JSON.stringify(value));
    } catch {
      // forbidden or full: the page works without
    }
  },
};
