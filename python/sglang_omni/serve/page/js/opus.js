/* Speech that comes as Opus in Ogg pages (RFC 7845), a tenth of what its samples would be, decoded by the browser. */

import { bytesOf } from "./wav.js";

const RATE = 48_000;
/* Microseconds of a packet; only the order matters here. */
const PACKET_US = 20_000;
const CONFIG = { codec: "opus", sampleRate: RATE, numberOfChannels: 1 };

/** True if this browser decodes Opus; pages without https cannot. */
export const decodesOpus = await (async () => {
  if (!window.AudioDecoder) return false;
  return (await AudioDecoder.isConfigSupported(CONFIG).catch(() => ({}))).supported ?? false;
})();

/** Decodes one stream; calls `onsamples` with Int16Arrays at `rate` Hz, which divides 48,000. */
export class OpusStream {
  #decoder;
  #pages = new OggPages();
  #count = 0;
  /* Samples at 48 kHz that are the encoder's delay, and not heard. */
  #skipped = 0;
  #problem = null;

  constructor(rate, onsamples) {
    this.#decoder = new AudioDecoder({
      output: (data) => {
        const samples = this.#samplesOf(data, RATE / rate);
        if (samples.length) onsamples(samples);
      },
      error: (problem) => { this.#problem = problem; },
    });
    this.#decoder.configure(CONFIG);
  }

  /** Takes the stream's next bytes, in base64. */
  write(base64) {
    for (const packet of this.#pages.packets(bytesOf(base64))) {
      const count = this.#count++;
      /* The first packet is a head, whose bytes 10 and 11 are the delay; the second has names. */
      if (count === 0) this.#skipped = packet[10] | packet[11] << 8;
      if (count < 2 || this.#problem) continue;
      this.#decoder.decode(new EncodedAudioChunk({ type: "key", timestamp: count * PACKET_US, data: packet }));
    }
  }

  /** Resolves once all that was written is decoded. */
  async end() {
    if (!this.#problem) await this.#decoder.flush();
    if (this.#problem) throw this.#problem;
  }

  close() {
    if (this.#decoder.state !== "closed") this.#decoder.close();
  }

  #samplesOf(data, step) {
    const floats = new Float32Array(data.numberOfFrames);
    data.copyTo(floats, { planeIndex: 0, format: "f32-planar" });
    data.close();
    const from = Math.min(this.#skipped, floats.length);
    this.#skipped -= from;
    /* The sound has no frequencies that the lower rate lacks, since it was made at that. */
    const samples = new Int16Array(Math.floor((floats.length - from) / step));
    for (let i = 0; i < samples.length; i++) samples[i] = Math.max(-32768, Math.min(32767, Math.round(32768 * floats[from + i * step])));
    return samples;
  }
}

/* Takes a stream's bytes as they come, and gives the packets that they complete (RFC 3533). */
class OggPages {
  #rest = new Uint8Array();
  #packet = [];

  packets(bytes) {
    let data = new Uint8Array(this.#rest.length + bytes.length);
    data.set(this.#rest);
    data.set(bytes, this.#rest.length);
    const found = [];
    for (;;) {
      const count = data[26], from = 27 + count;
      if (data.length < 27 || data.length < from) break;
      const sizes = data.subarray(27, from);
      const end = from + sizes.reduce((sum, size) => sum + size, 0);
      if (data.length < end) break;
      let at = from;
      for (const size of sizes) {
        this.#packet.push(data.slice(at, at + size));
        at += size;
        /* A packet ends with a segment that is not full. */
        if (size < 255) found.push(joined(this.#packet.splice(0)));
      }
      data = data.subarray(end);
    }
    this.#rest = data.slice();
    return found;
  }
}

function joined(parts) {
  if (parts.length === 1) return parts[0];
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) { whole.set(part, at); at += part.length; }
  return whole;
}
