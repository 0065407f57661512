// What an epoch of a job takes and costs on every GPU of the catalogue, each with its interval.

import { evident } from "./evidence.js";
import { dollarText, el, jobAddress, lengthOf, lengthText, nounOf, refill, runOf, shareText, svg, table } from "./parts.js";
import { Plane, signOf } from "./plane.js";

const PRECISIONS = ["fp32", "tf32", "fp16", "bf16", "mixed", "fp8", "fp64"];
const SIGNS = [
  ["here", "measured here"], ["known", "predicted"], ["beyond", "extrapolated"],
  ["unfit", "memory too small"],
];
const FITS = { FITS_YES: "yes", FITS_LIKELY: "likely", FITS_NO: "no" };

export class Elsewhere {
  constructor(api, place, jobId) {
    this.api = api;
    this.jobId = jobId;
    this.stop = new AbortController();
    this.note = el("p", { role: "status", className: "note" }, "loading");
    this.precision = el("select", {}, el("option", { value: "" }, "not known"), ...PRECISIONS.map((name) => el("option", {}, name)));
    this.precision.addEventListener("change", () => this.load());
    this.order = el("select", {}, el("option", { value: "time" }, "time"), el("option", { value: "cost" }, "cost"));
    this.order.addEventListener("change", () => this.show());
    this.sure = el("input", { type: "checkbox" });
    this.sure.addEventListener("change", () => this.show());
    this.box = el("div");
    this.list = el("div");
    place.append(
      el("p", {}, el("a", { href: jobAddress(jobId) }, "The job")),
      el("h2", {}, `${jobId} elsewhere`), this.note,
      el("div", { className: "row" },
        el("label", {}, "Computes its products in ", this.precision), el("label", {}, "Order by ", this.order),
        el("label", {}, this.sure, " Only where it fits and nothing is extrapolated")),
      el("ul", { className: "keys", "aria-label": "signs" }, ...SIGNS.map(([sign, text]) => el("li", { className: "state" },
        svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true", class: `mark ${sign}` }, signOf(sign, 8, 8, 5)), text))),
      this.box, this.list,
    );
    this.plane = new Plane(this.box, "time that one takes, and its cost");
  }

  close() {
    this.stop.abort();
    this.plane.close();
  }

  change() {}

  async load() {
    try {
      const { job } = await this.api.get(`/v1/jobs/${encodeURIComponent(this.jobId)}`, {}, this.stop.signal);
      this.runId = runOf(job);
      if (!this.runId) throw new Error("no GPU has worked for this job yet");
      this.body = { run_id: this.runId, precision: this.precision.value };
      const [answer, { cycles, level }] = await Promise.all([
        this.api.post("/v1/predictions", this.body, this.stop.signal),
        this.api.get(`/v1/runs/${encodeURIComponent(this.runId)}/epochs`, { page_size: 1 }, this.stop.signal),
      ]);
      this.answer = answer;
      this.noun = nounOf(cycles[level]);
      this.show();
    } catch (error) {
      if (error.name !== "AbortError") this.note.textContent = `Not predicted: ${error.message}.`;
    }
  }

  show() {
    if (!this.answer) return;
    const found = this.answer.predictions.map(rowOf);
    const known = found.filter((row) => Number.isFinite(row.time));
    const order = this.order.value;
    const rows = known.filter((row) => !this.sure.checked || row.sign === "here" || row.sign === "known");
    rows.sort((a, b) => (Number.isFinite(b[order]) - Number.isFinite(a[order])) || a[order] - b[order] || a.time - b.time);
    const priced = rows.filter((row) => Number.isFinite(row.cost)).sort((a, b) => a.time - b.time);
    const here = this.answer;
    const count = here.source_gpu_count > 1 ? `${here.source_gpu_count} x ` : "";
    this.note.textContent = `${this.noun === "epoch" ? "An" : "A"} ${this.noun} takes ${lengthText(lengthOf(here.source_epoch_latency))} on ${count}${here.source_gpu_model}.`
      + ` Extrapolated: beyond what the model was fitted on. Cost: the cheapest whole machines on demand that hold as many GPUs; ${rows.length - priced.length} of ${rows.length} GPUs here have no such offer.`
      + (known.length < found.length ? ` ${found.length - known.length} more cannot be predicted: ${found.find((row) => !Number.isFinite(row.time)).reason}.` : "");
    const best = priced.reduce((least, row) => (least && least.cost <= row.cost ? least : row), null);
    this.plane.show(priced, { label: `Time and cost of one ${this.noun} on ${priced.length} GPUs`
      + (best ? `; the fastest is ${priced[0].name}, the cheapest ${best.name}` : "") + ". Arrow keys choose one; the table below has all." });
    refill(this.list, table("every GPU", ["GPU", `One ${this.noun}`, "Interval", `$ per ${this.noun}`, "Interval", "How", "Memory fits", "Offer"],
      rows.map((row) => [
        el("td", {}, row.name), this.number(row, lengthText(row.time)), row.between,
        Number.isFinite(row.cost) ? this.number(row, dollarText(row.cost)) : "",
        Number.isFinite(row.cost) ? `${dollarText(row.costLow)} to ${dollarText(row.costHigh)}` : "",
        el("td", { className: "word" }, row.how), row.fits, el("td", { className: "why" }, row.offer || "none in the catalogue"),
      ])));
  }

  number(row, text) {
    return evident(this.api, text, () => ({
      title: `One ${this.noun} on ${row.name}: ${lengthText(row.time)}`,
      facts: [
        ["Interval", `${row.between} (${shareText(row.coverage)})`], ["Model", `${this.answer.model_version}: ${row.method}`],
        ["Why so", row.reason], ["Price", row.offer],
        ["Waits for gradients", row.waits ? `${shareText(row.waits)} of the time` : ""],
      ],
      path: "/v1/predictions", body: { ...this.body, target_gpu_models: [row.model] }, runId: this.runId,
    }));
  }
}

function rowOf(one) {
  const [time, timeLow, timeHigh] = [one.epoch_latency, one.epoch_latency_lower, one.epoch_latency_upper].map(lengthOf);
  const rate = one.usd_per_hour === undefined ? NaN : one.usd_per_hour / 3600;
  const fits = FITS[one.fits] || "not known";
  const how = one.method === "measured" ? "measured" : one.extrapolated ? "extrapolated" : "predicted";
  const name = one.gpu_count > 1 ? `${one.gpu_count} x ${one.gpu_model}` : one.gpu_model;
  const between = `${lengthText(timeLow)} to ${lengthText(timeHigh)}`;
  return {
    model: one.gpu_model, name, time, timeLow, timeHigh, cost: rate * time, costLow: rate * timeLow, costHigh: rate * timeHigh,
    between, how, fits, method: one.method, reason: one.reason, offer: one.offer, waits: one.communication_ratio, coverage: one.interval_coverage,
    sign: fits === "no" ? "unfit" : { measured: "here", extrapolated: "beyond", predicted: "known" }[how],
    text: `${name}: ${lengthText(time)} (${between}), ${dollarText(rate * time)}, ${how}, memory fits: ${fits}; ${one.offer}`,
  };
}
