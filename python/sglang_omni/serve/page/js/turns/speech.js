/* The speech of an answer: played again, and saved as a file. */

import { el, icon, iconButton } from "../dom.js";
import { samplesOf } from "../wav.js";

/** Buttons for an answer's speech, a WAV file's Blob. `play(samples, rate)` plays it. */
export function speechButtons(turn, play) {
  const again = iconButton("sound", "Play the speech again", async () => {
    const { samples, rate } = await samplesOf(turn.speech);
    play(samples, rate);
  });
  const save = iconButton("download", "Save the speech as a WAV file", () => {
    const url = URL.createObjectURL(turn.speech);
    el("a", { href: url, download: `${fileName(turn.text)}.wav` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  });
  return [again, save];
}

function fileName(text) {
  return text.replace(/[^\p{L}\p{N}]+/gu, " ").trim().slice(0, 40).trim() || "answer";
}
