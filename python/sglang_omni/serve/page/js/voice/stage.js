/* What a person sees of a hands-free conversation from across a room: who speaks, how loud, and the latest words. */

import { el } from "../dom.js";

const MOST_LETTERS = 120;

export class Stage {
  #orb = el("div", { class: "orb" });
  /* The conversation's log is what screen readers read. */
  #caption = el("p", { class: "caption", dir: "auto" });
  element = el("div", { class: "voice-stage", "aria-hidden": "true", hidden: true }, this.#orb, this.#caption);

  constructor(conversation) {
    conversation.addEventListener("turn", ({ detail: turn }) => {
      this.#caption.textContent = "";
      turn.addEventListener("change", () => {
        const isShown = !this.element.hidden && turn === conversation.turns.at(-1);
        if (isShown) this.#caption.textContent = lastWords(turn.text || turn.heard);
      });
    });
  }

  /** @param state "listening", "hearing", "thinking" or "speaking". */
  set state(state) {
    this.#orb.dataset.state = state;
  }

  /** How loud the microphone is, from 0 to 1. */
  set loudness(loudness) {
    this.#orb.style.setProperty("--loudness", loudness.toFixed(2));
  }

  set isOpen(isOpen) {
    this.element.hidden = !isOpen;
    this.#caption.textContent = "";
    this.element.parentElement.classList.toggle("hands-free", isOpen);
  }
}

/* The end of a text, from a word's beginning. */
function lastWords(text) {
  if (text.length <= MOST_LETTERS) return text;
  const end = text.slice(-MOST_LETTERS);
  return `… ${end.slice(end.search(/\s/) + 1)}`;
}
