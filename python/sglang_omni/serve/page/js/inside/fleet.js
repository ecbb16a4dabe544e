/* The router and its workers, one of which shows its pipeline. */

import { el } from "../dom.js";
import { percent, perSecond, Samples } from "./samples.js";

/* A worker's state for people; the other states are the router's own words. */
const STATES = { unknown: "not asked yet", up: "up", busy: "busy", half_open: "on trial", hung: "hangs", failing: "fails" };

/** Shows what `fleet` tells. */
export class Fleet {
  #router = el("div", { class: "router" });
  #workers = el("ul");
  element = el("section", { class: "inside-fleet", "aria-label": "The router and its workers", hidden: true },
    this.#router, this.#workers);
  #samples = new Samples();
  #cards = new Map();
  #choose;

  /** @param choose called with the id of a worker whose pipeline a person wants to see. */
  constructor(choose) {
    this.#choose = choose;
  }

  /**
   * @param told the answer of `fleet`.
   * @param shown the worker whose pipeline is shown.
   * @param own the page's latest request: { worker, ended }, either null until it is known; null: there was none.
   */
  show(told, shown, own) {
    this.#samples.add({ ...told, byId: new Map(told.workers.map((each) => [each.id, each])) }, performance.now() / 1000);
    this.#router.replaceChildren(el("strong", {}, "Router"), el("span", {}, `policy ${told.policy}`),
      el("span", {}, `${told.requests.running} running, ${told.requests.waiting} waiting`), ...cache(told.counts));
    for (const id of this.#cards.keys()) if (!told.workers.some((each) => each.id === id)) this.#cards.delete(id);
    for (const worker of told.workers) {
      if (!this.#cards.has(worker.id)) this.#cards.set(worker.id, this.#card(worker.id));
      this.#fill(this.#cards.get(worker.id), worker, shown, own);
    }
    const items = [...this.#cards.values()].map(({ item }) => item);
    /* Only if they are others: a button that is put in again loses the focus. */
    if (items.some((item, index) => this.#workers.children[index] !== item) || items.length !== this.#workers.children.length) {
      this.#workers.replaceChildren(...items);
    }
    this.element.hidden = false;
  }

  #card(id) {
    const lines = Array.from({ length: 4 }, () => el("span"));
    const button = el("button", { type: "button", onclick: () => this.#choose(id) }, lines);
    return { item: el("li", {}, button), button, lines };
  }

  #fill({ button, lines }, worker, shown, own) {
    const served = worker.id === own?.worker;
    const isDown = ["down", "failing", "hung", "loop"].includes(worker.state);
    const rate = this.#samples.rate((each) => each.byId.get(worker.id)?.requests ?? 0);
    const texts = [
      `Worker ${worker.id}`,
      worker.draining ? "◐ draining" : `${isDown ? "✕" : "●"} ${STATES[worker.state] ?? worker.state}`,
      `${worker.load} at work, ${perSecond(rate)}/s`,
      served ? `${own.ended ? "had" : "has"} your request` : "",
    ];
    lines.forEach((line, index) => { line.textContent = texts[index]; });
    button.className = isDown ? "down" : worker.draining ? "draining" : "";
    button.classList.toggle("served", served);
    button.setAttribute("aria-pressed", String(worker.id === shown));
  }
}

/* How much was routed to where it was known, if the policy counts that. */
function cache(counts) {
  const told = [];
  if (counts.prompt_bytes_total) {
    told.push(`${percent(counts.matched_bytes_total / counts.prompt_bytes_total)} of the text went where it was known`);
  }
  if (counts.prompt_tokens_total) {
    told.push(`${percent(counts.cached_tokens_total / counts.prompt_tokens_total)} of the tokens were in a cache`);
  }
  return told.map((text) => el("span", {}, text));
}
