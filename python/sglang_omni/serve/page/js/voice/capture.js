/* Runs beside the page, in the audio thread: takes the microphone's sound, and posts it as the server hears it. */

import { Resampler } from "./resampler.js";

class Capture extends AudioWorkletProcessor {
  #resampler;
  #size;
  #piece;
  #filled = 0;

  /* `rate`: of the pieces, in Hz; `size`: of each, in samples. */
  constructor({ processorOptions: { rate, size } }) {
    super();
    /* sampleRate is the context's, a global of worklets. */
    this.#resampler = new Resampler(sampleRate, rate);
    this.#size = size;
    this.#piece = new Int16Array(size);
    /* The page asks for what is there of the next piece. */
    this.port.onmessage = () => this.#post();
  }

  process([channels]) {
    /* A microphone that has not begun yet has no channel. */
    if (!channels.length) return true;
    for (const sample of this.#resampler.add(channels[0])) {
      this.#piece[this.#filled++] = Math.max(-32768, Math.min(32767, Math.round(32768 * sample)));
      if (this.#filled === this.#size) this.#post();
    }
    return true;
  }

  #post() {
    const samples = this.#piece.slice(0, this.#filled);
    this.#filled = 0;
    this.port.postMessage(samples, [samples.buffer]);
  }
}

registerProcessor("capture", Capture);
