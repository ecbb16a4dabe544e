/* What the server tells of its inside, whether it is one server or a router in front of several. */

/** Asks a server: its own pipeline, or through a router those of its workers. */
export class Source {
  #request;
  /** Whether a router answers here; null before anything was asked. */
  #routed = null;

  /** @param request sends a request, as `fetch` does. */
  constructor(request) {
    this.#request = request;
  }

  /** What the router knows of its fleet; null if there is none. */
  async fleet() {
    /* A router says which worker an answer comes from. */
    this.#routed ??= (await this.#request("pipeline")).headers.has("x-sglang-omni-worker");
    return this.#routed ? this.#read("fleet") : null;
  }

  /** The shape of a pipeline. @param worker the worker's id at a router. */
  pipeline(worker) {
    return this.#read(`${base(worker)}pipeline`);
  }

  /** What a pipeline's stages do now. */
  load(worker) {
    return this.#read(`${base(worker)}pipeline/load`);
  }

  /**
   * Where a request is and was, with its `worker` at a router; null if it is not known, or not yet.
   *
   * @param worker where it is, if that is known: else all workers are asked.
   */
  async passage(id, worker) {
    const path = this.#routed && worker === undefined ? "fleet/requests" : `${base(worker)}pipeline/requests`;
    const { requests } = await this.#read(`${path}?id=${encodeURIComponent(id)}`);
    return requests.length ? { worker, ...requests[0] } : null;
  }

  async #read(path) {
    return read(await this.#request(path));
  }
}

/** Why there is nothing to show, for a person. */
export class NothingTold extends Error {
  /** @param mayChange whether asking again may help. */
  constructor(message, mayChange) {
    super(message);
    this.mayChange = mayChange;
  }
}

const base = (worker) => (worker === undefined ? "" : `fleet/${worker}/`);

async function read(response) {
  if (response.ok) return response.json();
  if (response.status === 401) throw new NothingTold("This needs the server's key.", false);
  if (response.status === 404) throw new NothingTold("This server does not tell of its inside.", false);
  throw new NothingTold(`The server tells nothing at the moment (${response.status}).`, true);
}
