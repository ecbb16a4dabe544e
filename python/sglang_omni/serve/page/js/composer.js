/* Where a message is written: its text and files, Send and Stop. */

import { sizeOf } from "./attachments.js";
import { el } from "./dom.js";
import { mediaOf, turnsWithMedia } from "./messages.js";

const DRAFT = "draft";

/**
 * @param player the Player of the answers' speech.
 * @returns { edit(turn), focus(), ask(message) }.
 */
export function mountComposer({ form, conversation, attachments, player, say }) {
  const { text, file } = form.elements;
  const send = form.querySelector("#send"), attach = form.querySelector("#attach");
  const editing = form.querySelector("#editing"), again = form.querySelector("#again");
  let edited = null, isSounding = false;

  const grow = () => {
    /* Set as a property: the page allows no styles in attributes. */
    text.style.height = "auto";
    text.style.height = `${text.scrollHeight + 2}px`;
  };
  const write = (words) => { text.value = words; keepDraft(words); grow(); };
  const isActive = () => conversation.busy || isSounding;
  const showButton = () => {
    const stops = isActive() && !text.value.trim() && !attachments.items.length;
    send.dataset.does = stops ? "stop" : "send";
    send.setAttribute("aria-label", stops ? "Stop" : "Send");
    send.title = stops ? "Stop (Escape)" : "Send (Enter)";
  };
  const showAgain = () => {
    const turns = turnsWithMedia(conversation.turns.slice(0, edited ? conversation.turns.indexOf(edited) : undefined));
    const items = turns.flatMap(mediaOf);
    again.hidden = !items.length;
    if (!items.length) return;
    const size = sizeOf(items.reduce((sum, { blob }) => sum + blob.size, 0));
    const what = items.length === 1 ? "1 earlier file goes" : `${items.length} earlier files go`;
    again.replaceChildren(
      el("span", {}, `${what} with each message, so that the model still has ${items.length === 1 ? "it" : "them"} (${size}).`),
      el("button", { type: "button", class: "link", onclick: () => {
        for (const turn of turns) turn.leaveOut();
        showAgain();
        text.focus();
      } }, "Leave out"));
  };
  const stopEditing = () => {
    edited = null;
    editing.hidden = true;
  };
  const ask = (message) => {
    say("");
    conversation.ask(message);
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const words = text.value.trim();
    if (!words && !attachments.items.length) {
      if (isActive()) conversation.stop();
      return;
    }
    if (edited) conversation.removeFrom(edited);
    stopEditing();
    write("");
    ask({ text: words, media: attachments.take() });
  });
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    /* Without words, Enter neither sends nor stops. */
    if (text.value.trim() || attachments.items.length) form.requestSubmit();
  });
  text.addEventListener("input", () => { grow(); keepDraft(text.value); showButton(); });
  /* Panels that stood beside the conversation leave it a moment later. */
  addEventListener("resize", () => requestAnimationFrame(grow));

  attach.addEventListener("click", () => file.click());
  file.addEventListener("change", async () => {
    const files = [...file.files];
    file.value = "";
    await attachments.add(files);
    text.focus();
  });
  takeDropped(form, attachments);
  form.querySelector("#editing button").addEventListener("click", () => {
    stopEditing();
    attachments.set([]);
    write("");
    text.focus();
  });

  for (const name of ["busy", "turn", "removed", "load"]) {
    conversation.addEventListener(name, () => { showButton(); showAgain(); });
  }
  conversation.addEventListener("load", () => { if (edited) { stopEditing(); attachments.set([]); write(""); } });
  attachments.addEventListener("change", showButton);
  player.onstart = () => { isSounding = true; showButton(); };
  player.onend = () => { isSounding = false; showButton(); };
  write(draft());
  showButton();

  return {
    ask,
    focus: () => text.focus(),
    edit(turn) {
      conversation.stop();
      edited = turn;
      editing.hidden = false;
      attachments.set(turn.media);
      write(turn.text || turn.heard);
      showAgain();
      text.focus();
    },
  };
}

/* Files that are dropped anywhere on the page, or pasted. */
function takeDropped(form, attachments) {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    form.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) form.classList.remove("dropping"); });
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    form.classList.remove("dropping");
    attachments.add(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => {
    if (!event.clipboardData?.files.length) return;
    event.preventDefault();
    attachments.add(event.clipboardData.files);
  });
}

/* What is typed outlives a reload, within the tab. */
function keepDraft(words) {
  try { sessionStorage.setItem(DRAFT, words); } catch { /* A browser that keeps nothing. */ }
}

function draft() {
  try { return sessionStorage.getItem(DRAFT) ?? ""; } catch { return ""; }
}
