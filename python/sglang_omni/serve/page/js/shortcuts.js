/* The page's keys, and the list of them. */

import { el } from "./dom.js";

const isMac = navigator.platform.startsWith("Mac");
const MOD = isMac ? "⌘" : "Ctrl";

/** Binds the keys. `does`: by a shortcut's name, what it does. */
export function mountShortcuts({ dialog, list, button, does }) {
  const shortcuts = [
    { keys: ["Enter"], tells: "Send the message" },
    { keys: ["Shift", "Enter"], tells: "A new line" },
    { keys: ["Escape"], tells: "Stop the answer and its sound", is: ({ key }) => key === "Escape", does: does.stop },
    { keys: ["/"], tells: "Go to the message", is: (event) => event.key === "/" && !isTyping(event), does: does.write },
    { keys: [MOD, "Shift", "O"], tells: "A new conversation", is: withModifiers("o"), does: does.begin },
    { keys: [MOD, "Shift", "S"], tells: "The settings", is: withModifiers("s"), does: does.settings },
    { keys: ["?"], tells: "These keys", is: (event) => event.key === "?" && !isTyping(event), does: () => dialog.showModal() },
  ];
  list.replaceChildren(...shortcuts.flatMap(({ keys, tells }) => [
    el("dt", {}, keys.map((key) => el("kbd", {}, key))), el("dd", {}, tells)]));
  button.addEventListener("click", () => dialog.showModal());
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog:modal")) return;
    const shortcut = shortcuts.find(({ is }) => is?.(event));
    if (!shortcut) return;
    if (event.key !== "Escape") event.preventDefault();
    shortcut.does();
  });
}

function withModifiers(letter) {
  return (event) => (isMac ? event.metaKey : event.ctrlKey) && event.shiftKey && event.key.toLowerCase() === letter;
}

function isTyping({ target, ctrlKey, metaKey, altKey }) {
  return ctrlKey || metaKey || altKey || target.matches("input, textarea, select, [contenteditable]");
}
