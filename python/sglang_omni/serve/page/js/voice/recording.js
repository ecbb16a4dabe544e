/* What the microphone gave to a session, by its place in all of it, until it is known what of it was a turn. */

import { RATE } from "./microphone.js";

/* A detector sees the beginning of a turn late. */
const KEPT_MS = 10_000;

export class Recording {
  #pieces = [];
  /* Of the first piece, and the end of the last one. */
  #startMs = 0;
  #endMs = 0;

  get endMs() {
    return this.#endMs;
  }

  add(samples) {
    this.#pieces.push(samples);
    this.#endMs += 1000 * samples.length / RATE;
  }

  /** Forgets what is long before a place. */
  forget(beforeMs) {
    while (this.#pieces.length && this.#startMs < beforeMs - KEPT_MS) {
      this.#startMs += 1000 * this.#pieces.shift().length / RATE;
    }
  }

  /** The samples that lie between two places. */
  between(fromMs, toMs) {
    const place = (ms) => Math.max(0, Math.round((ms - this.#startMs) * RATE / 1000));
    const whole = new Int16Array(this.#pieces.reduce((sum, piece) => sum + piece.length, 0));
    let at = 0;
    for (const piece of this.#pieces) { whole.set(piece, at); at += piece.length; }
    return whole.slice(place(fromMs), place(toMs));
  }
}
