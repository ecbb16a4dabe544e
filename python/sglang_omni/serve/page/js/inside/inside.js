/* Inside: the pipeline drawn as a graph, live, and the way of the page's own requests through it. */

import { el } from "../dom.js";
import { Diagram } from "./diagram.js";
import { Fleet } from "./fleet.js";
import { Numbers } from "./numbers.js";
import { Passage } from "./passage.js";
import { Samples } from "./samples.js";
import { NothingTold, Source } from "./source.js";

/* Milliseconds between two questions. */
const BUSY_MS = 250, IDLE_MS = 1000, FAILED_MS = 3000;
/* For so long after its answer a request is asked for: its stages report their end a moment later. */
const SETTLES_MS = 1500;

/**
 * Shows the inside of the server in an element, while a person can see it.
 *
 * @param request sends a request, as `fetch` does.
 * @param conversation tells by the event "request" of { id } that is sent, and by "answer" of its end.
 */
export function mountInside(element, { request, conversation }) {
  new Inside(element, request, conversation);
}

class Inside {
  #source;
  #diagram = new Diagram();
  #numbers = new Numbers();
  #passage = new Passage();
  #problem = el("p", { class: "note inside-problem", role: "status" });
  #content = el("div", { class: "inside-content", hidden: true }, this.#diagram.element, this.#passage.element, this.#numbers.element);
  #fleet = new Fleet((worker) => this.#choose(worker));
  #samples = new Samples();
  #element;
  #isSeen = false;
  #timer = 0;
  #turn = 0;
  /* The worker whose pipeline is shown, and the one that was drawn; undefined at a server. */
  #worker;
  #drawn = null;
  /* The latest request: { sent, worker, told, ended }. */
  #own = null;

  constructor(element, request, conversation) {
    this.#source = new Source(request);
    this.#element = element;
    element.classList.add("inside");
    element.append(this.#problem, this.#fleet.element, this.#content);
    conversation.addEventListener("request", ({ detail }) => this.#begin(detail));
    conversation.addEventListener("answer", ({ detail }) => this.#end(detail));
    new IntersectionObserver((entries) => this.#see(entries.at(-1).isIntersecting)).observe(element);
    new ResizeObserver(() => this.#resize()).observe(element);
    document.addEventListener("visibilitychange", () => this.#see(element.checkVisibility()));
    loadStyles();
  }

  #see(isSeen) {
    this.#isSeen = isSeen && !document.hidden;
    this.#ask();
  }

  #resize() {
    /* A panel that is closed has no width. */
    if (!this.#element.clientWidth) return;
    this.#diagram.fit(this.#element.clientWidth);
    this.#show();
  }

  #begin(sent) {
    this.#own = { sent, worker: undefined, told: null, ended: null };
    this.#ask();
  }

  #end({ timings }) {
    if (!this.#own) return;
    this.#own.ended = performance.now();
    this.#own.timings = timings;
    this.#ask();
  }

  #choose(worker) {
    this.#worker = worker;
    this.#ask();
  }

  get #isBusy() {
    return this.#own !== null && (this.#own.ended === null || performance.now() - this.#own.ended < SETTLES_MS);
  }

  /* Asks now, and again as long as the page is seen. A later call ends what an earlier one began. */
  async #ask() {
    clearTimeout(this.#timer);
    const turn = ++this.#turn;
    if (!this.#isSeen) return;
    let pause = this.#isBusy ? BUSY_MS : IDLE_MS;
    try {
      await this.#update(() => turn === this.#turn);
      this.#problem.textContent = "";
    } catch (error) {
      if (turn !== this.#turn) return;
      this.#problem.textContent = error instanceof NothingTold ? error.message : "The server does not answer.";
      this.#content.hidden = this.#drawn === null;
      pause = error.mayChange === false ? Infinity : FAILED_MS;
    }
    if (turn === this.#turn && pause < Infinity) this.#timer = setTimeout(() => this.#ask(), pause);
  }

  /* @param isCurrent whether what comes of it is still wanted. */
  async #update(isCurrent) {
    const fleet = await this.#source.fleet();
    if (!isCurrent()) return;
    const own = this.#own;
    if (this.#isBusy) {
      const told = await this.#source.passage(own.sent.id, own.worker);
      if (!isCurrent()) return;
      if (told) this.#follow(own, told);
      else if (own.timings) this.#passage.showTimings(own.timings);
    }
    if (fleet) {
      /* A worker that has left shows nothing more. */
      if (!fleet.workers.some((each) => each.id === this.#worker)) this.#worker = fleet.workers[0]?.id;
      this.#fleet.show(fleet, this.#worker, own);
      if (this.#worker === undefined) throw new NothingTold("The router has no workers.", true);
    }
    if (this.#drawn !== (this.#worker ?? "server")) {
      const shape = await this.#source.pipeline(this.#worker);
      if (!isCurrent()) return;
      this.#diagram.shape = shape;
      this.#numbers.shape = shape;
      this.#samples.clear();
      this.#drawn = this.#worker ?? "server";
    }
    const load = await this.#source.load(this.#worker);
    if (!isCurrent()) return;
    this.#samples.add(load, load.at);
    this.#content.hidden = false;
    this.#diagram.fit(this.#element.clientWidth);
    this.#show();
  }

  #follow(own, told) {
    /* The pipeline of the worker that has the request is the one to see, when it is found. */
    if (told.worker !== undefined && own.worker === undefined) this.#worker = told.worker;
    own.worker = told.worker;
    own.told = told;
    this.#passage.show(told);
  }

  #show() {
    if (!this.#samples.last) return;
    const told = this.#own?.worker === this.#worker ? this.#own?.told : null;
    const been = new Set(this.#isBusy ? told?.visits.map(({ stage }) => stage) : []);
    this.#diagram.show(this.#samples, new Set(told?.at), been);
    this.#numbers.show(this.#samples);
  }
}

function loadStyles() {
  document.head.append(el("link", { rel: "stylesheet", href: new URL("inside.css", import.meta.url).pathname }));
}
