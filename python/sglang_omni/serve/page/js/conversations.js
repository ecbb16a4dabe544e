/* The kept conversations: opened, begun anew and deleted. */

import { el, iconButton } from "./dom.js";
import { holdFor, tabHasEnded } from "./tabs.js";

const SAVE_MS = 1_000;

/**
 * Keeps the conversation in `storage` (null: the browser keeps nothing), and lists the kept ones.
 *
 * @returns { start(): opens the latest conversation, begin(): a new one }.
 */
export function mountConversations({ list, conversation, storage, say, opened }) {
  /* An answer that ends later does not bring them back. */
  const deleted = new Set();
  const show = async () => {
    const kept = storage ? await storage.list() : [];
    list.replaceChildren(...kept.map(({ id, title }) => {
      const isCurrent = id === conversation.id;
      return el("li", {},
        el("button", { type: "button", class: "row", "aria-current": isCurrent && "true", dir: "auto", title, onclick: () => open(id) }, title),
        iconButton("trash", `Delete “${title}”`, () => remove(id, title)));
    }));
    if (!kept.length) list.append(el("li", { class: "muted" }, storage ? "None yet." : "This browser keeps none."));
  };
  const open = async (id) => {
    conversation.load(id, await storage.turns(id));
    opened();
    await show();
  };
  const begin = () => {
    conversation.load();
    opened();
    return show();
  };
  const remove = async (id, title) => {
    if (!(await confirmed(`Delete “${title}”?`))) return;
    deleted.add(id);
    if (id === conversation.id) conversation.load();
    await storage.remove(id);
    await show();
    say("The conversation is deleted.");
    list.querySelector("button")?.focus();
  };

  if (storage) keep({ conversation, storage, deleted, say, show });
  return {
    begin,
    start: async () => {
      const [latest] = storage ? await storage.list() : [];
      if (latest) conversation.load(latest.id, await storage.turns(latest.id));
      await show();
    },
  };
}

/* Saves each turn when it begins, once a second while it grows, and when it ends. */
function keep({ conversation, storage, deleted, say, show }) {
  let hasFailed = false;
  const save = async ({ id, turns }, changed, removed) => {
    if (deleted.has(id)) return;
    try {
      await storage.save({ id, turns }, changed, removed);
      await show();
    } catch (error) {
      if (!hasFailed) say(`The browser cannot keep this conversation: ${error.message}`, { bad: true });
      hasFailed = true;
    }
  };
  const follow = (turn) => {
    /* It may end when another conversation is open. */
    const { id, turns } = conversation;
    let waits = null, isHeld = false;
    const saveTurn = async () => {
      clearTimeout(waits);
      waits = null;
      if (turns.includes(turn)) await save({ id, turns }, [turn]);
    };
    /* Until what has ended is kept, other tabs know that it is this one's. */
    const hold = () => {
      if (isHeld || turn.state !== "running") return;
      isHeld = true;
      holdFor(turn, new Promise((resolve) => {
        turn.addEventListener("finish", () => { isHeld = false; resolve(saveTurn()); }, { once: true });
      }));
    };
    turn.addEventListener("change", () => { hold(); waits ??= setTimeout(saveTurn, SAVE_MS); });
    hold();
    return saveTurn;
  };
  conversation.addEventListener("turn", ({ detail: turn }) => follow(turn)());
  conversation.addEventListener("load", () => {
    const { id, turns } = conversation;
    for (const turn of turns) {
      if (turn.state === "elsewhere") tabHasEnded(turn).then(async () => turn.settle(await storage.turn(id, turn)));
      follow(turn);
    }
  });
  conversation.addEventListener("removed", ({ detail }) => save(conversation, [], detail));
}

function confirmed(question) {
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-question").textContent = question;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
