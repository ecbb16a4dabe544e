/* What went wrong with an answer, and the way on. */

import { el, icon } from "../dom.js";

/**
 * @param problem see problems.js.
 * @param tryAgain does so; null if the person cannot, as of an older turn.
 */
export function problemView({ message, detail, retryAfter, canRetry }, tryAgain) {
  const button = el("button", { type: "button", class: "small", onclick: () => tryAgain() }, icon("again"), el("span", {}, "Try again"));
  const wait = el("span", { class: "muted" });
  if (retryAfter) countDown(retryAfter, wait, button);
  return el("div", { class: "problem" },
    el("p", { dir: "auto" }, message),
    detail ? el("details", {}, el("summary", {}, "What the server says"), el("p", { dir: "auto" }, detail)) : null,
    tryAgain && canRetry ? el("p", { class: "ways" }, button, wait) : null);
}

/* Shows how long the server asks to wait. The person may try earlier. */
function countDown(seconds, wait, button) {
  const tick = () => {
    wait.textContent = seconds > 0 ? `The server asks to wait ${seconds} s.` : "";
    if (seconds-- > 0 && (button.isConnected || !wait.isConnected)) setTimeout(tick, 1_000);
  };
  tick();
}
