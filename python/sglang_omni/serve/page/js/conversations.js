/* The kept conversations: found, opened, begun anew, renamed, saved as a file and deleted. */

import { el, iconButton } from "./dom.js";
import { fileNameOf, saveAs } from "./files.js";
import { holdFor, tabHasEnded } from "./tabs.js";

const SAVE_MS = 1_000;
/* With fewer, a search would find nothing that is not seen. */
const SEARCHED_FROM = 6;

/**
 * Keeps the conversation in `storage` (null: the browser keeps nothing), and lists the kept ones.
 *
 * @param search the field by whose words the list is narrowed.
 * @returns { start(): opens the latest conversation, begin(): a new one }.
 */
export function mountConversations({ list, search, conversation, storage, say, opened }) {
  /* An answer that ends later does not bring them back. */
  const deleted = new Set();
  const show = async () => {
    const all = storage ? await storage.list() : [];
    const words = search.value.trim().toLowerCase().split(/\s+/);
    const found = all.filter(({ title }) => words.every((word) => title.toLowerCase().includes(word)));
    search.hidden = all.length < SEARCHED_FROM && !search.value;
    list.replaceChildren(...found.map(({ id, title, used }) => {
      const isCurrent = id === conversation.id;
      return el("li", {},
        el("button", { type: "button", class: "row", "aria-current": isCurrent && "true", onclick: () => open(id) },
          el("span", { class: "title", dir: "auto", title }, title), el("time", { datetime: new Date(used).toISOString() }, dayOf(used))),
        el("div", { class: "of-row" },
          iconButton("edit", `Rename “${title}”`, () => rename(id, title)),
          iconButton("download", `Save “${title}” as a file`, () => exported(id, title)),
          iconButton("trash", `Delete “${title}”`, () => remove(id, title))));
    }));
    if (!found.length) {
      list.append(el("li", { class: "muted" }, all.length ? "None has these words." : storage ? "None yet." : "This browser keeps none."));
    }
  };
  search.addEventListener("input", show);
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
  const rename = async (id, title) => {
    const given = await asked(title);
    if (given) await storage.rename(id, given);
    await show();
  };
  const exported = async (id, title) => {
    const text = markdownOf(title, await storage.turns(id));
    saveAs(`${fileNameOf(title)}.md`, new Blob([text], { type: "text/markdown" }));
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

/* Today's have their time, and older ones their day. */
function dayOf(used) {
  const date = new Date(used), isToday = date.toDateString() === new Date().toDateString();
  return isToday
    ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : date.toLocaleDateString([], { day: "numeric", month: "short" });
}

function markdownOf(title, turns) {
  const parts = turns.map((turn) => {
    const files = turn.media.map(({ name }) => `(${name})`);
    return [turn.role === "user" ? "## You" : "## Answer", ...files, turn.heard, turn.text].filter(Boolean).join("\n\n");
  });
  return [`# ${title}`, ...parts].join("\n\n") + "\n";
}

function confirmed(question) {
  document.getElementById("confirm-question").textContent = question;
  return answerOf("confirm", () => true);
}

function asked(title) {
  const field = document.getElementById("new-title");
  field.value = title;
  const answered = answerOf("rename", () => field.value.trim());
  field.select();
  return answered;
}

/* Shows a dialogue; resolves with a value of it, or null if it was left otherwise. */
function answerOf(id, value) {
  const dialog = document.getElementById(id);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? value() : null), { once: true });
  });
}
