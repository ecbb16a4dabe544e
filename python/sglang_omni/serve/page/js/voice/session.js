/* A spoken conversation: the client's side of the realtime protocol, told as turns of the page's conversation. */

import { Problem, problemOf } from "../problems.js";
import { pcmOf, wavOf } from "../wav.js";
import { History } from "./history.js";
import { RATE } from "./microphone.js";
import { Recording } from "./recording.js";
import { RealtimeSocket } from "./socket.js";

/* While a person holds the button, a pause ends nothing: the detector only tells whether there was speech. */
const HELD = { type: "server_vad", create_response: false, interrupt_response: false, silence_duration_ms: 10_000 };
/* Hears from how a sentence ends that it has ended. A strict server refuses it where that is not installed. */
const HANDS_FREE = [{ type: "semantic_vad" }, { type: "server_vad" }];
const NO_DETECTOR = "This server cannot tell when you have finished speaking, so hold the button while you speak. " +
  "Its administrator can install sgl-omni[realtime].";
/* An answer that has just ended by itself cannot be cancelled, which is as well. */
const LATE = "response_cancel_not_active";

export class VoiceSession {
  #socket;
  #conversation;
  #settings;
  #player;
  #history;
  #recording = new Recording();
  #canDetect = false;
  #configured = "";
  #handsFree = false;
  /* Whether the detector hears speech now, and whether it has since the turn began that the person holds. */
  #speaks = false;
  #spoke = false;
  #heldFromMs = 0;
  #heldUntil = 0;
  /* What was said and is not shown yet, or has no words yet: { fromMs, toMs, turn } by the item's id. */
  #said = new Map();
  /* The answer that comes or is heard: { id, itemId, turn, ms, state }. */
  #answer = null;
  /* Answers that were asked for and have not begun, and how many of them are not wanted any more. */
  #asked = 0;
  #unwanted = 0;

  /**
   * What it tells: `onstate` "listening", "hearing", "thinking", "speaking"; `onnothing` if there was no speech in what
   * was said; `onproblem` with a Problem; and `onend` with the one that has ended the session, and whether an answer
   * was under way.
   */
  onstate = null;
  onnothing = null;
  onproblem = null;
  onend = null;

  constructor(socket, { conversation, settings, player }) {
    this.#socket = socket;
    this.#conversation = conversation;
    this.#settings = settings;
    this.#player = player;
    this.#history = new History(socket);
    socket.onevent = (event) => this.#handlers[event.type]?.(event);
    socket.onclose = (problem) => this.#lose(problem);
    player.onend = () => this.#settle();
  }

  /** @throws Problem if the server takes no session, or not with these settings. */
  static async open(context) {
    const { socket, session } = await RealtimeSocket.open(context.settings.model.served_model_name);
    const opened = new VoiceSession(socket, context);
    opened.#canDetect = session.audio.input.turn_detection !== null;
    return opened;
  }

  /** Whether an answer is awaited, comes, or is heard. */
  get isBusy() {
    return this.#answer !== null || this.#asked > 0;
  }

  /** Begins a turn that `commit` ends. */
  async hold() {
    this.interrupt();
    this.#clear();
    this.#heldFromMs = this.#recording.endMs;
    this.#recording.forget(this.#heldFromMs);
    this.onstate?.("hearing");
    await this.#configure(this.#canDetect ? [HELD] : [null], false);
    await this.#history.follow(this.#conversation.turns);
  }

