/* A file of a message, as it is shown: a picture, a film or a sound with controls. */

import { el, icon } from "../dom.js";

const KINDS = { image: "Picture", audio: "Sound", video: "Video" };

/** The element of a file { kind, name, blob }, and a function that frees what it holds. */
export function mediaView({ kind, name, blob }) {
  const url = URL.createObjectURL(blob);
  const label = `${KINDS[kind]}: ${name}`;
  const shown =
    kind === "image"
      ? el("img", { src: url, alt: label })
      : el(kind, { src: url, controls: true, preload: "metadata", "aria-label": label, playsinline: kind === "video" });
  const element = el("figure", { class: `media ${kind}` }, shown,
    kind === "image" ? null : el("figcaption", { title: name }, icon(kind === "audio" ? "sound" : "video"), el("span", { dir: "auto" }, name)));
  return { element, free: () => URL.revokeObjectURL(url) };
}
