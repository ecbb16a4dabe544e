/* A block of code with its language and a button that copies it. */

import { el } from "../dom.js";
import { copyButton } from "./copy.js";

/** @param code the `code` element, whose text may still grow. */
export function codeBlock(language, code) {
  const name = language.slice(0, 40);
  return el("figure", { class: "code", dataset: { language: name } },
    el("figcaption", {}, el("span", {}, name || "code"), copyButton("Copy the code", () => code.textContent)),
    el("pre", { tabindex: 0, role: "group", "aria-label": name ? `Code in ${name}` : "Code" }, code));
}
