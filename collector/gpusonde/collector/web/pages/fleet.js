// The fleet: jobs, those that want somebody first, and the time of every GPU by state.

import { STATES, colourOf, el, jobAddress, lengthText, presentOf, rankOf, refill, secondsOf, stateMark, stateOf, table, timeText } from "./parts.js";

const PAGE = 500;
const MOST_JOBS = 3000;
const MOST_LISTED = 200;
const SPANS = [["15 minutes", 900], ["1 hour", 3600], ["6 hours", 21600], ["24 hours", 86400], ["7 days", 604800]];

export class Fleet {
  constructor(api, place) {
    this.api = api;
    this.jobs = new Map();
    this.span = 3600;
    this.rows = [];
    this.row = 0;
    this.stop = new AbortController();
    this.note = el("p", { className: "note", role: "status" }, "loading");
    this.list = el("div");
    this.canvas = el("canvas", { className: "heat", tabIndex: 0, role: "img" });
    this.told = el("p", { role: "status", className: "note" });
    const choice = el("select", { id: "span" }, ...SPANS.map(([text, seconds]) => el("option", { value: seconds, selected: seconds === this.span }, text)));
    choice.addEventListener("change", () => {
      this.span = Number(choice.value);
      this.load();
    });
    const keys = STATES.filter(([name]) => name !== "ended").map(([name]) => el("li", {}, stateMark(name)));
    place.append(
      el("div", { className: "row" }, el("h2", {}, "GPUs over time"), el("label", {}, "Time shown ", choice)),
      this.note,
      el("ul", { className: "keys", "aria-label": "states" }, ...keys),
      el("div", { className: "heat-box" }, this.canvas), this.told,
      el("h2", {}, "Jobs"), this.list,
    );
    this.canvas.addEventListener("mousemove", (event) => this.point(event.offsetY, event.offsetX));
    this.canvas.addEventListener("click", () => this.open());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(), { signal: this.stop.signal });
  }

  close() {
    this.stop.abort();
    this.resized.disconnect();
  }

  async load() {
    try {
      const found = new Map();
      for (let token = "", start = ""; ; ) {
        const page = await this.api.get("/v1/jobs", { page_size: PAGE, page_token: token, start_time: start }, this.stop.signal);
        for (const job of page.jobs) found.set(keyOf(job), job);
        if (!start && found.size) start = new Date((latest(found) - this.span) * 1000).toISOString();
        token = page.next_page_token;
        if (!token || found.size >= MOST_JOBS) break;
      }
      this.jobs = found;
      this.show();
    } catch (error) {
      if (error.name !== "AbortError") this.note.textContent = `Not loaded: ${error.message}.`;
    }
  }

  change(change) {
    for (const job of change.jobs) {
      const before = this.jobs.get(keyOf({ ...job, active: true }));
      // A job that has ended is not also active; one of its name that began afterwards is.
      if (!job.active && before && secondsOf(before.start_time) < secondsOf(job.end_time)) this.jobs.delete(keyOf(before));
      this.jobs.set(keyOf(job), job);
    }
    if (change.jobs.length) this.show();
  }

  show() {
    this.end = latest(this.jobs);
    // A fleet that is younger than the time to be shown fills the width, too.
    const first = Math.min(...[...this.jobs.values()].map((job) => secondsOf(job.start_time)));
    this.start = Math.min(Math.max(this.end - this.span, first), this.end - 1);
    const jobs = [...this.jobs.values()].filter((job) => secondsOf(job.end_time) >= this.start);
    jobs.sort((a, b) => b.active - a.active || rankOf(stateOf(a.state)) - rankOf(stateOf(b.state)) || secondsOf(b.start_time) - secondsOf(a.start_time));
    const active = jobs.filter((job) => job.active);
    const wanting = active.filter((job) => rankOf(stateOf(job.state)) < rankOf("unknown"));
    this.note.textContent = jobs.length
      ? `${active.length} active, ${wanting.length} of them hung, stalled, slower or idle; ${jobs.length - active.length} have ended.`
      : "No job has run here yet: start an agent, or replay a trace into this collector with 'gpusonde agent --replay'.";
    const rows = jobs.slice(0, MOST_LISTED).map((job) => [
      el("td", {}, el("a", { href: jobAddress(job.job_id) }, job.job_id)),
      stateMark(stateOf(job.state)),
      job.active ? lengthText(Math.max(0, this.end - secondsOf(job.state_time))) : "",
      `${new Set(presentOf(job).map((member) => member.gpu_uuid)).size}`,
      [...new Set(presentOf(job).map((member) => member.host_name || member.agent_id))].slice(0, 3).join(", "),
      el("td", { className: "why" }, job.reason),
    ]);
    refill(this.list, jobs.length ? table("jobs", ["Job", "State", "For", "GPUs", "Hosts", "Why"], rows) : "");
    this.rows = gpuRows(jobs, this.start, this.end);
    this.draw();
  }

  draw() {
    const width = this.canvas.parentElement?.clientWidth || 0;
    if (!width || !this.rows.length) {
      this.canvas.hidden = true;
      return;
    }
    this.canvas.hidden = false;
    this.height = this.rows.length > 100 ? 5 : 16;
    this.left = width > 600 && this.height > 10 ? 190 : 0;
    const ratio = devicePixelRatio || 1;
    const high = this.rows.length * this.height + 20;
    this.canvas.width = width * ratio;
    this.canvas.height = high * ratio;
    this.canvas.style.height = `${high}px`;
    const paint = this.canvas.getContext("2d");
    paint.scale(ratio, ratio);
    const style = getComputedStyle(document.body);
    paint.font = "12px system-ui, sans-serif";
    const across = (width - this.left) / (this.end - this.start);
    this.rows.forEach((row, index) => {
      const top = index * this.height;
      for (const span of row.spans) {
        paint.fillStyle = colourOf(span.state);
        const from = this.left + Math.max(0, span.start - this.start) * across;
        paint.fillRect(from, top, Math.max(1, this.left + (span.end - this.start) * across - from), this.height - 1);
      }
      paint.fillStyle = style.color;
      if (this.left) paint.fillText(`${row.host} ${row.gpu}`.slice(0, 27), 0, top + 12, this.left - 8);
    });
    paint.fillStyle = style.color;
    const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
    paint.fillText(clock(this.start), this.left, high - 5);
    const last = clock(this.end);
    paint.fillText(last, width - paint.measureText(last).width, high - 5);
    const counts = new Map();
    for (const row of this.rows) counts.set(row.state, (counts.get(row.state) || 0) + 1);
    const summary = [...counts].map(([state, count]) => `${count} ${state}`).join(", ");
    this.canvas.setAttribute("aria-label", `${this.rows.length} GPUs from ${clock(this.start)} to ${last}: ${summary}.`
      + " Arrow keys choose a GPU, Enter opens its job.");
  }

  point(y, x) {
    this.row = Math.min(this.rows.length - 1, Math.max(0, Math.floor(y / this.height)));
    const at = this.start + ((x - this.left) / (this.canvas.clientWidth - this.left)) * (this.end - this.start);
    this.tell(this.rows[this.row].spans.find((span) => span.start <= at && at < span.end));
  }

  tell(span) {
    const row = this.rows[this.row];
    if (!row) return;
    this.chosen = span || row.spans[row.spans.length - 1];
    const { state, job, start } = this.chosen;
    this.told.textContent = `${row.host} ${row.model} ${row.gpu}: ${state} since ${timeText(start)}, job ${job}.`;
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
    if (by) {
      event.preventDefault();
      this.row = Math.min(this.rows.length - 1, Math.max(0, this.row + by));
      this.tell();
    } else if (event.key === "Enter") {
      if (!this.chosen) this.tell();
      this.open();
    }
  }

  open() {
    if (this.chosen) location.hash = jobAddress(this.chosen.job);
  }
}

