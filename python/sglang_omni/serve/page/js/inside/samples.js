/* The last minute of a server's numbers, and what they say of the present. */

const KEPT_S = 60;
/* Rates are those of this time. */
const RECENT_S = 10;

/** Keeps samples of `pipeline/load` or `fleet`, whose counts grow from the server's start. */
export class Samples {
  #kept = [];

  /** @param at the time of the sample in seconds. */
  add(sample, at) {
    /* A server that has started anew counts from 0. */
    if (this.#kept.length && at < this.#kept.at(-1).at) this.#kept = [];
    this.#kept.push({ sample, at });
    this.#kept = this.#kept.filter((each) => at - each.at <= KEPT_S);
  }

  clear() {
    this.#kept = [];
  }

  get last() {
    return this.#kept.at(-1)?.sample ?? null;
  }

  /** A number of each sample as [seconds ago, number], the oldest first. */
  series(read) {
    const now = this.#kept.at(-1)?.at;
    return this.#kept.map(({ sample, at }) => [now - at, read(sample) ?? 0]);
  }

  /** By how much a count has grown a second, lately; null before the second sample. */
  rate(read) {
    const [first, last] = this.#recent(RECENT_S);
    return first && last.at > first.at ? Math.max(0, (read(last.sample) - read(first.sample)) / (last.at - first.at)) : null;
  }

  /** One count's growth divided by another's in the last minute, or since the start; null without any. */
  ratio(read, by) {
    const [first, last] = this.#recent(KEPT_S);
    if (!last) return null;
    const grown = first ? by(last.sample) - by(first.sample) : 0;
    if (grown > 0) return (read(last.sample) - read(first.sample)) / grown;
    return by(last.sample) > 0 ? read(last.sample) / by(last.sample) : null;
  }

  /* The first sample within some seconds, if it is another than the last, and the last. */
  #recent(seconds) {
    const last = this.#kept.at(-1);
    const first = last && this.#kept.find((each) => last.at - each.at <= seconds);
    return [first === last ? undefined : first, last];
  }
}

/** A count of few digits. */
export const short = (number) => (number >= 10_000 ? `${Math.round(number / 1000)}k` : String(number));

/** Seconds for people; "–" if they are not known. */
export function seconds(value) {
  if (value === null) return "–";
  if (value < 0.0095) return `${(1000 * value).toFixed(value < 0.00095 ? 1 : 0)} ms`;
  return value < 10 ? `${value.toFixed(2)} s` : `${value.toFixed(1)} s`;
}

/** Per second. */
export const perSecond = (value) => (value === null ? "–" : value.toFixed(value < 10 ? 1 : 0));

/** A share as a percentage. */
export const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);
