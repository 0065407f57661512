// One job: what it does and why, when it ends, which machine drags, its traces with the tree of its cycles.

import { Chart } from "./chart.js";
import { evident } from "./evidence.js";
import { el, jobAddress, lengthOf, lengthText, nounOf, refill, roleOf, runOf, secondsOf, shareText, stateMark, stateOf, table, timeText } from "./parts.js";

const MOST_SHOWN = 8;
const REFRESH_MS = 5000;

export class JobView {
  constructor(api, place, jobId) {
    this.api = api;
    this.jobId = jobId;
    this.stop = new AbortController();
    this.loadedMs = 0;
    this.total = el("input", { type: "number", min: 1, max: 4000000000, id: "total" });
    this.total.addEventListener("change", () => this.load());
    this.metric = el("select", { id: "metric" });
    this.metric.addEventListener("change", () => this.chart?.setMetric(this.metric.value));
    this.note = el("p", { role: "status", className: "note" }, "loading");
    this.facts = el("dl");
    this.tables = el("div");
    this.box = el("div", { className: "chart", tabIndex: 0, role: "group" });
    this.heading = el("h2", {}, jobId);
    place.append(
      el("p", { className: "row" }, el("a", { href: "#/" }, "All jobs"), el("a", { href: `${jobAddress(jobId)}/elsewhere` }, "On other GPUs"),
        el("a", { href: `${jobAddress(jobId)}/plan` }, "What to rent")),
      this.heading, this.note, this.facts,
      el("div", { className: "row" },
        el("label", {}, "Cycles in all ", this.total),
        el("label", {}, "Metric ", this.metric)),
      this.box,
      el("p", { className: "note" }, "W and S zoom, A and D move, 0 shows everything; with the mouse drag over a stretch, double-click for everything."),
      this.tables,
    );
    this.box.addEventListener("keydown", (event) => {
      if (this.chart?.key(event.key)) event.preventDefault();
    });
  }

  close() {
    this.stop.abort();
    clearTimeout(this.later);
    this.chart?.close();
  }

  async load() {
    this.loadedMs = performance.now();
    try {
      const path = `/v1/jobs/${encodeURIComponent(this.jobId)}`;
      const { job } = await this.api.get(path, { total_cycles: this.total.value }, this.stop.signal);
      this.runId = runOf(job);
      const epochs = this.runId
        ? await this.api.get(`/v1/runs/${encodeURIComponent(this.runId)}/epochs`, { page_size: 2000 }, this.stop.signal)
        : { epochs: [], cycles: [] };
      this.show(job, epochs);
      await this.showChart(job, epochs);
    } catch (error) {
      if (error.name !== "AbortError") this.note.textContent = `Not loaded: ${error.message}.`;
    }
  }

  change(change) {
    if (!change.jobs.some((job) => job.job_id === this.jobId)) return;
    // Not left out when it comes too soon: the last one, that the job has ended, is followed by no other.
    clearTimeout(this.later);
    this.later = setTimeout(() => this.load(), Math.max(0, this.loadedMs + REFRESH_MS - performance.now()));
  }

