/* What went wrong with an answer, and the way on. */

import { el, icon } from "../dom.js";

/**
 * @param problem see problems.js.
 * @param tryAgain does so; null if the person cannot, as of an older turn.
 * @param shorten leaves out the older half of the conversation, and tries again.
 * @param goOn a button by which what has come of the answer goes on, if it can.
 */
export function problemView({ message, detail, retryAfter, canRetry, isTooLong }, { tryAgain, shorten, goOn }) {
  const [words, act] = isTooLong ? ["Leave out the older half", shorten] : ["Try again", tryAgain];
  const button = tryAgain && (canRetry || isTooLong)
    ? el("button", { type: "button", class: "small", onclick: () => act() }, icon("again"), el("span", {}, words))
    : null;
  const wait = el("span", { class: "muted" });
  if (retryAfter && button) countDown(retryAfter, wait, button);
  return el("div", { class: "problem" },
    el("p", { dir: "auto" }, message),
    detail ? el("details", {}, el("summary", {}, "What the server says"), el("p", { dir: "auto" }, detail)) : null,
    button || goOn ? el("p", { class: "ways" }, goOn, button, wait) : null);
}

/* Shows how long the server asks to wait. The person may try earlier. */
function countDown(seconds, wait, button) {
  const tick = () => {
    wait.textContent = seconds > 0 ? `The server asks to wait ${seconds} s.` : "";
    if (seconds-- > 0 && (button.isConnected || !wait.isConnected)) setTimeout(tick, 1_000);
  };
  tick();
}
