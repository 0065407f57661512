// What the pages share: elements (text of users only ever as text), states, times.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && !name.includes("-")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Those that want somebody come first. Colour and sign: neither alone says which it is.
export const STATES = [
  ["hung", "#d13438", "M3 3l10 10M13 3L3 13"],
  ["stalled", "#e8710a", "M5 3v10M11 3v10"],
  ["slower", "#c99700", "M3 5l5 6 5-6"],
  ["idle", "#8a8f98", "M3 8h10"],
  ["unknown", "#6e5a7e", "M5 5a3 3 0 1 1 3 4v1M8 13v1"],
  ["starting", "#4aa3df", "M4 8h8M8 4v8"],
  ["training", "#2e9d5b", "M4 3l9 5-9 5z"],
  ["evaluating", "#17a2a2", "M8 3a5 5 0 1 0 .1 0"],
  ["checkpointing", "#3b6fd4", "M3 3h10v10H3z"],
  ["serving", "#9b59d0", "M3 8a5 5 0 0 1 10 0M3 8h10"],
  ["ended", "#00000000", "M3 13h10"],
];
const BY_NAME = new Map(STATES.map(([name, colour, sign], rank) => [name, { colour, sign, rank }]));

export const stateOf = (wire) => (wire || "").replace("JOB_STATE_", "").toLowerCase() || "unknown";
export const colourOf = (state) => (BY_NAME.get(state) || BY_NAME.get("unknown")).colour;
export const rankOf = (state) => (BY_NAME.get(state) || BY_NAME.get("unknown")).rank;

export function stateMark(state) {
  const known = BY_NAME.get(state) || BY_NAME.get("unknown");
  const picture = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", {
    d: known.sign, fill: "none", "stroke-width": "3", stroke: known.colour.length > 7 ? "currentColor" : known.colour,
  }));
  return el("span", { className: "state" }, picture, state);
}

export const secondsOf = (time) => (time ? Date.parse(time) / 1000 : NaN);
export const lengthOf = (duration) => (duration ? parseFloat(duration) : NaN);

export function timeText(seconds) {
  return Number.isFinite(seconds)
    ? new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" })
    : "not known";
}

export function lengthText(seconds) {
  if (!Number.isFinite(seconds)) return "not known";
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${(seconds * 1000).toPrecision(3)} ms`;
  if (seconds < 120) return `${seconds.toPrecision(3)} s`;
  if (seconds < 7200) return `${(seconds / 60).toPrecision(3)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toPrecision(3)} h`;
  return `${(seconds / 86400).toPrecision(3)} d`;
}

export const dollarText = (usd) => (Number.isFinite(usd) ? `$${usd >= 100 ? usd.toFixed(0) : usd.toPrecision(3)}` : "price not known");
export const shareText = (share) => `${(100 * share).toPrecision(3)} %`;

export function table(caption, head, rows) {
  return el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption },
    el("table", {},
      el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell) => (
        cell instanceof HTMLTableCellElement ? cell : el("td", {}, cell)
      )))))));
}

export const roleOf = (cycle) => cycle.role.replace("CYCLE_ROLE_", "").toLowerCase().replace("unspecified", "unknown");
const SURE_ROLE = 0.7;

// What a level's cycles are called; an epoch only where it is known to be one.
export function nounOf(level) {
  const role = level && level.role_confidence >= SURE_ROLE ? roleOf(level) : "unknown";
  if (role === "epoch") return role;
  return role === "unknown" || role === "evaluation" ? "cycle" : `${role} cycle`;
}

export const jobAddress = (jobId) => `#/jobs/${encodeURIComponent(jobId)}`;

// Without the GPUs that a job had before it was put back into the queue.
export const presentOf = (job) => job.members.filter((member) => member.active || !job.active);

// The run that speaks for a job.
export const runOf = (job) => [...job.members].reverse().find((member) => member.run_id)?.run_id;

// Replaces what is in a box; who was on a link or a button there is on the one in its place.
export function refill(box, ...children) {
  const places = () => [...box.querySelectorAll("a, button")];
  const at = places().indexOf(document.activeElement);
  box.replaceChildren(...children);
  if (at >= 0) places()[at]?.focus();
}
