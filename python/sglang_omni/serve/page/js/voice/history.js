/* Keeps a session's items as the conversation's turns are: what was typed is known when the person speaks. */

import { messagesOf } from "../messages.js";

export class History {
  #socket;
  /* What the session has, in its order: each item's id, and the turn that it is or the message it was made from. */
  #items = [];
  #count = 0;
  #following = Promise.resolve();

  constructor(socket) {
    this.#socket = socket;
  }

  /** An item that was spoken in the session, and its turn. */
  add(id, turn) {
    this.#items.push({ id, turn });
  }

  /** Takes an item out of the session. */
  remove(id) {
    this.#items = this.#items.filter((item) => item.id !== id);
    this.#socket.send("conversation.item.delete", { item_id: id });
  }

  /** Has the session know these turns and no others; resolves once it was told. */
  follow(turns) {
    const next = () => this.#follow(turns);
    this.#following = this.#following.then(next, next);
    return this.#following;
  }

  async #follow(turns) {
    const [messages, keys] = await Promise.all([messagesOf(turns, ""), Promise.all(this.#items.map(keyOfItem))]);
    let same = 0;
    while (same < messages.length && keys[same] === keyOf(messages[same])) same++;
    for (const { id } of this.#items.splice(same)) this.#socket.send("conversation.item.delete", { item_id: id });
    for (const message of messages.slice(same)) {
      const id = `item_page_${++this.#count}`;
      const content = partsOf(message);
      this.#socket.send("conversation.item.create", { item: { id, type: "message", role: message.role, content } });
      this.#items.push({ id, message });
    }
  }
}

async function keyOfItem({ turn, message }) {
  return keyOf(message ?? (await messagesOf([turn], ""))[0] ?? {});
}

function keyOf({ role, content }) {
  return JSON.stringify([role, content]);
}

/* A message's content as the session takes it: it takes no video, and no sound but the microphone's. */
function partsOf({ role, content }) {
  const text = role === "assistant" ? "output_text" : "input_text";
  if (typeof content === "string") return [{ type: text, text: content }];
  return content.map((part) => {
    if (part.type === "text") return { type: text, text: part.text };
    if (part.type === "image_url") return { type: "input_image", image_url: part.image_url.url };
    return { type: text, text: part.type === "audio_url" ? "(a sound file)" : "(a video)" };
  });
}
