/* Copying text, also on pages without https, which have no clipboard API. */

import { el, icon, iconButton } from "../dom.js";

const SHOWN_MS = 1_500;

/** A button that copies what `text()` returns, and shows for a moment that it did. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const done = await copy(text());
    button.replaceChildren(icon(done ? "check" : "close"));
    button.setAttribute("aria-label", done ? "Copied" : "The browser does not allow copying");
    setTimeout(() => { button.replaceChildren(icon("copy")); button.setAttribute("aria-label", label); }, SHOWN_MS);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = el("textarea", { readonly: true, class: "offscreen" });
  field.value = text;
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}
