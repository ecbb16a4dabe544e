/* The panels beside the conversation: docked if the window is wide enough, and above the page if not. */

/**
 * Has a button open and close a panel, which is a `dialog`.
 *
 * @param docks a media query: whether the panel stands beside the conversation.
 * @param isOpen whether a docked one is open at first.
 * @returns { open(), close() }; `close` closes it if it covers the page.
 */
export function mountPanel({ dialog, button, docks, isOpen = false }) {
  const wide = matchMedia(docks);
  const open = () => {
    if (dialog.open) return;
    /* Two at one side would leave too little for the conversation. */
    for (const other of document.querySelectorAll("dialog.side[open]")) if (dialog.matches(".side")) other.close();
    if (wide.matches) dialog.show();
    else dialog.showModal();
    button.setAttribute("aria-expanded", "true");
  };
  /* At once, and not at the event "close": by then the person may be writing already. */
  const leave = () => { dialog.close(); button.focus(); };
  button.addEventListener("click", () => (dialog.open ? dialog.close() : open()));
  dialog.querySelector("[data-closes]").addEventListener("click", leave);
  dialog.addEventListener("close", () => button.setAttribute("aria-expanded", "false"));
  /* A press beside a panel that covers the page. */
  dialog.addEventListener("pointerdown", (event) => { if (event.target === dialog && dialog.matches(":modal")) dialog.close(); });
  dialog.addEventListener("keydown", (event) => { if (event.key === "Escape" && !dialog.matches(":modal")) leave(); });
  wide.addEventListener("change", () => {
    const reopens = wide.matches ? isOpen || dialog.open : false;
    if (dialog.open) dialog.close();
    if (reopens) open();
  });
  button.setAttribute("aria-expanded", "false");
  if (isOpen && wide.matches) open();
  return { open, close: () => { if (dialog.matches(":modal")) dialog.close(); } };
}
