/* What went wrong, in a person's words. */

export const LOST = "The connection was lost in the middle of the answer.";
const UNREACHABLE = "The server cannot be reached. It may have been stopped, or the network is down.";
const OFFLINE = "This device is offline.";

/**
 * A failure that a person can read.
 *
 * `detail`: the server's own words, if they differ. `field`: the request's field at fault. `retryAfter`: seconds
 * that the server asks to wait, or null. `canRetry`: True if the same request may succeed later. `isTooLong`: True if
 * a shorter conversation would be answered.
 */
export class Problem extends Error {
  constructor(message, { detail = "", field = null, retryAfter = null, canRetry = true, isTooLong = false } = {}) {
    super(message);
    Object.assign(this, { detail, field, retryAfter, canRetry, isTooLong });
  }
}

export function unreachable() {
  return new Problem(navigator.onLine ? UNREACHABLE : OFFLINE);
}

/* By what the server says is the reason, and else by its status. Functions of the server's own words. */
const TOO_LONG = "context_length_exceeded";
const BY_CODE = {
  [TOO_LONG]: () => "The conversation is longer than this model can read. Begin a new one, or edit an earlier message.",
  model_not_found: () => "The server has another model by now. Reload the page.",
};
const BY_STATUS = {
  401: () => "This server wants a key, and none that it knows was given.",
  403: (words) => `The server does not allow this: ${words}`,
  408: () => "The server waited too long for the message. The network may be slow.",
  413: () => "The message is larger than the server takes. Remove a file, or leave out earlier ones.",
  429: () => "The server is busy with other requests.",
  503: () => "The server cannot answer now. It may be starting, or restarting a part of the model.",
  504: () => "The answer took longer than the server allows.",
};
const WAITS = new Set([429, 503]);

/** The Problem of an HTTP answer, or of an error event in a stream. */
export async function problemOf(answer) {
  const status = answer.status ?? 0;
  const fields = answer.error ? answer : await answer.json().catch(() => null);
  if (typeof fields?.error?.message !== "string") return foreign(status);
  const { message, code, param } = fields.error;
  const told = BY_CODE[code] ?? BY_STATUS[status];
  const words = sentence(message, param);
  const seconds = Number(answer.headers?.get("retry-after"));
  return new Problem(told ? told(words) : status >= 500 ? `The server failed: ${words}` : words, {
    detail: told || words !== message ? message : "",
    field: param ?? null,
    retryAfter: WAITS.has(status) ? seconds || 1 : null,
    isTooLong: code === TOO_LONG,
    canRetry: status === 0 || status === 401 || status === 408 || status === 429 || status >= 500,
  });
}

/* What is no answer of this server's, but of a proxy in front of it. */
function foreign(status) {
  const seconds = WAITS.has(status) ? 1 : null;
  if (BY_STATUS[status] && status !== 403) return new Problem(BY_STATUS[status](), { retryAfter: seconds });
  return new Problem(
    status === 502
      ? "What stands in front of the server gets no answer from it (502). It may be starting."
      : `The answer is none of this server's, but of something in front of it (status ${status}).`,
  );
}

/* The server's words, without the path of the field that they begin with. */
function sentence(message, field) {
  const path = /^[a-z_]+(?:[[.][\w\].[]*)?: /.exec(message)?.[0];
  const words = path && (/[[.]/.test(path) || path === `${field}: `) ? message.slice(path.length) : message;
  return words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".");
}
