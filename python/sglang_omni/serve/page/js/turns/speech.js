/* The speech of an answer: played again, and saved as a file. */

import { iconButton } from "../dom.js";
import { fileNameOf, saveAs } from "../files.js";
import { samplesOf } from "../wav.js";

/** Buttons for an answer's speech, a WAV file's Blob. `play(samples, rate)` plays it. */
export function speechButtons(turn, play) {
  const again = iconButton("sound", "Play the speech again", async () => {
    const { samples, rate } = await samplesOf(turn.speech);
    play(samples, rate);
  });
  const save = iconButton("download", "Save the speech as a WAV file", () => saveAs(`${fileNameOf(turn.text)}.wav`, turn.speech));
  return [again, save];
}
