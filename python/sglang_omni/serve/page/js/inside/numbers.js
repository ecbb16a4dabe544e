/* The stages' numbers as a table, which says in words what the diagram shows. */

import { el } from "../dom.js";
import { percent, perSecond, seconds, short } from "./samples.js";
import { told } from "./diagram.js";

const COLUMNS = [
  ["Stage", "The stage"],
  ["Here", "Requests that the stage works on, keeps waiting or waits for more of"],
  ["Queue", "Requests that wait for a place in its batch"],
  ["Batch", "Requests that it works on, and the most that it does at once"],
  ["Work", "Work on a request, on average in the last minute or, without any, since the start"],
  ["Wait", "The rest of a request's time there: in a queue, or for another stage's output"],
  ["Cache", "What was found in its cache, of all that was looked for"],
];

/** The table of one pipeline. */
export class Numbers {
  #body = el("tbody");
  #edges = el("ul");
  #summary = el("p", { class: "inside-summary" });
  element = el("div", { class: "inside-numbers" },
    this.#summary,
    el("table", {},
      el("caption", { class: "offscreen" }, "The stages now"),
      el("thead", {}, el("tr", {}, COLUMNS.map(([name, title]) => el("th", { scope: "col", title }, name)))),
      this.#body),
    el("details", {}, el("summary", {}, "What goes between the stages"), this.#edges));
  #cells = new Map();

  set shape(shape) {
    this.#cells.clear();
    for (const { name } of shape.stages) this.#cells.set(name, COLUMNS.slice(1).map(() => el("td")));
    this.#body.replaceChildren(...[...this.#cells].map(([name, cells]) => el("tr", {}, el("th", { scope: "row" }, name), cells)));
    this.#edges.replaceChildren(...shape.edges.map((edge) => el("li", {}, told(edge))));
  }

  /** Shows samples of pipeline/load. */
  show(samples) {
    const { requests, stages } = samples.last;
    const rate = samples.rate((each) => each.requests.completed);
    this.#summary.textContent = `${requests.running} running, ${requests.waiting} waiting, ${perSecond(rate)} answered a second`;
    for (const [name, cells] of this.#cells) {
      const now = stages[name];
      const texts = now ? row(samples, name, now) : COLUMNS.slice(1).map(() => "–");
      cells.forEach((cell, index) => { if (cell.textContent !== texts[index]) cell.textContent = texts[index]; });
    }
  }
}

function row(samples, name, now) {
  const read = (field) => (each) => each.stages[name]?.[field] ?? 0;
  return [
    short(now.held),
    short(now.queued),
    now.most_running ? `${short(now.running)}/${short(now.most_running)}` : short(now.running),
    seconds(samples.ratio(read("work_s"), read("visits"))),
    seconds(samples.ratio(read("wait_s"), read("visits"))),
    now.cache_lookups ? percent(now.cache_hits / now.cache_lookups) : "–",
  ];
}
