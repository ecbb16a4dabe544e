/* One turn on the page, which follows its Turn's changes. */

import { el, icon, iconButton } from "../dom.js";
import { Markdown } from "../markdown/blocks.js";
import { codeBlock } from "./code_block.js";
import { colourCode } from "./code_colours.js";
import { copyButton } from "./copy.js";
import { mediaView } from "./media.js";
import { problemView } from "./problem.js";
import { speechButtons } from "./speech.js";

const ENDS = {
  stopped: "Stopped",
  broken: "Not whole",
  cut: "Cut at the longest length",
  elsewhere: "Being answered in another tab",
};

/**
 * @param actions what a person can do with a turn: { edit(turn), regenerate(turn), shorten(turn), goOn(turn),
 *   play(samples, rate) }.
 */
export class TurnView {
  element;
  turn;
  #actions;
  #parts = {};
  #media = [];
  #markdown = null;
  #written = "";
  /* True once its code has colours, which a text that still grows cannot have. */
  #isColoured = false;
  #thought = 0;
  #frame = 0;
  #isLast = true;

  constructor(turn, actions) {
    this.turn = turn;
    this.#actions = actions;
    const isUser = turn.role === "user";
    const parts = this.#parts;
    parts.reasoning = el("div", { class: "reasoning-text" });
    parts.thoughts = el("details", { class: "reasoning", hidden: true }, el("summary", {}, "Reasoning"), parts.reasoning);
    parts.calls = el("div", { class: "calls" });
    parts.body = el("div", { class: isUser ? "body plain" : "body markdown", dir: "auto" });
    parts.end = el("div", { class: "end" });
    parts.note = el("p", { class: "note" });
    parts.actions = el("div", { class: "actions" });
    parts.media = el("div", { class: "files" });
    const id = `turn-${turn.id}`;
    this.element = el("article", { class: `turn ${turn.role}`, "aria-labelledby": id },
      el("h2", { class: "offscreen", id }, isUser ? "You" : "Answer"), parts.media, parts.thoughts, parts.body, parts.calls, parts.end,
      el("footer", {}, parts.note, parts.actions));
    for (const file of turn.media) {
      const view = mediaView(file);
      this.#media.push(view);
      parts.media.append(view.element);
    }
    turn.addEventListener("change", this.#changed);
    turn.addEventListener("finish", this.#show);
    this.#show();
  }

  /** Whether it is the last turn, which has ways on that the others lack. */
  set isLast(is) {
    if (this.#isLast === is) return;
    this.#isLast = is;
    this.#show();
  }

  remove() {
    this.turn.removeEventListener("change", this.#changed);
    this.turn.removeEventListener("finish", this.#show);
    cancelAnimationFrame(this.#frame);
    for (const view of this.#media) view.free();
    this.element.remove();
  }

  /* However many pieces come, the page is drawn once a frame. */
  #changed = () => { this.#frame ||= requestAnimationFrame(this.#show); };

  #show = () => {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const { turn } = this, parts = this.#parts;
    this.element.dataset.state = turn.state;
    if (turn.role === "user") this.#showWords();
    else this.#showMarkdown();
    parts.thoughts.hidden = !turn.reasoning;
    parts.reasoning.append(turn.reasoning.slice(this.#thought));
    this.#thought = turn.reasoning.length;
    parts.calls.replaceChildren(...turn.calls.filter(Boolean).map(callView));
    const end = ENDS[turn.state];
    const leftOut = turn.forgotten ? "left out of later messages" : turn.leftOut ? "files left out of later messages" : "";
    const notes = [...turn.notes, leftOut].filter(Boolean).join(" · ");
    parts.note.replaceChildren(...[end ? el("span", { class: "mark" }, end) : "", end && notes ? " · " : "", notes].filter(Boolean));
    if (turn.state === "running") {
      parts.end.replaceChildren();
      parts.actions.replaceChildren();
    } else this.#showEnd();
  };

  #showWords() {
    const { heard, text } = this.turn;
    this.#parts.body.replaceChildren(
      ...(heard ? [el("q", { class: "heard" }, heard)] : []), ...(text ? [el("span", {}, text)] : []));
  }

  #showMarkdown() {
    const { text, state } = this.turn;
    if (this.#isColoured && text === this.#written) return;
    /* A text that was replaced and did not grow, or that grows after its end, is written anew. */
    if (!this.#markdown || this.#isColoured || !text.startsWith(this.#written)) {
      this.#isColoured = false;
      this.#parts.body.replaceChildren();
      this.#markdown = new Markdown(this.#parts.body, codeBlock);
      this.#written = "";
    }
    if (text.length > this.#written.length) this.#markdown.write(text.slice(this.#written.length));
    this.#written = text;
    if (state === "running") return;
    this.#isColoured = true;
    for (const block of this.#parts.body.querySelectorAll("figure.code")) colourCode(block.querySelector("code"), block.dataset.language);
  }

  #showEnd() {
    const { turn } = this, actions = this.#actions, parts = this.#parts;
    const again = () => actions.regenerate(turn);
    const canGoOn = this.#isLast && turn.text && (turn.state === "cut" || turn.state === "broken");
    const goOn = canGoOn
      ? el("button", { type: "button", class: "small", onclick: () => actions.goOn(turn) }, icon("down"), el("span", {}, "Continue"))
      : null;
    const ways = { tryAgain: this.#isLast ? again : null, shorten: () => actions.shorten(turn), goOn };
    parts.end.replaceChildren(...[
      turn.problem ? problemView(turn.problem, ways) : goOn ? el("p", { class: "ways" }, goOn) : null,
    ].filter(Boolean));
    /* A problem has buttons of its own. */
    const canAnswerAgain = turn.role === "assistant" && !["failed", "elsewhere"].includes(turn.state) && !(turn.problem && this.#isLast);
    const hasWords = turn.text || turn.heard;
    parts.actions.replaceChildren(...[
      hasWords ? copyButton("Copy the message", () => turn.text || turn.heard) : null,
      turn.role === "user" && (turn.text || turn.media.length) ? iconButton("edit", "Edit the message and ask again", () => actions.edit(turn)) : null,
      canAnswerAgain ? iconButton("again", "Answer again", again) : null,
      ...(turn.speech ? speechButtons(turn, actions.play) : []),
    ].filter(Boolean));
  }
}

/* A call of a tool that the model asks for. The page calls none. */
function callView({ name, arguments: given }) {
  let shown = given;
  try { shown = JSON.stringify(JSON.parse(given), null, 2); } catch { /* It is not whole yet, or no JSON: as it came. */ }
  return el("details", { class: "call", open: true }, el("summary", {}, "Calls the tool ", el("code", {}, name)), el("pre", { tabindex: 0 }, shown));
}
