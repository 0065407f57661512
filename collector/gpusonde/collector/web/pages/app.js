// The page: which view is shown, whether the collector answers, who asks for a token.

import { Api } from "./api.js";
import { Elsewhere } from "./elsewhere.js";
import { Fleet } from "./fleet.js";
import { JobView } from "./job.js";
import { el } from "./parts.js";
import { PlanView } from "./plan.js";

const view = document.getElementById("view");
const link = document.getElementById("link");
const gone = document.getElementById("gone");
const VIEWS = { "": JobView, "/elsewhere": Elsewhere, "/plan": PlanView };
let shown = null;
let goneSince = null;

function askToken(why) {
  const dialog = document.getElementById("ask");
  const input = document.getElementById("ask-token");
  document.getElementById("ask-why").textContent = why;
  input.value = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    const closed = () => {
      if (!input.value.trim()) return dialog.showModal();
      dialog.removeEventListener("close", closed);
      resolve(input.value.trim());
      input.value = "";
    };
    dialog.addEventListener("close", closed);
  });
}

const api = new Api(askToken);

// What is no name in an address is shown as it stands there: the collector says that there is no such job.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  shown?.close();
  const job = location.hash.match(/^#\/jobs\/(.+?)(\/elsewhere|\/plan)?$/);
  const place = el("div");
  view.replaceChildren(place);
  shown = job ? new (VIEWS[job[2] ?? ""])(api, place, decoded(job[1])) : new Fleet(api, place);
  document.title = job ? `${decoded(job[1])} - gpusonde` : "gpusonde";
  shown.load();
}

function setLink(state) {
  if (state === "gone") {
    goneSince ??= new Date();
    gone.textContent = `The collector has not answered since ${goneSince.toLocaleTimeString()}. What is shown is from before;`
      + " this page tries again by itself.";
  } else if (goneSince) {
    goneSince = null;
    shown.load();
  }
  gone.hidden = state !== "gone";
  link.textContent = { here: "live", waiting: "waiting for a turn: many watch", gone: "not connected" }[state];
}

// By script: the address says which view is shown, and stays.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  view.focus();
});
addEventListener("hashchange", () => {
  show();
  view.focus();
});
show();
api.watch((change) => shown.change(change), setLink);
