/* Requests to the server that the page came from, also if a proxy serves both below a path. */

import { askKey } from "./keys.js";
import { LOST, Problem, unreachable } from "./problems.js";

const KEY = "key";
let asking = null;

/** Whether requests show a key. */
export function shownKey() {
  return sessionStorage.getItem(KEY);
}

/**
 * As `fetch`, of a path without a leading slash. If the server wants a key, the person is asked for one, which is kept
 * for as long as the tab is open.
 *
 * @throws Problem if the server cannot be reached; AbortError.
 */
export async function request(path, options = {}) {
  for (;;) {
    const key = shownKey();
    const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
    const response = await fetch(path, { ...options, headers }).catch((error) => {
      throw error.name === "AbortError" ? error : unreachable();
    });
    if (response.status !== 401) return response;
    if (key !== shownKey()) continue;
    asking ??= askKey({ wasWrong: key !== null }).finally(() => { asking = null; });
    const given = await asking;
    if (!given) return response;
    sessionStorage.setItem(KEY, given);
  }
}

/** The JSON that a path answers; null if it does not. */
export async function json(path) {
  const response = await request(path).catch(() => null);
  return response?.ok ? response.json().catch(() => null) : null;
}

/** The events of a stream, which is whole only if it says so itself. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Problem(LOST);
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield JSON.parse(line.slice(6));
    }
  }
}