  show(job, epochs) {
    this.note.textContent = "";
    this.heading.replaceChildren(job.job_id, " ", stateMark(stateOf(job.state)));
    const asked = { path: `/v1/jobs/${encodeURIComponent(this.jobId)}`, fields: { total_cycles: this.total.value }, runId: this.runId };
    const number = (text, title, facts, more = asked) => evident(this.api, text, () => ({ title, facts, ...more }));
    const { estimate } = job;
    const facts = [
      ["Why", job.reason || "not known", " (probability ", number(job.confidence.toFixed(2), `The state: ${stateOf(job.state)}`, [
        ["Rests on", job.reason], ["Probability that it is right", job.confidence.toFixed(3)], ["Since", timeText(secondsOf(job.state_time))]]), ")"],
      ["Since", timeText(secondsOf(job.state_time))],
      ["Ran", `${timeText(secondsOf(job.start_time))} to ${timeText(secondsOf(job.end_time))}`],
      ["Ends", estimate ? number(endText(job), "The end of the job", [
        ["Rests on", estimate.basis], ["Done and left", `${estimate.epochs_done} and ${estimate.epochs_left} cycles`]]) : endText(job)],
    ];
    if (job.level) facts.push(["Progress counts", cycleText(job.level)]);
    if (job.progress_ratio !== undefined) facts.push(["Done", number(shareText(job.progress_ratio), "The share that is done", [["Rests on", estimate?.basis]])]);
    if (job.goodput_ratio !== undefined) {
      facts.push(["Time that made progress", number(shareText(job.goodput_ratio), "The share of time that made progress", [
        ["Of", `${lengthText(lengthOf(job.gpu_time))} of its GPUs`], ["Rests on", "the states that the job was in: training and evaluating count"]])]);
    }
    facts.push(["Cycles found", epochs.reason || "none yet"]);
    refill(this.facts, ...facts.flatMap(([name, ...told]) => [el("dt", {}, name), el("dd", {}, ...told)]));
    const parts = [];
    const drags = [
      ...job.slow_devices.map((one) => [one.gpu_uuid || one.host_name || one.agent_id,
        number(`may make the others wait, probability ${one.probability.toFixed(2)}`, "What drags", [["Rests on", one.evidence]]), one.evidence]),
      ...job.deviations.map((one) => [one.gpu_uuid, number(one.kind, "What differs", [["Rests on", deviationText(one)]]), deviationText(one)]),
    ];
    if (drags.length) parts.push(el("h2", {}, "What drags"), table("what drags", ["GPU or host", "How", "Why"], drags));
    if (epochs.cycles.length) {
      const found = { path: `/v1/runs/${encodeURIComponent(this.runId)}/epochs`, runId: this.runId };
      parts.push(el("h2", {}, "Cycles"), table("cycles", ["Role", "Period", "95 % between", "Seen", "Probability", "Inside of"],
        epochs.cycles.map((cycle) => {
          const between = `${lengthText(lengthOf(cycle.period_lower))} and ${lengthText(lengthOf(cycle.period_upper))}`;
          return [
            roleOf(cycle), number(lengthText(lengthOf(cycle.period)), `A cycle of ${lengthText(lengthOf(cycle.period))}`, [
              ["95 % between", between], ["Rests on", `${cycle.count} cycles seen; ${epochs.reason}`],
              ["Probability of the level, of its role", `${cycle.confidence.toFixed(2)}, ${cycle.role_confidence.toFixed(2)}`]], found),
            between, `${cycle.count}`, cycle.confidence.toFixed(2), cycle.parent === undefined ? "" : roleOf(epochs.cycles[cycle.parent]),
          ];
        })));
    }
    parts.push(el("h2", {}, "GPUs"), table("GPUs", ["GPU", "Model", "Host", "Run", "Active"],
      job.members.map((one) => [one.gpu_uuid, one.product_name, one.host_name || one.agent_id, one.run_id || "none", one.active ? "yes" : "no"])));
    refill(this.tables, ...parts);
  }

  async showChart(job, epochs) {
    const runs = job.members.filter((member) => member.run_id);
    const newest = new Map(runs.map((member) => [member.gpu_uuid, member]));
    const shown = [...newest.values()].slice(0, MOST_SHOWN);
    if (!shown.length) return;
    const [start, end] = [secondsOf(job.start_time), secondsOf(job.end_time)];
    if (!this.chart) {
      this.chart = new Chart(this.box, (run, fields) => (
        this.api.get(`/v1/runs/${encodeURIComponent(run)}/samples`, fields, this.stop.signal)
      ), (metrics, metric) => this.metric.replaceChildren(...metrics.map((name) => el("option", { selected: name === metric }, name))));
    }
    const label = `Trace of ${shown.length} of ${newest.size} GPUs with the job's cycles`;
    this.box.setAttribute("aria-label", label);
    await this.chart.show(shown, start, Math.max(end, start + 1), levelsOf(epochs));
  }
}

const cycleText = (cycle) => `${nounOf(cycle)}s of ${lengthText(lengthOf(cycle.period))}, ${cycle.count} seen`;

function endText(job) {
  if (!job.active) return "it has ended";
  const estimate = job.estimate;
  if (!estimate) return job.estimate_reason || "not known: say above how many cycles it has in all";
  return `${timeText(secondsOf(estimate.end_time))}, between ${timeText(secondsOf(estimate.end_time_lower))} and`
    + ` ${timeText(secondsOf(estimate.end_time_upper))} (${shareText(estimate.interval_coverage)}); ${estimate.basis}`;
}

function deviationText(one) {
  return {
    idle: `its mean load is ${shareText(one.amount)}`, lag: `it is ${lengthText(one.amount)} behind`,
    missing: `${one.amount} cycles are missing`, unlike: `its correlation with the others is ${one.amount.toFixed(2)}`,
  }[one.kind] || `${one.amount}`;
}

// Levels shortest first, each with the times at which its cycles start.
function levelsOf(epochs) {
  const levels = epochs.cycles.map((cycle) => ({ name: roleOf(cycle), starts: cycle.latest_start_times.map(secondsOf) }));
  const told = epochs.epochs.flatMap((epoch) => [secondsOf(epoch.start_time), secondsOf(epoch.end_time)]);
  const starts = [...new Set(told)].sort((a, b) => a - b);
  if (starts.length && epochs.level !== undefined && levels[epochs.level]) levels[epochs.level].starts = starts;
  else if (starts.length) levels.push({ name: "epoch", starts });
  return levels;
}
