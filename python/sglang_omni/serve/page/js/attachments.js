/* The files that go with the next message: chosen, dropped or pasted; checked, shown, and removed again. */

import { el, iconButton } from "./dom.js";
import { mediaView } from "./turns/media.js";

/* A request has 64 MiB, of which base64 takes a third. */
export const MOST_BYTES = 45e6;
const MOST_FILES = 8;
/* Larger pictures are scaled: models see no more of them, and each later message has them again. */
const MOST_PIXELS = 2_048;
const SENT_AS_THEY_ARE = new Set(["image/png", "image/jpeg", "image/webp"]);
const KINDS = { image: "pictures", audio: "sound", video: "videos" };

/** The files as a list of { kind, name, blob }. Its event "change" tells of another list. */
export class Attachments extends EventTarget {
  items = [];
  /* What the model takes, of "image", "audio" and "video". */
  kinds = [];
  #list;
  #say;
  #free = [];

  constructor({ list, say }) {
    super();
    this.#list = list;
    this.#say = say;
  }

  /** What a file dialogue offers. */
  get accept() {
    return this.kinds.map((kind) => `${kind}/*`).join(",");
  }

  /** Adds the files that the model takes, and says why it takes no others. */
  async add(files) {
    const refused = [];
    for (const file of files) {
      try {
        this.items = [...this.items, await this.#checked(file)];
        this.#show();
      } catch (error) {
        refused.push(error.message);
      }
    }
    this.#say(refused.join(" "), { bad: refused.length > 0 });
  }

  set(items) {
    this.items = [...items];
    this.#show();
  }

  /** The files, which are no longer the next message's. */
  take() {
    const { items } = this;
    this.set([]);
    return items;
  }

  async #checked(file) {
    const name = file.name || "file", kind = file.type.split("/")[0];
    const taken = this.kinds.map((each) => KINDS[each]).join(", ").replace(/, ([^,]+)$/, " and $1");
    if (!this.kinds.length) throw new Error(`${name} cannot be sent: this model takes text alone.`);
    if (!this.kinds.includes(kind)) throw new Error(`${name} cannot be sent: this model takes ${taken}, and no ${KINDS[kind] ?? "other files"}.`);
    if (this.items.length >= MOST_FILES) throw new Error(`${name} is one too many: a message has ${MOST_FILES} files at most.`);
    if (!file.size) throw new Error(`${name} is empty.`);
    const blob = kind === "image" ? await sentPicture(file, name) : file;
    const bytes = this.items.reduce((sum, item) => sum + item.blob.size, blob.size);
    if (bytes > MOST_BYTES) {
      throw new Error(`${name} is too large: the files of a message have ${sizeOf(MOST_BYTES)} at most.`);
    }
    return { kind, name, blob };
  }

  #show() {
    for (const free of this.#free.splice(0)) free();
    this.#list.replaceChildren(...this.items.map((item) => {
      const { element, free } = mediaView(item);
      this.#free.push(free);
      const remove = iconButton("close", `Remove ${item.name}`, () => {
        this.set(this.items.filter((each) => each !== item));
        this.#say(`${item.name} is removed.`);
      });
      return el("li", {}, element, el("span", { class: "size" }, sizeOf(item.blob.size)), remove);
    }));
    this.#list.hidden = !this.items.length;
    this.dispatchEvent(new Event("change"));
  }
}

export function sizeOf(bytes) {
  if (bytes < 1e3) return `${bytes} B`;
  return bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/* A picture as models take it: of a usual format and size. */
async function sentPicture(file, name) {
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) throw new Error(`${name} cannot be read as a picture.`);
  const scale = Math.min(1, MOST_PIXELS / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && SENT_AS_THEY_ARE.has(file.type)) return file;
  const canvas = el("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const type = file.type === "image/jpeg" ? "image/jpeg" : "image/png";
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error(`${name} cannot be read as a picture.`))), type, 0.9);
  });
}
