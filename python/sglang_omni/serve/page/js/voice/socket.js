/* A realtime session's WebSocket: events both ways, and the answers to those that have one. */

import { request, shownKey } from "../api.js";
import { Problem, problemOf } from "../problems.js";

/* A browser fills no header of a WebSocket: the key is shown as a protocol, whose letters are those of a token. */
const KEY_PROTOCOL = "openai-insecure-api-key.";
const TOKEN = /^[!#$%&'*+\-.^_`|~\w]+$/;
const PATIENCE_MS = 15_000;
const CUT = "The connection to the server was lost.";
/* By the code that the server closes with. */
const CUT_BY = {
  1001: "The spoken conversation has reached its longest time.",
  1008: "The network is too slow for spoken answers.",
  1012: "The server was stopped.",
};

export class RealtimeSocket {
  #socket;
  #count = 0;
  /* By event_id: what waits for an answer. */
  #asked = new Map();

  /** Called with each event of the server's, and with a Problem once the session is over. */
  onevent = null;
  onclose = null;

  constructor(url, protocols) {
    this.#socket = new WebSocket(url, protocols);
    this.#socket.onmessage = ({ data }) => this.#take(JSON.parse(data));
    this.#socket.onclose = ({ code }) => this.#closed(code);
  }

  /**
   * Opens a session of a model's; resolves with its socket and what the server says of it.
   *
   * @throws Problem if the server takes none.
   */
  static async open(model) {
    const url = new URL("v1/realtime", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    url.searchParams.set("model", model);
    const key = shownKey();
    if (key && !TOKEN.test(key)) {
      throw new Problem("The server's key has a letter that a browser cannot send with sound. Typed messages work.");
    }
    const socket = new RealtimeSocket(url, key ? ["realtime", KEY_PROTOCOL + key] : ["realtime"]);
    let timer;
    const session = await new Promise((resolve, reject) => {
      socket.onevent = (event) => { if (event.type === "session.created") resolve(event.session); };
      socket.onclose = async () => reject(await refused());
      timer = setTimeout(() => { socket.close(); reject(new Problem("The server does not answer.")); }, PATIENCE_MS);
    }).finally(() => clearTimeout(timer));
    return { socket, session };
  }

  get isOpen() {
    return this.#socket.readyState === WebSocket.OPEN;
  }

  send(type, fields = {}) {
    if (this.isOpen) this.#socket.send(JSON.stringify({ type, ...fields }));
  }

  /** Sends an event; resolves with the next one of the type `answer`, if the server tells no error of it first. */
  ask(type, fields, answer) {
    if (!this.isOpen) return Promise.reject(new Problem(CUT));
    const id = `page_${++this.#count}`;
    return new Promise((resolve, reject) => {
      this.#asked.set(id, { answer, resolve, reject });
      this.send(type, { event_id: id, ...fields });
    });
  }

  close() {
    this.onclose = null;
    this.#socket.close();
  }

  async #take(event) {
    if (event.type === "error" && this.#asked.has(event.error.event_id)) {
      const { reject } = this.#asked.get(event.error.event_id);
      this.#asked.delete(event.error.event_id);
      reject(Object.assign(await problemOf(event), { code: event.error.code }));
      return;
    }
    /* The server takes one event after another, so its answers come in the order of the questions. */
    for (const [id, { answer, resolve }] of this.#asked) {
      if (answer !== event.type) continue;
      this.#asked.delete(id);
      resolve(event);
      break;
    }
    this.onevent?.(event);
  }

  #closed(code) {
    const problem = new Problem(CUT_BY[code] ?? CUT);
    for (const { reject } of this.#asked.values()) reject(problem);
    this.#asked.clear();
    this.onclose?.(problem);
  }
}

/* A browser does not tell why a WebSocket was refused, but an ordinary request fails for most of the same reasons. */
async function refused() {
  const response = await request("get_model_info").catch((error) => error);
  if (response instanceof Error) return response;
  if (!response.ok) return problemOf(response);
  return new Problem("The server takes no spoken conversation now. Too many may be open: try again in a moment.");
}
