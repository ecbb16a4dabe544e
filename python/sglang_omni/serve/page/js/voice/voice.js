/* The controls for speaking: a button to hold, hands-free, mute, and how loud the microphone is. */

import { el, icon, iconButton } from "../dom.js";
import { Microphone, whyNoMicrophone } from "./microphone.js";
import { Player } from "./player.js";
import { VoiceSession } from "./session.js";
import { Stage } from "./stage.js";

/* A shorter press is a tap: it begins to listen, and the next one sends. */
const TAP_MS = 300;
/* After which an unused microphone and session are closed. */
const IDLE_MS = 60_000;
const WAITS_MS = [0, 1000, 2000, 4000];
const BARS = 5;
const LISTENING = "Listening. Just speak.";
const HELD = "Listening … let go to send.";
const TAPPED = "Listening … tap to send, or press Escape to drop it.";
const MUTED = "Muted: the microphone hears nothing.";
const NOTHING = "I heard nothing. Speak a little louder, or nearer to the microphone.";

function button(picture, label, properties) {
  return el("button", { type: "button", ...properties }, icon(picture), label);
}

/** Adds them to the composer and its toolbar. `say(text, { bad })` writes the status line. */
export function mountVoice({ composer, toolbar, conversation, settings, say }) {
  const voice = new Voice(conversation, settings, say);
  composer.prepend(voice.stage.element);
  toolbar.append(...voice.elements);
}

class Voice {
  #conversation;
  #settings;
  #say;
  #player = new Player();
  stage;
  #microphone = null;
  #session = null;
  /* "off", "held" or "hands-free". */
  #mode = "off";
  #starting = null;
  #pressed = 0;
  /* True if a tap began the turn, which the next one sends. */
  #isTapped = false;
  /* What was heard before there is a session that takes it; null: there is. */
  #queue = [];
  #idle = 0;
  #bars = Array.from({ length: BARS }, () => el("i"));
  #talkLabel = el("span", {}, "Hold to talk");
  #talk = button("mic", this.#talkLabel, { class: "voice-talk", "aria-pressed": "false" });
  #handsFree = button("wave", el("span", {}, "Hands-free"), { role: "switch", "aria-checked": "false" });
  #mute = button("mute", el("span", {}, "Mute"), { "aria-pressed": "false", hidden: true });
  #drop = iconButton("trash", "Drop the recording", () => this.#giveUp(), { hidden: true });
  #level = el("span", { class: "voice-level", "aria-hidden": "true", hidden: true }, this.#bars);

