/* The conversations that the browser keeps, with their pictures and sound: in IndexedDB. */

import { Turn } from "./turn.js";

/* Beyond either, the conversation that was used longest ago goes. */
const MOST_CONVERSATIONS = 30;
const MOST_BYTES = 200 * 2 ** 20;
const TITLE_LETTERS = 60;

/** Opens the store; null if the browser keeps nothing, as in some private windows. */
export async function openStorage() {
  try {
    const opening = indexedDB.open("conversations", 1);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("conversations", { keyPath: "id" });
      opening.result.createObjectStore("turns", { keyPath: ["conversation", "index"] });
    };
    return new Storage(await done(opening));
  } catch {
    return null;
  }
}

class Storage {
  #database;

  constructor(database) {
    this.#database = database;
  }

  /** The conversations, the latest first: { id, title, used, bytes }. */
  async list() {
    const all = await done(this.#database.transaction("conversations").objectStore("conversations").getAll());
    return all.sort((a, b) => b.used - a.used);
  }

  /** The turns of a conversation. One that was under way when the page was closed is broken. */
  async turns(id) {
    const records = await done(this.#database.transaction("turns").objectStore("turns").getAll(every(id)));
    return records.map(({ turn }) => {
      const whole = turn.state !== "running";
      const problem = { message: "The page was closed before this answer was whole.", detail: "", retryAfter: null, canRetry: true };
      return new Turn(whole ? turn : { ...turn, state: turn.text ? "broken" : "failed", problem });
    });
  }

  /**
   * Keeps a conversation as it is when this is called. Turns other than `changed` are kept already.
   *
   * All is handed over before this returns its promise, so it is kept even if the page is closed then.
   */
  async save({ id, turns }, changed = turns) {
    const title = titleOf(turns);
    if (!title) return;
    const bytes = turns.reduce((sum, turn) => sum + bytesOf(turn), 0);
    const change = this.#database.transaction(["conversations", "turns"], "readwrite");
    change.objectStore("conversations").put({ id, title, bytes, used: Date.now() });
    const store = change.objectStore("turns");
    for (const turn of changed) {
      const index = turns.indexOf(turn);
      if (index >= 0) store.put({ conversation: id, index, turn: turn.record });
    }
    store.delete(IDBKeyRange.bound([id, turns.length], [id, Infinity]));
    change.commit();
    await finished(change);
    await this.#makeRoom(id);
  }

  async remove(id) {
    const change = this.#database.transaction(["conversations", "turns"], "readwrite");
    change.objectStore("conversations").delete(id);
    change.objectStore("turns").delete(every(id));
    await finished(change);
  }

  async #makeRoom(current) {
    let bytes = 0;
    for (const [index, conversation] of (await this.list()).entries()) {
      bytes += conversation.bytes;
      const isTooMuch = index >= MOST_CONVERSATIONS || bytes > MOST_BYTES;
      if (isTooMuch && conversation.id !== current) await this.remove(conversation.id);
    }
  }
}

function every(id) {
  return IDBKeyRange.bound([id, 0], [id, Infinity]);
}

function titleOf(turns) {
  const first = turns.find(({ role }) => role === "user");
  const words = (first?.text || first?.heard || "").replace(/\s+/g, " ").trim();
  const files = first?.media.length ? first.media[0].name : "";
  return (words || files).slice(0, TITLE_LETTERS);
}

function bytesOf({ text, media, speech }) {
  return 2 * text.length + (speech?.size ?? 0) + media.reduce((sum, { blob }) => sum + blob.size, 0);
}

function done(asked) {
  return new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = asked.onblocked = () => reject(asked.error);
  });
}

function finished(change) {
  return new Promise((resolve, reject) => {
    change.oncomplete = () => resolve();
    change.onabort = change.onerror = () => reject(change.error);
  });
}
