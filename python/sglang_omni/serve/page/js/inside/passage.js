/* One request's way through the stages, as bars on a line of time. */

import { el } from "../dom.js";
import { seconds } from "./samples.js";

const STATES = { running: "is under way", completed: "is answered", failed: "has failed", aborted: "was stopped" };
const WAITING = "Waiting is for another stage's output, or for a place in the stage's batch.";

/** Shows the page's latest request. */
export class Passage {
  #title = el("p", { class: "inside-summary" });
  #bars = el("ol");
  element = el("section", { class: "inside-passage", "aria-label": "Your latest request", hidden: true },
    this.#title, this.#bars,
    el("p", { class: "inside-legend" },
      el("span", { class: "key work" }), "work ", el("span", { class: "key wait" }), `waiting: how much, not when. ${WAITING}`));

  /** Shows what `pipeline/requests` tells of it. */
  show(told) {
    const end = told.ended ?? told.now, whole = Math.max(end - told.began, 1e-3);
    const now = told.at.length ? `, now in ${told.at.join(" and ")}` : "";
    this.#title.textContent = `Your request ${STATES[told.state]} ${told.ended ? "after" : "for"} ${seconds(whole)}${now}`;
    this.#bars.replaceChildren(...told.visits.map((visit) => bar(visit, (visit.began - told.began) / whole, whole)));
    this.element.hidden = false;
  }

  /** Shows what an answer told itself, if nothing else is known of its request. @param timings by stage. */
  showTimings(timings) {
    const visits = Object.entries(timings).map(([stage, { work, wait }]) => ({ stage, work_s: work, wait_s: wait }));
    const longest = Math.max(1e-3, ...visits.map(({ work_s, wait_s }) => work_s + wait_s));
    this.#title.textContent = "Your request: its time in each stage, not when";
    this.#bars.replaceChildren(...visits.map((visit) => bar(visit, 0, longest)));
    this.element.hidden = false;
  }
}

/* @param start where it begins, as a share of the whole. */
function bar(visit, start, whole) {
  const { work_s: work, wait_s: wait } = visit, long = work + wait;
  const waiting = el("span", { class: "wait" }), working = el("span", { class: "work" });
  const line = el("span", { class: "time", "aria-hidden": "true" }, el("span", { class: "spent" }, waiting, working));
  const left = Math.min(Math.max(0, start), 1);
  line.firstChild.style.marginInlineStart = `${100 * left}%`;
  line.firstChild.style.width = `${100 * Math.min(long / whole, 1 - left)}%`;
  waiting.style.flexGrow = long ? wait / long : 0;
  working.style.flexGrow = long ? work / long : 0;
  return el("li", {}, el("span", { class: "stage-name" }, visit.stage), line,
    el("span", { class: "took" }, `${seconds(work)} work, ${seconds(wait)} waiting`));
}
