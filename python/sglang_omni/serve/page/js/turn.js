/* One turn of a conversation: what was said, and what happened to it. */

import { samplesOf, wavOf } from "./wav.js";

/* What is kept of a turn, and comes back after a reload. Blobs are kept as they are. */
const KEPT = [
  "id", "role", "text", "heard", "reasoning", "calls", "media", "leftOut", "forgotten", "notes", "state", "problem", "speech",
  "began",
];

/**
 * A turn, which tells of its changes with the event "change".
 *
 * `state`: "running"; "whole"; "stopped" by the person; "broken" on the way; "cut" at the longest length; "failed"
 * before anything came; "elsewhere": another tab of this browser has it, and keeps it as it grows.
 * `heard`: the words that the model heard in the turn's sound.
 * `media`: of a person's turn, a list of { kind: "image" | "audio" | "video", name, blob }.
 * `leftOut`: True if later requests lack them.
 * `forgotten`: True if later requests lack the whole turn.
 * `place`: sorts the turns of a conversation, whichever tab they were begun in.
 * `speech`: of an answer, its sound as a WAV file's Blob, once it is finished.
 */
export class Turn extends EventTarget {
  id = crypto.getRandomValues(new Uint32Array(3)).join("-");
  role = "user";
  text = "";
  heard = "";
  reasoning = "";
  calls = [];
  media = [];
  leftOut = false;
  forgotten = false;
  notes = [];
  state = "running";
  problem = null;
  speech = null;
  began = Date.now();
  place = 0;
  #sound = [];
  #rate = 0;

  constructor(fields) {
    super();
    Object.assign(this, fields);
  }

  get record() {
    return Object.fromEntries(KEPT.map((name) => [name, this[name]]));
  }

  setText(text) {
    this.text = text;
    this.#changed();
  }

  setHeard(text) {
    this.heard = text;
    this.#changed();
  }

  appendText(text) {
    this.text += text;
    this.#changed();
  }

  appendReasoning(text) {
    this.reasoning += text;
    this.#changed();
  }

  /** A part of a call of a tool, as a stream's `delta.tool_calls` has it. */
  appendCall({ index, function: called }) {
    const call = (this.calls[index] ??= { name: "", arguments: "" });
    if (called.name) call.name = called.name;
    call.arguments += called.arguments ?? "";
    this.#changed();
  }

  /** Leaves the turn's files out of later requests. */
  leaveOut() {
    this.leftOut = true;
    this.#changed();
  }

  /** Leaves the turn out of later requests. */
  forget() {
    this.forgotten = true;
    this.#changed();
  }

  /** Takes over what another tab has kept of the turn, which is over there. */
  settle(record) {
    Object.assign(this, record);
    this.#changed();
    this.dispatchEvent(new Event("finish"));
  }

  /** A short remark below the turn, as "first word after 0.4 s". */
  note(text) {
    this.notes.push(text);
    this.#changed();
  }

  /** Keeps a piece of the turn's speech, for its replay: an Int16Array, and its rate in Hz. It plays nothing. */
  addAudio(samples, rate) {
    this.#sound.push(samples);
    this.#rate = rate;
  }

  /** Seconds of speech so far. */
  get seconds() {
    return this.#rate ? this.#sound.reduce((sum, piece) => sum + piece.length, 0) / this.#rate : 0;
  }

  /** Ends the turn with a problem: { message, detail, retryAfter, canRetry, isTooLong } (see problems.js), or an Error. */
  fail(problem) {
    const { message, detail = "", retryAfter = null, canRetry = true, isTooLong = false } = problem;
    this.problem = { message, detail, retryAfter, canRetry, isTooLong };
    this.finish(this.text || this.#sound.length ? "broken" : "failed");
  }

  finish(state = "whole") {
    this.state = state;
    if (this.#sound.length) this.speech = wavOf(this.#sound, this.#rate);
    this.#changed();
    this.dispatchEvent(new Event("finish"));
  }

  /** Has a turn that is over go on: its sound follows on what it has. */
  async resume() {
    if (this.speech && !this.#sound.length) {
      const { samples, rate } = await samplesOf(this.speech);
      this.addAudio(samples, rate);
    }
    this.problem = null;
    this.state = "running";
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
