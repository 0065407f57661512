// What speaks for a number: its data, its model and version, and the command that gives it again.

import { el, secondsOf, timeText } from "./parts.js";

const dialog = document.getElementById("evidence");
let version = null;

// A number that can be asked for its evidence; about() tells { title, facts, path, fields or body, runId }.
export function evident(api, text, about) {
  const button = el("button", { className: "number", type: "button", title: "what speaks for this" }, text);
  button.addEventListener("click", () => show(api, about()));
  return button;
}

async function show(api, { title, facts, path, fields = {}, body = undefined, runId = "" }) {
  const list = el("dl", {}, ...entries(facts));
  dialog.replaceChildren(
    el("form", { method: "dialog" },
      el("h2", { id: "evidence-title" }, title), list,
      el("h3", {}, "The same again"),
      el("pre", { tabIndex: 0 }, commandOf(api, path, fields, body)),
      el("button", { autofocus: true }, "Close")));
  dialog.showModal();
  try {
    version ??= (await api.get("/v1/openapi.json")).info.version;
    list.append(...entries([["Computed by", `gpusonde ${version}, the collector at ${location.host}`]]));
    if (runId) list.prepend(...entries([["Data", dataText((await api.get(`/v1/runs/${encodeURIComponent(runId)}`)).run)]]));
  } catch (error) {
    list.append(...entries([["Not loaded", error.message]]));
  }
}

const entries = (facts) => facts.filter(([, text]) => text).flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]);

function dataText(run) {
  return `${run.tick_count} ticks of GPU ${run.gpu_uuid} (${run.product_name || "model not known"}) on ${run.host_name || run.agent_id},`
    + ` ${timeText(secondsOf(run.start_time))} to ${timeText(secondsOf(run.end_time))}, ${run.missed_ticks} missed`
    + `${run.replayed ? ", replayed from a file" : ""}; run ${run.run_id}`;
}

function commandOf(api, path, fields, body) {
  const query = new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== ""));
  return [
    "curl -s", ...(api.hasToken() ? ["-H \"Authorization: Bearer $TOKEN\""] : []),
    ...(body ? ["-H 'Content-Type: application/json' -d", quoted(JSON.stringify(body))] : []),
    quoted(location.origin + path + (query.size ? `?${query}` : "")),
  ].join(" ");
}

// For a shell: nothing in it is a command.
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