  /** From here on the server finds the turns. */
  async listen() {
    if (!this.#canDetect) throw new Problem(NO_DETECTOR);
    this.#clear();
    await this.#configure(HANDS_FREE, true);
    await this.#history.follow(this.#conversation.turns);
    this.onstate?.("listening");
  }

  /** Takes the microphone's next samples, an Int16Array at RATE Hz. */
  append(samples) {
    this.#recording.add(samples);
    if (this.#handsFree && !this.#speaks && !this.#said.size) this.#recording.forget(this.#recording.endMs);
    const bytes = new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
    this.#socket.send("input_audio_buffer.append", { audio: btoa(String.fromCharCode(...bytes)) });
  }

  /** Ends the turn that is held, and has it answered if there was speech in it. */
  async commit() {
    this.#heldUntil = performance.now();
    if (this.#spoke && !this.#speaks) {
      /* The detector has ended the turn, in a pause of 10 s. */
      this.#clear();
      this.#respond();
      return;
    }
    const isKnown = this.#spoke || !this.#canDetect;
    const committing = this.#socket.ask("input_audio_buffer.commit", {}, "input_audio_buffer.committed");
    if (isKnown) this.#respond();
    const committed = await committing.catch((problem) => {
      if (problem.code !== "input_audio_buffer_commit_empty") throw problem;
      return null;
    });
    if (isKnown) return;
    /* Until it has told of the commit, the detector may find speech in the last piece. */
    if (committed && this.#spoke) this.#respond();
    else {
      if (committed) this.#forget(committed.item_id);
      this.onnothing?.();
    }
  }

  /** Ends a turn that is held, without an answer; stops finding turns. */
  discard() {
    this.#handsFree = false;
    this.#clear();
  }

  /** Silences the answer at once. What was heard of it stays in the conversation. */
  interrupt({ isCancelled = false } = {}) {
    this.#unwanted = this.#asked;
    const answer = this.#answer;
    if (!answer) return;
    this.#answer = null;
    const playedMs = Math.min(this.#player.playedMs, Math.floor(answer.ms));
    this.#player.stop();
    if (!answer.state && !isCancelled) this.#socket.send("response.cancel", { response_id: answer.id });
    if (answer.turn) this.#cut(answer, playedMs);
  }

  close() {
    this.interrupt();
    this.#socket.close();
    this.#player.onend = null;
  }

  #handlers = {
    "input_audio_buffer.speech_started": ({ item_id, audio_start_ms }) => {
      this.#spoke = this.#speaks = true;
      this.#said.set(item_id, { fromMs: audio_start_ms, toMs: null, turn: null });
      if (!this.#handsFree) return;
      this.interrupt({ isCancelled: true });
      this.onstate?.("hearing");
      this.#history.follow(this.#conversation.turns).catch((problem) => this.onproblem?.(problem));
    },
    "input_audio_buffer.speech_stopped": ({ item_id, audio_end_ms }) => {
      this.#speaks = false;
      const said = this.#said.get(item_id);
      if (said) said.toMs = audio_end_ms;
      if (this.#handsFree) this.onstate?.("thinking");
    },
    "input_audio_buffer.committed": ({ item_id }) => {
      const said = this.#said.get(item_id) ?? { fromMs: this.#heldFromMs, turn: null };
      said.toMs ??= this.#recording.endMs;
      this.#said.set(item_id, said);
    },
    "conversation.item.input_audio_transcription.completed": ({ item_id, transcript }) => {
      this.#transcribed(item_id, transcript.trim());
    },
    "response.created": ({ response }) => {
      this.#asked = Math.max(0, this.#asked - 1);
      if (this.#unwanted) {
        this.#unwanted--;
        this.#socket.send("response.cancel", { response_id: response.id });
        return;
      }
      this.#answer = { id: response.id, itemId: null, turn: null, ms: 0, state: "" };
      this.#tell("request", { id: response.id, began: performance.now() });
    },
    "response.output_item.added": ({ response_id, item }) => {
      if (this.#isHeard(response_id) && item.type === "message") this.#begin(item.id);
    },
    "response.output_text.delta": (event) => this.#words(event),
    "response.output_audio_transcript.delta": (event) => this.#words(event),
    "response.output_audio.delta": ({ response_id, delta }) => {
      if (!this.#isHeard(response_id)) return;
      const samples = pcmOf(delta), answer = this.#answer;
      if (!answer.ms) {
        if (!this.#handsFree) answer.turn.note(`first sound after ${seconds(performance.now() - this.#heldUntil)}`);
        this.onstate?.("speaking");
      }
      answer.ms += 1000 * samples.length / RATE;
      answer.turn.addAudio(samples, RATE);
      this.#player.play(samples, RATE);
    },
    "response.done": ({ response }) => {
      this.#tell("answer", { id: response.id, timings: null, usage: null });
      this.#done(response);
    },
    error: async (event) => {
      if (event.error.code !== LATE) this.onproblem?.(await problemOf(event));
    },
  };

  /* Sends the settings if they have changed, with the first of the detectors that the server has. */
  async #configure(detectors, handsFree) {
    this.#handsFree = handsFree;
    const { system, temperature, tokens, voice, speak } = this.#settings;
    const session = {
      type: "realtime",
      instructions: system,
      temperature,
      max_output_tokens: tokens,
      output_modalities: [speak ? "audio" : "text"],
    };
    const transcription = this.#writesDown ? {} : null;
    const configured = JSON.stringify([session, voice, detectors]);
    if (configured === this.#configured) return;
    for (const [index, turn_detection] of detectors.entries()) {
      const audio = { input: { transcription, turn_detection }, output: { voice: voice || null } };
      try {
        await this.#socket.ask("session.update", { session: { ...session, audio } }, "session.updated");
        break;
      } catch (problem) {
        const isMissing = problem.field?.startsWith("session.audio.input.turn_detection");
        if (!isMissing || index === detectors.length - 1) throw problem;
      }
    }
    this.#configured = configured;
  }

  /* Whether the server tells what was said. */
  get #writesDown() {
    return this.#settings.model.tasks.includes("transcription");
  }

  #respond() {
    this.onstate?.("thinking");
    this.#asked++;
    this.#socket.ask("response.create", {}, "response.created").catch((problem) => {
      this.#asked--;
      this.onproblem?.(problem);
    });
  }

  /* What the conversation tells of its requests is true of these, too. */
  #tell(name, detail) {
    this.#conversation.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #isHeard(responseId) {
    return this.#answer?.id === responseId;
  }

  #words({ response_id, delta }) {
    if (this.#isHeard(response_id)) this.#answer.turn.appendText(delta);
  }

  /* What was said has its turn once its words are known, or its answer begins. Without words, its sound stands for
     them in later messages. */
  #show(itemId, said, words = "") {
    if (said.turn) return;
    const samples = this.#recording.between(said.fromMs, said.toMs);
    const media = words ? [] : [{ kind: "audio", name: "What you said", blob: wavOf([samples], RATE) }];
    said.turn = this.#conversation.begin("user", { media, heard: words });
    if (words) said.turn.addAudio(samples, RATE);
    said.turn.finish();
    this.#history.add(itemId, said.turn);
    if (!this.#writesDown) this.#said.delete(itemId);
  }

  #transcribed(itemId, words) {
    const said = this.#said.get(itemId);
    if (!said) return;
    this.#said.delete(itemId);
    if (!words && !said.turn) {
      /* A noise that the detector has taken for speech. */
      this.#forget(itemId);
      if (!this.#said.size && this.#answer && !this.#answer.turn) {
        this.#socket.send("response.cancel", { response_id: this.#answer.id });
        this.#answer = null;
      }
      this.onnothing?.();
      return;
    }
    this.#show(itemId, said, words);
    if (words) said.turn.setHeard(words);
    else said.turn.note("no words were understood");
  }

  #begin(itemId) {
    for (const [id, said] of this.#said) if (said.toMs !== null) this.#show(id, said);
    const answer = this.#answer;
    if (answer.turn) return;
    this.#player.stop();
    answer.itemId = itemId;
    answer.turn = this.#conversation.begin("assistant");
    if (itemId) this.#history.add(itemId, answer.turn);
  }

  async #done({ id, status, status_details: details }) {
    if (!this.#isHeard(id)) return;
    const answer = this.#answer;
    if (status === "failed") {
      if (!answer.turn) this.#begin(null);
      answer.turn.fail(await problemOf(details));
      answer.state = "failed";
    } else {
      answer.state = { completed: "whole", incomplete: "cut", cancelled: "stopped" }[status];
    }
    if (!this.#player.remaining) this.#settle();
  }

  /* The answer is over once it has been heard. */
  #settle() {
    const answer = this.#answer;
    if (!answer?.state) return;
    this.#answer = null;
    if (answer.state !== "failed") answer.turn?.finish(answer.state);
    this.onstate?.("listening");
  }

  /* Cuts an answer where the person has interrupted it, and in the session too. */
  async #cut(answer, playedMs) {
    const { itemId, turn } = answer;
    if (answer.ms) turn.note(`interrupted after ${seconds(playedMs)}`);
    turn.finish("stopped");
    if (!itemId || !answer.ms) return;
    const where = { item_id: itemId, content_index: 0, audio_end_ms: playedMs };
    try {
      const told = await this.#socket.ask("conversation.item.truncate", where, "conversation.item.truncated");
      turn.setText(told.transcript);
      if (!told.transcript) this.#history.remove(itemId);
    } catch (problem) {
      this.onproblem?.(problem);
    }
  }

  /* Drops the sound of a turn that has no end yet. */
  #clear() {
    this.#socket.send("input_audio_buffer.clear");
    this.#spoke = this.#speaks = false;
    for (const [id, { toMs }] of this.#said) if (toMs === null) this.#said.delete(id);
  }

  #forget(itemId) {
    this.#said.delete(itemId);
    this.#history.remove(itemId);
  }

  /* The connection is lost: an answer that is whole is heard to its end. */
  #lose(problem) {
    const wasBusy = this.isBusy && !this.#answer?.state, answer = this.#answer;
    this.#answer = null;
    if (answer?.state) answer.turn?.finish(answer.state);
    else if (answer?.turn) {
      this.#player.stop();
      answer.turn.fail(problem);
    }
    this.onend?.(problem, wasBusy);
  }
}

function seconds(ms) {
  return `${(ms / 1000).toFixed(2)} s`;
}
