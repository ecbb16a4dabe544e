/* The conversation: its turns, and the requests that add to them. It shows nothing, and plays nothing. */

import { events } from "./api.js";
import { mediaAt, messagesOf } from "./messages.js";
import { OpusStream } from "./opus.js";
import { LOST, problemOf } from "./problems.js";
import { Turn } from "./turn.js";
import { pcmOf } from "./wav.js";

/* Of an answer that is asked for again. */
const OTHER_TEMPERATURE = 0.5;

/**
 * One conversation at a time, as an EventTarget. Its events, with their `detail`:
 *
 * - "load": other turns are there.
 * - "turn", a Turn: it was added. It tells of its own changes.
 * - "removed", a list of Turns: the last turns are gone.
 * - "busy", a boolean: whether an answer is under way.
 * - "progress", a text: what a person may want to know now; "" for nothing.
 * - "sound", { samples, rate }: a piece of an answer's speech, an Int16Array and its rate in Hz.
 * - "stop": everything that sounds must be silent at once.
 * - "request", { id, began }: a request was sent, whose answer has this x-request-id. By `performance.now()`.
 * - "answer", { id, timings, usage }: its answer has ended; both null if that was early.
 */
export class Conversation extends EventTarget {
  id = newId();
  turns = [];
  #request;
  #settings;
  #running = null;

  /**
   * @param request sends a request, as `request` of api.js.
   * @param settings an object with `body()`: the fields of a request that the person has set, and `system`.
   */
  constructor({ request, settings }) {
    super();
    this.#request = request;
    this.#settings = settings;
  }

  /** The turns with words, as { role, content } with text alone. */
  get messages() {
    return this.turns
      .map(({ role, heard, text }) => ({ role, content: [heard, text].filter(Boolean).join("\n") }))
      .filter(({ content }) => content);
  }

  get busy() {
    return this.turns.some((turn) => turn.state === "running");
  }