  constructor(conversation, settings, say) {
    this.#conversation = conversation;
    this.#settings = settings;
    this.#say = say;
    this.stage = new Stage(conversation);
    this.#talk.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      this.#talk.setPointerCapture(event.pointerId);
      this.#press(event);
    });
    for (const end of ["pointerup", "pointercancel"]) this.#talk.addEventListener(end, (event) => this.#letGo(event));
    /* A long touch is no wish for a menu. */
    this.#talk.addEventListener("contextmenu", (event) => event.preventDefault());
    this.#talk.addEventListener("keydown", (event) => {
      if (event.key !== " " && event.key !== "Enter") return;
      event.preventDefault();
      if (!event.repeat) this.#press(event);
    });
    this.#talk.addEventListener("keyup", (event) => { if (event.key === " " || event.key === "Enter") this.#letGo(event); });
    /* Of a screen reader, which neither presses nor lets go. */
    this.#talk.addEventListener("click", (event) => {
      if (event.detail === 0) { this.#press(event); this.#letGo(event); }
    });
    this.#handsFree.addEventListener("click", () => this.#toggle());
    this.#mute.addEventListener("click", () => this.#setMuted(!this.#isMuted));
    conversation.addEventListener("stop", () => {
      if (this.#mode === "held") this.#giveUp();
      this.#session?.interrupt();
      this.#player.stop();
    });
    settings.addEventListener("change", () => this.#show());
    this.#show();
  }

  get elements() {
    return [this.#talk, this.#handsFree, this.#mute, this.#drop, this.#level];
  }

  /* --- a turn that is held --- */

  /* When a finger or key went down and up is told by the event: a busy page hears of it late. */
  #press({ timeStamp }) {
    if (this.#mode === "held") { this.#pressed = 0; return; }
    if (this.#mode !== "off" || !this.#isPossible()) return;
    this.#pressed = timeStamp;
    this.#conversation.stop();
    this.#setMode("held");
    this.#starting = this.#start((session) => session.hold());
  }

  #letGo({ timeStamp }) {
    if (this.#mode !== "held") return;
    if (timeStamp - this.#pressed < TAP_MS) {
      this.#isTapped = true;
      this.#talkLabel.textContent = "Tap to send";
      this.#drop.hidden = false;
      if (this.#microphone) this.#say(TAPPED);
      return;
    }
    this.#send();
  }

  /* Ends a turn that is held, or hands-free, and drops what was said in it. */
  async #giveUp(words = "The recording is dropped.") {
    this.#setMode("off");
    this.#rest();
    this.#say(words);
    /* What is being opened still opens, and is then at rest, too. */
    if (!(await this.#starting) || this.#mode !== "off") return;
    this.#rest();
    this.#session?.discard();
  }

  async #send() {
    const microphone = this.#microphone;
    this.#setMode("off");
    await microphone?.flush();
    if (microphone) microphone.onpiece = null;
    if (!(await this.#starting) || this.#mode !== "off") return;
    this.#rest();
    if (microphone) {
      await this.#try(() => this.#session.commit());
    } else {
      this.#session.discard();
      this.#say("The microphone is ready now. Hold the button while you speak.");
    }
  }

  /* --- hands-free --- */

  #toggle() {
    if (this.#mode === "hands-free") {
      this.#giveUp("");
    } else if (this.#mode === "off" && this.#isPossible()) {
      this.#conversation.stop();
      this.#setMode("hands-free");
      this.#starting = this.#start((session) => session.listen());
    }
  }

  get #isMuted() {
    return this.#mute.getAttribute("aria-pressed") === "true";
  }

  /* Also while the microphone and the session are being opened. */
  #setMuted(muted) {
    this.#mute.setAttribute("aria-pressed", String(muted));
    if (this.#microphone) this.#microphone.muted = muted;
    this.#say(muted ? MUTED : LISTENING);
  }

  /* --- the microphone and the session, which both are kept for a while --- */

  /* Opens what is not open, and has the session begin; resolves with whether that went well. */
  async #start(begin) {
    clearTimeout(this.#idle);
    this.#queue = [];
    if (!this.#microphone) this.#say("Starting the microphone …");
    const mode = this.#mode;
    const isGood = await this.#try(async () => {
      const [session] = await Promise.all([this.#connect(), this.#listen()]);
      await begin(session);
      /* The person may have let go meanwhile, and pressed again. */
      for (const samples of this.#queue ?? []) this.#session.append(samples);
      this.#queue = null;
    });
    if (!isGood && this.#mode === mode) {
      this.#setMode("off");
      this.#rest();
    }
    return isGood;
  }

  async #listen() {
    this.#microphone ??= await Microphone.open();
    this.#microphone.muted = this.#isMuted;
    this.#microphone.onpiece = (samples, loudness) => this.#take(samples, loudness);
    this.#microphone.onlost = (problem) => { this.#close(); this.#say(problem.message, { bad: true }); };
    if (this.#mode === "held") this.#say(this.#isTapped ? TAPPED : HELD);
  }

  async #connect() {
    if (this.#session) return this.#session;
    const context = { conversation: this.#conversation, settings: this.#settings, player: this.#player };
    const session = await VoiceSession.open(context);
    session.onstate = (state) => this.#tell(state);
    session.onnothing = () => this.#say(NOTHING);
    session.onproblem = (problem) => this.#say(problem.message, { bad: true });
    session.onend = (problem, wasBusy) => this.#ended(problem, wasBusy);
    this.#session = session;
    return session;
  }

  #take(samples, loudness) {
    this.stage.loudness = this.#isMuted ? 0 : loudness;
    this.#bars.forEach((bar, index) => bar.classList.toggle("on", loudness * BARS > index));
    if (this.#queue) this.#queue.push(samples);
    else this.#session?.append(samples);
  }

  /* The microphone hears nothing until it is wanted again, and is given back if that takes long. */
  #rest() {
    this.#queue = [];
    if (this.#microphone) {
      this.#microphone.onpiece = null;
      this.#microphone.muted = true;
    }
    clearTimeout(this.#idle);
    this.#idle = setTimeout(() => { if (this.#session?.isBusy) this.#rest(); else this.#close(); }, IDLE_MS);
  }

  #close() {
    this.#setMode("off");
    this.#microphone?.close();
    this.#session?.close();
    this.#microphone = this.#session = null;
  }

  async #ended(problem, wasBusy) {
    this.#session = null;
    if (this.#mode === "hands-free") {
      this.#queue = [];
      for (const wait of WAITS_MS) {
        this.#say("The connection was lost. Connecting again …", { bad: true });
        await new Promise((resolve) => { setTimeout(resolve, wait); });
        if (this.#mode !== "hands-free") return;
        const session = await this.#connect().catch(() => null);
        if (session && await this.#try(() => session.listen())) { this.#queue = null; return; }
      }
      this.#close();
      this.#say(`${problem.message} Hands-free is off.`, { bad: true });
    } else if (this.#mode === "held") {
      this.#close();
      this.#say(`${problem.message} What you said was not sent.`, { bad: true });
    } else if (wasBusy) {
      this.#say(problem.message, { bad: true });
    }
  }

  /* --- what the person sees --- */

  #show() {
    const { input_modalities = [], tasks = [] } = this.#settings.model;
    const isThere = input_modalities.includes("audio") && tasks.includes("chat");
    this.#talk.hidden = !isThere || this.#mode === "hands-free";
    this.#handsFree.hidden = !isThere || this.#mode === "held";
    for (const control of [this.#talk, this.#handsFree]) {
      control.setAttribute("aria-disabled", String(Boolean(whyNoMicrophone())));
    }
  }

  #isPossible() {
    const reason = whyNoMicrophone();
    if (reason) this.#say(reason, { bad: true });
    return !reason;
  }

  #setMode(mode) {
    this.#mode = mode;
    this.#isTapped = false;
    this.#drop.hidden = true;
    this.#talk.setAttribute("aria-pressed", String(mode === "held"));
    this.#talkLabel.textContent = mode === "held" ? "Listening" : "Hold to talk";
    this.#handsFree.setAttribute("aria-checked", String(mode === "hands-free"));
    this.#mute.hidden = mode !== "hands-free";
    this.#mute.setAttribute("aria-pressed", "false");
    this.#level.hidden = mode !== "held";
    this.stage.state = "listening";
    this.stage.isOpen = mode === "hands-free";
    this.#show();
  }

  #tell(state) {
    if (state === "hearing" && this.#mode === "off") return;
    const isHandsFree = this.#mode === "hands-free";
    this.stage.state = state;
    const words = {
      listening: isHandsFree ? (this.#isMuted ? MUTED : LISTENING) : "",
      hearing: isHandsFree ? "Listening to you …" : this.#isTapped ? TAPPED : HELD,
      thinking: "Thinking …",
      speaking: isHandsFree ? "Answering. Speak to interrupt." : "Answering …",
    };
    this.#say(words[state]);
  }

  async #try(work) {
    try {
      await work();
      return true;
    } catch (problem) {
      this.#say(problem.message, { bad: true });
      return false;
    }
  }
}
