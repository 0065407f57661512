// What to rent for the epochs that a job still has: plans by time and cost, and the one for a deadline.

import { evident } from "./evidence.js";
import { dollarText, el, jobAddress, lengthText, runOf, table } from "./parts.js";
import { Plane } from "./plane.js";

const STEPS = 1000;
const TERMS = [
  ["epochs", "Epochs to train", ""], ["batch_size", "Batch per GPU", ""], ["steps_per_epoch", "Steps per epoch", ""],
  ["quota", "Machines of each kind", 8],
];

export class PlanView {
  constructor(api, place, jobId) {
    this.api = api;
    this.jobId = jobId;
    this.stop = new AbortController();
    this.points = [];
    this.note = el("p", { role: "status", className: "note" }, "Say how many epochs are to be trained.");
    this.terms = Object.fromEntries(TERMS.map(([name, , value]) => [name, el("input", { type: "number", min: 1, max: 4000000000, value })]));
    this.terms.epochs.required = true;
    this.providers = el("input", { placeholder: "all", size: 16 });
    this.slider = el("input", { type: "range", min: 0, max: STEPS, value: STEPS });
    this.slider.addEventListener("input", () => this.setDeadline(this.times[0] * (this.times[1] / this.times[0]) ** (this.slider.value / STEPS)));
    this.told = el("output");
    this.box = el("div");
    this.plan = el("div", { role: "status" });
    this.list = el("div");
    this.deadlineRow = el("div", { className: "row", hidden: true }, el("label", { className: "wide" }, "Deadline ", this.slider), this.told);
    const form = el("form", { className: "row" },
      ...TERMS.map(([name, label]) => el("label", {}, `${label} `, this.terms[name])),
      el("label", {}, "Clouds ", this.providers), el("button", {}, "Plan"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.solve();
    });
    place.append(
      el("p", {}, el("a", { href: jobAddress(jobId) }, "The job")), el("h2", {}, `What to rent for ${jobId}`),
      form, this.note, this.deadlineRow, this.plan, this.box, this.list,
    );
    this.plane = new Plane(this.box, "time that is kept, and the mean cost", (time) => this.setDeadline(time));
  }

  close() {
    this.stop.abort();
    this.plane.close();
  }

  change() {}

  load() {
    if (!this.points.length && this.terms.epochs.value) this.solve();
  }

  async solve() {
    this.stop.abort();
    this.stop = new AbortController();
    const { signal } = this.stop;
    this.note.textContent = "planning";
    try {
      const { job } = await this.api.get(`/v1/jobs/${encodeURIComponent(this.jobId)}`, {}, signal);
      this.runId = runOf(job);
      if (!this.runId) throw new Error("no GPU has worked for this job yet");
      const posed = await this.api.post("/v1/plans:pose", this.question(), signal);
      this.body = { problem: posed.problem };
      const front = await this.api.post("/v1/plans:pareto", this.body, signal);
      this.show(front, posed.assumed);
    } catch (error) {
      if (error.name !== "AbortError") this.note.textContent = `Not planned: ${error.message}.`;
    }
  }

  question() {
    const told = Object.entries(this.terms).filter(([, input]) => input.value).map(([name, input]) => [name, Number(input.value)]);
    const providers = this.providers.value.split(",").map((name) => name.trim()).filter(Boolean);
    return { run_id: this.runId, ...Object.fromEntries(told), providers };
  }

  show(front, assumed) {
    this.assumed = [...assumed, ...front.notes];
    this.points = unbeaten(front.points.map(pointOf));
    this.note.textContent = this.points.length
      ? `${this.points.length} plans that no other one beats in both the time that is kept and the mean cost${front.complete ? "" : " (time ran out: some may be missing)"}; ${assumed.join("; ")}.`
      : `No plan is possible; ${this.assumed.join("; ")}.`;
    this.deadlineRow.hidden = !this.points.length;
    this.list.replaceChildren();
    this.plan.replaceChildren();
    this.plane.show([]);
    if (!this.points.length) return;
    this.best = null;
    const times = this.points.map((point) => point.time);
    this.times = [Math.min(...times), Math.max(...times) * 1.05];
    this.list.replaceChildren(table("plans", ["Time kept", "Mean time", "Mean cost", "Cost kept", "Machines"], this.points.map((point) => [
      lengthText(point.time), lengthText(point.timeLow), this.number(point, dollarText(point.cost)), dollarText(point.costHigh),
      el("td", { className: "why" }, point.machines)])));
    this.setDeadline(this.times[1]);
  }

  // The cheapest plan that keeps it.
  setDeadline(seconds) {
    if (!this.points.length) return;
    const deadline = Math.min(Math.max(seconds, this.times[0]), this.times[1]);
    const kept = this.points.filter((point) => point.time <= deadline * (1 + 1e-9));
    const best = kept.reduce((least, point) => (least && least.cost <= point.cost ? least : point), null);
    this.slider.value = Math.round((STEPS * Math.log(deadline / this.times[0])) / Math.log(this.times[1] / this.times[0]));
    this.slider.setAttribute("aria-valuetext", lengthText(deadline));
    this.told.textContent = lengthText(deadline);
    this.plane.show(this.points.map((point) => ({ ...point, sign: point === best ? "here" : "known" })), {
      line: true, deadline, label: `${this.points.length} plans by time and cost; by ${lengthText(deadline)} it is ${best.text}`,
    });
    if (best === this.best) return;
    this.best = best;
    this.plan.replaceChildren(el("p", {}, `${best.machines}: `, this.number(best, dollarText(best.cost)),
      `, mean time ${lengthText(best.timeLow)}, kept ${lengthText(best.time)}, ${dollarText(best.rate)} per hour`));
  }

  number(point, text) {
    return evident(this.api, text, () => ({
      title: `${dollarText(point.cost)} in ${lengthText(point.timeLow)}`,
      facts: [
        ["Machines", point.machines], ["With the wanted confidence", `at most ${lengthText(point.time)} and ${dollarText(point.costHigh)}`],
        ["Model", "each GPU's predicted epoch latency, steps put together by the simulator, all plans searched by the optimizer"],
        ["Taken for granted", this.assumed.join("; ")],
      ],
      path: "/v1/plans:pareto", body: this.body, runId: this.runId,
    }));
  }
}

// By time. The collector's plans are unbeaten in other measures, too: mean time, or the cost that is kept.
function unbeaten(points) {
  const ordered = points.sort((a, b) => a.time - b.time || a.cost - b.cost);
  return ordered.filter((point, index) => ordered.slice(0, index).every((one) => one.cost > point.cost));
}

function pointOf({ plan, estimate }) {
  const { accumulation_steps: steps = 1, sharding = "none", checkpointing = false } = plan.mode || {};
  const mode = [steps > 1 && `${steps} micro-batches`, sharding !== "none" && sharding, checkpointing && "checkpointed"].filter(Boolean);
  const machines = [plan.groups.map((one) => `${one.machines} x ${one.offer} @ ${one.batch_size}`).join(" + "), ...mode].join(", ");
  const [time, cost] = [estimate.time_at_confidence_s, estimate.cost_usd];
  return {
    time, cost, machines, timeLow: estimate.time_s, timeHigh: time, costLow: cost, costHigh: estimate.cost_at_confidence_usd,
    rate: estimate.usd_per_hour, text: `${machines}, ${lengthText(time)}, ${dollarText(cost)}`,
  };
}
