/* Changes the rate of a stream of samples, with what the lower rate cannot hold filtered out. */

/* Zero crossings of the filter on each side, and its values between two samples. */
const CROSSINGS = 16, PHASES = 512;

/** Takes mono Float32Arrays at `from` Hz of any length, and gives the samples at `to` Hz that they complete. */
export class Resampler {
  #step;
  #half;
  #table;
  #input = new Float32Array(0);
  /* The place of the next output sample among #input. */
  #at;

  constructor(from, to) {
    this.#step = from / to;
    /* Samples of the input on each side of an output sample that count. */
    this.#half = Math.ceil(CROSSINGS * Math.max(1, this.#step));
    this.#at = this.#half;
    this.#table = tableOf(this.#half, Math.min(1, to / from));
    /* A stream begins after silence. */
    this.#input = new Float32Array(this.#half);
  }

  add(samples) {
    const half = this.#half, table = this.#table;
    const input = new Float32Array(this.#input.length + samples.length);
    input.set(this.#input);
    input.set(samples, this.#input.length);
    const output = new Float32Array(Math.max(0, Math.ceil((input.length - half - this.#at) / this.#step)));
    let at = this.#at;
    for (let i = 0; i < output.length; i++, at += this.#step) {
      const first = Math.floor(at) - half + 1;
      const phase = Math.round((at - Math.floor(at)) * PHASES);
      let sum = 0;
      for (let tap = 0; tap < 2 * half; tap++) sum += input[first + tap] * table[phase + PHASES * (2 * half - 1 - tap)];
      output[i] = sum;
    }
    const done = Math.max(0, Math.floor(at) - half);
    this.#input = input.slice(done);
    this.#at = at - done;
    return output;
  }
}

/* A windowed sinc from -half to half, in steps of 1 / PHASES. `cutoff`: of the input's half rate. */
function tableOf(half, cutoff) {
  const passes = cutoff < 1 ? 0.94 * cutoff : 1;
  const table = new Float32Array(2 * half * PHASES + 1);
  for (let i = 0; i < table.length; i++) {
    const x = i / PHASES - half;
    const sinc = x === 0 ? 1 : Math.sin(Math.PI * passes * x) / (Math.PI * passes * x);
    const blackman = 0.42 + 0.5 * Math.cos(Math.PI * x / half) + 0.08 * Math.cos(2 * Math.PI * x / half);
    table[i] = passes * sinc * blackman;
  }
  return table;
}
