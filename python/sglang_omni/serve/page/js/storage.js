/* The conversations that the browser keeps, with their pictures and sound: in IndexedDB. */

import { tabsHave } from "./tabs.js";
import { Turn } from "./turn.js";

/* Beyond either, the conversation that was used longest ago goes. */
const MOST_CONVERSATIONS = 30;
const MOST_BYTES = 200 * 2 ** 20;
const TITLE_LETTERS = 60;

/** Opens the store; null if the browser keeps nothing, as in some private windows. */
export async function openStorage() {
  try {
    const opening = indexedDB.open("conversations", 2);
    opening.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion < 1) {
        opening.result.createObjectStore("conversations", { keyPath: "id" });
        opening.result.createObjectStore("turns", { keyPath: ["conversation", "index"] });
      }
      opening.result.createObjectStore("titles", { keyPath: "id" });
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
    const reading = this.#database.transaction(["conversations", "titles"]);
    const [all, given] = await Promise.all(["conversations", "titles"].map((name) => done(reading.objectStore(name).getAll())));
    const titles = new Map(given.map(({ id, title }) => [id, title]));
    return all.map((kept) => ({ ...kept, title: titles.get(kept.id) ?? kept.title })).sort((a, b) => b.used - a.used);
  }

  /** The turns of a conversation. One that is under way is another tab's, or was when its page was closed. */
  async turns(id) {
    const records = await done(this.#database.transaction("turns").objectStore("turns").getAll(every(id)));
    const others = await tabsHave();
    return records.map(({ index, turn }) => new Turn({ ...left(turn, others.has(turn.id)), place: index }));
  }

  /** What is kept of a turn that another tab had, which may have deleted it. */
  async turn(id, { place }) {
    const record = await done(this.#database.transaction("turns").objectStore("turns").get([id, place]));
    return record ? left(record.turn, false) : { state: "stopped" };
  }

  /**
   * Keeps the turns of a conversation that have changed, and no more those that were removed.
   *
   * All is handed over before this returns its promise, so it is kept even if the page is closed then. What another tab
   * adds to the same conversation stays.
   */
  async save({ id, turns }, changed, removed = []) {
    const title = titleOf(turns);
    const bytes = turns.reduce((sum, turn) => sum + bytesOf(turn), 0);
    const change = this.#database.transaction(["conversations", "turns"], "readwrite");
    const store = change.objectStore("turns");
    for (const { place } of removed) store.delete([id, place]);
    if (title) {
      change.objectStore("conversations").put({ id, title, bytes, used: Date.now() });
      for (const turn of changed) store.put({ conversation: id, index: turn.place, turn: turn.record });
    }
    change.commit();
    await finished(change);
    await this.#makeRoom(id);
  }

  /** Gives a conversation a title in place of its first words. */
  async rename(id, title) {
    await done(this.#database.transaction("titles", "readwrite").objectStore("titles").put({ id, title }));
  }

  async remove(id) {
    const change = this.#database.transaction(["conversations", "turns", "titles"], "readwrite");
    for (const name of ["conversations", "titles"]) change.objectStore(name).delete(id);
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

/* A turn's record as it is for this tab. */
function left(record, isElsewhere) {
  if (record.state !== "running") return record;
  if (isElsewhere) return { ...record, state: "elsewhere" };
  const problem = { message: "The page was closed before this answer was whole.", detail: "", retryAfter: null, canRetry: true };
  return { ...record, state: record.text ? "broken" : "failed", problem };
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
