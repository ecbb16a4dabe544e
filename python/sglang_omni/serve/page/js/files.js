/* Files that the page gives to the person. */

import { el } from "./dom.js";

/** Has the browser save a Blob. */
export function saveAs(name, blob) {
  const url = URL.createObjectURL(blob);
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** A name from a text's first words, without an ending. */
export function fileNameOf(text) {
  return text.replace(/[^\p{L}\p{N}]+/gu, " ").trim().slice(0, 40).trim() || "answer";
}
