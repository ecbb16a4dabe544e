/* WAV files of 16-bit mono sound, written and read. */

const HEADER = 44;

/** A WAV file of Int16Arrays, as a Blob. */
export function wavOf(pieces, rate) {
  const bytes = 2 * pieces.reduce((sum, piece) => sum + piece.length, 0);
  const view = new DataView(new ArrayBuffer(HEADER));
  const ascii = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  ascii(0, "RIFF");
  view.setUint32(4, HEADER - 8 + bytes, true);
  ascii(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  ascii(36, "data");
  view.setUint32(40, bytes, true);
  return new Blob([view, ...pieces], { type: "audio/wav" });
}

/** The samples and rate of a file that `wavOf` wrote. */
export async function samplesOf(blob) {
  const bytes = await blob.arrayBuffer();
  return { samples: new Int16Array(bytes.slice(HEADER)), rate: new DataView(bytes).getUint32(24, true) };
}

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

/** The samples of base64 PCM16, as a stream's `delta.audio.data` has it. */
export function pcmOf(base64) {
  const bytes = bytesOf(base64);
  return new Int16Array(bytes.buffer, 0, bytes.length >> 1);
}
