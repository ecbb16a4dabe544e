/* The microphone: its sound in pieces as a session takes them, and what a person can do if there is none. */

import { Problem } from "../problems.js";

/** Of the pieces, in Hz. */
export const RATE = 24_000;
const PIECE_MS = 40;

/* By the name of the browser's error. */
const WORDS = {
  NotAllowedError: "The browser does not let this page use the microphone. Allow it in the settings beside the page's " +
    "address, or in the system's own, and try again.",
  NotFoundError: "This device has no microphone, or none is connected.",
  NotReadableError: "The microphone is in use by another program. Close that, and try again.",
  OverconstrainedError: "The chosen microphone is not connected any more. Choose another one.",
  SecurityError: "The browser lets no page use a microphone here.",
};
const NEEDS_HTTPS = "A browser gives the microphone only to pages with https, and to this one on localhost.";
const DISCONNECTED = "The microphone was disconnected.";

/** Why this page can have no microphone; "" if it may. */
export function whyNoMicrophone() {
  return navigator.mediaDevices?.getUserMedia && window.AudioWorkletNode ? "" : NEEDS_HTTPS;
}

/** The microphones, as { id, name }; the names are there once the page was given one. */
export async function microphones() {
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices
    .filter(({ kind, deviceId, label }) => kind === "audioinput" && deviceId && label)
    .map(({ deviceId, label }) => ({ id: deviceId, name: label }));
}

export class Microphone {
  #stream;
  #context;
  #capture;
  #flushed = null;

  /** Called with each piece, an Int16Array at RATE Hz, and its loudness from 0 to 1; and if the device goes away. */
  onpiece = null;
  onlost = null;

  constructor(stream, context, capture) {
    this.#stream = stream;
    this.#context = context;
    this.#capture = capture;
    capture.port.onmessage = ({ data }) => this.#take(data);
    const [track] = stream.getAudioTracks();
    track.addEventListener("ended", () => { this.close(); this.onlost?.(new Problem(DISCONNECTED)); });
  }

  /**
   * @param device its id; "" for the browser's choice.
   * @throws Problem if there is none, or the page may not use it.
   */
  static async open(device = "") {
    if (whyNoMicrophone()) throw new Problem(whyNoMicrophone());
    /* Without echo cancellation, the microphone would hear the answer and interrupt it. */
    const audio = { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true };
    if (device) audio.deviceId = { exact: device };
    const stream = await navigator.mediaDevices.getUserMedia({ audio }).catch((error) => {
      throw new Problem(WORDS[error.name] ?? `The microphone does not start: ${error.message}`);
    });
    /* At the device's own rate: not every browser connects a microphone to a context of another one. */
    const context = new AudioContext({ latencyHint: "interactive" });
    try {
      await context.audioWorklet.addModule(new URL("capture.js", import.meta.url));
    } catch (error) {
      stream.getTracks().forEach((track) => track.stop());
      context.close();
      throw new Problem(`A part of this page cannot be loaded (${error.message}). Reload it.`);
    }
    const capture = new AudioWorkletNode(context, "capture", {
      numberOfOutputs: 0,
      channelCount: 1,
      channelCountMode: "explicit",
      processorOptions: { rate: RATE, size: RATE * PIECE_MS / 1000 },
    });
    context.createMediaStreamSource(stream).connect(capture);
    await context.resume();
    return new Microphone(stream, context, capture);
  }

  /** Whether it hears; a muted one gives silence. */
  set muted(muted) {
    for (const track of this.#stream.getAudioTracks()) track.enabled = !muted;
  }

  /** Resolves once all that it has heard so far was given to `onpiece`. */
  flush() {
    return new Promise((resolve) => {
      this.#flushed = resolve;
      this.#capture.port.postMessage("flush");
    });
  }

  close() {
    this.#capture.port.onmessage = null;
    this.#stream.getTracks().forEach((track) => track.stop());
    if (this.#context.state !== "closed") this.#context.close();
    this.#flushed?.();
  }

  #take(samples) {
    if (samples.length) this.onpiece?.(samples, loudness(samples));
    /* A piece that was full before the page asked is no answer to it, but the next one is not far. */
    if (samples.length < RATE * PIECE_MS / 1000) {
      this.#flushed?.();
      this.#flushed = null;
    }
  }
}

/* From 0 at -60 dB, which is a quiet room, to 1 at full scale. */
function loudness(samples) {
  const power = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
  return Math.max(0, 1 + Math.log10(Math.max(1, power) / 32768 ** 2) / 6);
}