  /** Adds a turn of the "user" or the "assistant", whose text and sound come later. The caller finishes it. */
  begin(role, fields = {}) {
    const turn = new Turn({ role, ...fields, place: placeAfter(this.turns.at(-1)) });
    this.turns.push(turn);
    turn.addEventListener("finish", () => this.#tell("busy", this.busy));
    this.#tell("turn", turn);
    this.#tell("busy", true);
    return turn;
  }

  /** Asks with a text and files ({ kind, name, blob }); either may be missing. Resolves when the answer has ended. */
  async ask({ text = "", media = [] }) {
    this.stop();
    this.begin("user", { text, media }).finish();
    await this.#answer(this.begin("assistant"));
  }

  /** Asks anew for an answer, which replaces this one and all that follow. */
  async regenerate(turn) {
    this.stop();
    this.removeFrom(turn);
    const again = this.begin("assistant");
    /* The likeliest words would be the same ones again. */
    const isSame = turn.state === "whole" && (this.#settings.temperature ?? 0) < OTHER_TEMPERATURE;
    if (isSame) again.note(`at temperature ${OTHER_TEMPERATURE}`);
    await this.#answer(again, isSame ? { temperature: OTHER_TEMPERATURE } : {});
  }

  /** Has an answer that was cut or broken go on; it must be the last turn. */
  async goOn(turn) {
    this.stop();
    await turn.resume();
    this.#tell("busy", true);
    await this.#answer(turn, { continue_final_message: true, add_generation_prompt: false });
  }

  /** Removes a turn and all that follow. */
  removeFrom(turn) {
    const index = this.turns.indexOf(turn);
    this.#tell("removed", index < 0 ? [] : this.turns.splice(index));
  }

  /** Leaves the older half of what came before an answer out of this and all later requests, and asks again. */
  async shorten(turn) {
    for (const old of olderHalf(this.turns.slice(0, this.turns.indexOf(turn)))) old.forget();
    await this.regenerate(turn);
  }

  /** Ends the answer that is under way, and silences what sounds. */
  stop() {
    this.#running?.abort();
    this.#tell("stop");
  }

  /** Replaces the conversation by a kept one, or by a new one. */
  load(id = newId(), turns = []) {
    this.stop();
    this.id = id;
    this.turns = turns;
    this.#tell("load");
  }

  async #answer(turn, more = {}) {
    const running = new AbortController();
    this.#running = running;
    const before = this.turns.slice(0, more.continue_final_message ? undefined : this.turns.indexOf(turn));
    const { system } = this.#settings;
    const ids = { id: newId() };
    let last = {};
    try {
      this.#tell("progress", "Thinking …");
      const messages = await messagesOf(before, system);
      const body = { ...this.#settings.body(), ...more, messages, stream: true, timings: true };
      ids.began = performance.now();
      this.#tell("request", ids);
      const response = await this.#request("v1/chat/completions", {
        method: "POST",
        signal: running.signal,
        headers: { "content-type": "application/json", "x-request-id": ids.id, "x-session-id": this.id },
        body: JSON.stringify({ ...body, stream_options: { include_usage: true } }),
      });
      ids.id = response.headers.get("x-request-id") ?? ids.id;
      if (!response.ok) throw await problemOf(response);
      last = await this.#read(response, turn, { question: before.at(-1), began: ids.began, format: body.audio?.format });
      this.#finish(turn, last.reason);
    } catch (error) {
      this.#fail(turn, error, (field) => mediaAt(before, system, field));
    } finally {
      if (this.#running === running) this.#running = null;
      this.#tell("answer", { id: ids.id, timings: last.timings ?? null, usage: last.usage ?? null });
    }
  }

  /* Adds a stream's events to a turn; returns what its last ones told. */
  async #read(response, turn, { question, began, format }) {
    const after = () => `after ${((performance.now() - began) / 1000).toFixed(2)} s`;
    const last = {};
    let words = false, sound = false, opus = null;
    const addSound = (samples, rate) => {
      if (!sound) turn.note(`first sound ${after()}`);
      sound = true;
      turn.addAudio(samples, rate);
      this.#tell("sound", { samples, rate });
    };
    try {
      for await (const event of events(response)) {
        if (event.error) throw await problemOf(event);
        if (event.heard) question.setHeard(event.heard);
        if (event.usage) last.usage = event.usage;
        if (event.timings) last.timings = event.timings;
        for (const { delta = {}, finish_reason } of event.choices ?? []) {
          if (finish_reason) last.reason = finish_reason;
          if (delta.reasoning_content) turn.appendReasoning(delta.reasoning_content);
          for (const call of delta.tool_calls ?? []) turn.appendCall(call);
          if (delta.content) {
            if (!words) { turn.note(`first word ${after()}`); this.#tell("progress", "Answering …"); }
            words = true;
            turn.appendText(delta.content);
          }
          if (delta.audio?.data) {
            const rate = delta.audio.sample_rate ?? 24_000;
            if (format === "opus") (opus ??= new OpusStream(rate, (samples) => addSound(samples, rate))).write(delta.audio.data);
            else addSound(pcmOf(delta.audio.data), rate);
          }
        }
      }
      await opus?.end();
    } finally {
      /* What is not decoded yet when the person stops is not heard. */
      opus?.close();
    }
    return last;
  }

  #finish(turn, reason) {
    turn.finish({ length: "cut", abort: "stopped" }[reason] ?? "whole");
    this.#tell("progress", "");
  }

  #fail(turn, error, fileOf) {
    if (error.name === "AbortError") {
      turn.finish("stopped");
      this.#tell("progress", "");
      return;
    }
    const file = fileOf(error.field);
    /* A stream that the browser cannot read to its end. */
    const known = error.name === "TypeError" ? { message: LOST } : error;
    if (!olderHalf(this.turns.slice(0, this.turns.indexOf(turn))).length) known.isTooLong = false;
    turn.fail(file ? { ...known, message: `${file.name}: ${known.message}`, detail: known.detail } : known);
    this.#tell("progress", "");
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/* Two tabs may add to one conversation: a place is a time, and by chance no two are the same. */
function placeAfter(turn) {
  return Math.max(Date.now(), Math.ceil(turn?.place ?? 0) + 1) + Math.random();
}

/* Whole exchanges, of which the last question stays. */
function olderHalf(turns) {
  const questions = turns.filter(({ role, forgotten }) => role === "user" && !forgotten);
  const first = questions[Math.ceil((questions.length - 1) / 2)];
  return turns.slice(0, turns.indexOf(first));
}

/* Without crypto.randomUUID, which pages without https lack. */
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