const keyOf = (job) => `${job.scheduler}/${job.job_id}/${job.active ? "" : job.start_time}`;

function latest(jobs) {
  let end = 0;
  for (const job of jobs.values()) end = Math.max(end, secondsOf(job.end_time));
  return end || Date.now() / 1000;
}

// A row for each GPU, those whose job wants somebody first.
function gpuRows(jobs, start, end) {
  const rows = new Map();
  for (const job of jobs) {
    const spans = job.history.map((span) => ({ state: stateOf(span.state), start: secondsOf(span.start_time), end: secondsOf(span.end_time) }));
    const state = stateOf(job.state);
    if (job.active) spans.push({ state, start: secondsOf(job.state_time), end });
    else if (!spans.length) spans.push({ state: "unknown", start: secondsOf(job.start_time), end: secondsOf(job.end_time) });
    const shown = spans.filter((span) => span.end > start && span.start < end).map((span) => ({ ...span, job: job.job_id }));
    if (!shown.length) continue;
    for (const member of presentOf(job)) {
      const key = `${member.agent_id} ${member.gpu_uuid}`;
      const row = rows.get(key) || {
        gpu: member.gpu_uuid, host: member.host_name || member.agent_id, model: member.product_name, spans: [], state: "ended",
      };
      if (rows.get(key)?.last === job) continue;
      row.last = job;
      row.spans.push(...shown);
      if (job.active) row.state = state;
      rows.set(key, row);
    }
  }
  for (const row of rows.values()) row.spans.sort((a, b) => a.start - b.start);
  return [...rows.values()].sort((a, b) => rankOf(a.state) - rankOf(b.state) || a.host.localeCompare(b.host) || a.gpu.localeCompare(b.gpu));
}
