/* What of a conversation a request has: turns as the API's messages. */

const encoded = new WeakMap();

/* A file's `data:` URL, made once. */
function dataUrl(blob) {
  if (!encoded.has(blob)) {
    encoded.set(blob, new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(new Error("The attached file cannot be read any more. Remove it and attach it anew."));
      reader.readAsDataURL(blob);
    }));
  }
  return encoded.get(blob);
}

async function partOf({ kind, blob }) {
  const type = `${kind}_url`;
  return { type, [type]: { url: await dataUrl(blob) } };
}

/* A turn's words: what was heard in its sound, which then need not be sent again, and what was typed. */
function wordsOf(turn) {
  return [turn.heard, turn.text].filter(Boolean).join("\n");
}

/** The files of a turn that the model gets with each request. */
export function mediaOf(turn) {
  return turn.leftOut ? [] : turn.media.filter(({ kind }) => !(turn.heard && kind === "audio"));
}

/* The turns that the model gets: without those that it may forget, questions that have no answer, and answers that have no words. A person who
   pauses while speaking has two turns in a row, which one answer answers. The last turn is what is asked now. */
function told(turns) {
  return turns.filter(({ forgotten }) => !forgotten).filter((turn, index, kept) => {
    if (turn.role === "assistant") return turn.text;
    const next = kept[index + 1];
    return (wordsOf(turn) || mediaOf(turn).length) && (!next || next.role === "user" || next.text);
  });
}

/** The messages of a request whose last turn is the last of `turns`. */
export async function messagesOf(turns, system) {
  const messages = await Promise.all(
    told(turns).map(async (turn) => {
      const words = wordsOf(turn), media = mediaOf(turn);
      if (!media.length) return { role: turn.role, content: words };
      const parts = await Promise.all(media.map(partOf));
      return { role: turn.role, content: words ? [...parts, { type: "text", text: words }] : parts };
    }),
  );
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

/** The earlier turns whose files go with the next question again. */
export function turnsWithMedia(turns) {
  return told(turns).filter((turn) => mediaOf(turn).length);
}

/** The file that an error's field means, as "messages[2].content[0].image_url.url"; null if it means none. */
export function mediaAt(turns, system, field) {
  const found = /^messages\[(\d+)\]\.content\[(\d+)\]/.exec(field ?? "");
  const turn = found && told(turns)[found[1] - (system ? 1 : 0)];
  return (turn && mediaOf(turn)[found[2]]) || null;
}
