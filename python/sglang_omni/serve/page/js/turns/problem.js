/* What went wrong with an answer, and the way on. */

import { el, icon } from "../dom.js";

/**
 * @param problem see problems.js.
 * @param tryAgain does so; null if the person cannot, as of an older turn.
 * @param shorten leaves out the older half of the conversation, and does so.
 */
export function problemView({ message, detail, retryAfter, canRetry, isTooLong }, tryAgain, shorten) {
  const shorter = el("button", { type: "button", class: "small", onclick: () => shorten() }, icon("again"), el("span", {}, "Leave out the older half"));
  const button = el("button", { type: "button", class: "small", onclick: () => tryAgain() }, icon("again"), el("span", {}, "Try again"));
  const wait = el("span", { class: "muted" });
  if (retryAfter) countDown(retryAfter, wait, button);
  return el("div", { class: "problem" },
    el("p", { dir: "auto" }, message),
    detail ? el("details", {}, el("summary", {}, "What the server says"), el("p", { dir: "auto" }, detail)) : null,
    tryAgain && (canRetry || isTooLong) ? el("p", { class: "ways" }, isTooLong ? shorter : button, wait) : null);
}

/* Shows how long the server asks to wait. The person may try earlier. */
function countDown(seconds, wait, button) {
  const tick = () => {
    wait.textContent = seconds > 0 ? `The server asks to wait ${seconds} s.` : "";
    if (seconds-- > 0 && (button.isConnected || !wait.isConnected)) setTimeout(tick, 1_000);
  };
  tick();
}
