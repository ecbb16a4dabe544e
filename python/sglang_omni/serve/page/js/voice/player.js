/* Speech on its way to the loudspeaker: pieces one after another without gaps, silenced at once, and counted.
 *
 * Scheduled buffers and no AudioWorklet: speech plays on a page without https, too, where a browser has no worklets.
 */

/* Of a session's speech, and of most voices. */
const USUAL_RATE = 24_000;
/* Before the first piece, and after a gap, so that the next piece is not late. */
const LEAD_S = 0.02;

/* A context runs at its sound's own rate, so that pieces meet sample by sample. The browser resamples their sum. */
const contexts = new Map();

function contextOf(rate) {
  if (!contexts.has(rate)) contexts.set(rate, new AudioContext({ sampleRate: rate, latencyHint: "interactive" }));
  const context = contexts.get(rate);
  if (context.state !== "running") context.resume();
  return context;
}

/* A browser lets a page make sound once the person has touched it, some only within that touch. */
for (const touch of ["pointerup", "keydown"]) {
  addEventListener(touch, () => { for (const rate of new Set([USUAL_RATE, ...contexts.keys()])) contextOf(rate); },
    { capture: true, passive: true });
}

export class Player {
  #context = null;
  #gain = null;
  /* What is not heard yet, by the context's frames from its beginning. */
  #pieces = [];
  #end = 0;
  /* Seconds of the pieces that are gone. */
  #playedBefore = 0;

  /* Called when speech begins after silence, and when the last piece has been heard or is silenced. */
  onstart = null;
  onend = null;

  /** Appends mono samples: an Int16Array, and their rate in Hz. */
  play(samples, sampleRate) {
    if (!samples.length) return;
    if (!this.#pieces.length) this.#begin(sampleRate);
    const context = this.#context;
    const buffer = context.createBuffer(1, samples.length, sampleRate);
    buffer.getChannelData(0).set(Float32Array.from(samples, (sample) => sample / 32768));
    const source = new AudioBufferSourceNode(context, { buffer });
    source.connect(this.#gain);
    const rate = context.sampleRate, now = context.currentTime * rate;
    /* On the sample after the last piece, or a little after now. */
    const start = this.#end >= now ? this.#end : Math.ceil(now + LEAD_S * rate);
    this.#end = start + Math.round(buffer.duration * rate);
    const piece = { source, start, end: this.#end };
    this.#pieces.push(piece);
    source.onended = () => this.#ended(piece);
    source.start(start / rate);
  }

  /** Silences what plays, within one quantum of the audio device, and drops the rest. The next piece counts from 0. */
  stop() {
    const silenced = this.#pieces.splice(0);
    this.#playedBefore = 0;
    if (!silenced.length) return;
    this.#gain.disconnect();
    for (const { source } of silenced) { source.onended = null; source.stop(); }
    this.onend?.();
  }

  /** Seconds that were given and not heard yet. */
  get remaining() {
    const now = this.#heardUntil();
    return this.#pieces.reduce((sum, { start, end }) => sum + end - Math.max(start, Math.min(now, end)), 0)
      / (this.#context?.sampleRate ?? USUAL_RATE);
  }

  /** Milliseconds of sound that were really heard since the last stop(). */
  get playedMs() {
    const now = this.#heardUntil();
    const frames = this.#pieces.reduce((sum, { start, end }) => sum + Math.max(0, Math.min(now, end) - start), 0);
    return Math.floor(1000 * (this.#playedBefore + frames / (this.#context?.sampleRate ?? USUAL_RATE)));
  }

  #begin(sampleRate) {
    this.#context = contextOf(sampleRate);
    this.#gain = new GainNode(this.#context);
    this.#gain.connect(this.#context.destination);
    this.#end = 0;
    this.onstart?.();
  }

  #ended(piece) {
    this.#pieces.splice(this.#pieces.indexOf(piece), 1);
    this.#playedBefore += (piece.end - piece.start) / this.#context.sampleRate;
    if (!this.#pieces.length) this.onend?.();
  }

  /* The frame that the loudspeaker plays now: what the context has computed minus what is on its way. */
  #heardUntil() {
    const context = this.#context;
    return context ? (context.currentTime - (context.outputLatency || 0)) * context.sampleRate : 0;
  }
}
