/* The other tabs of this browser. While one has an answer under way, it holds a lock with the turn's name. */

/* Pages without https have no locks, and take what another tab has under way for broken. */
const locks = navigator.locks;

/** Shows other tabs that this one has a turn under way, until a promise is over. */
export function holdFor(turn, until) {
  locks?.request(turn.id, () => until);
}

/** The ids of the turns that any tab has under way. */
export async function tabsHave() {
  const { held = [] } = (await locks?.query()) ?? {};
  return new Set(held.map(({ name }) => name));
}

/** Resolves once the tab that had a turn under way has kept it, or is closed. */
export function tabHasEnded(turn) {
  return locks.request(turn.id, { mode: "shared" }, () => {});
}
