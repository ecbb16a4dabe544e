/* The dialogue that asks for the server's key. */

/** The key that the person gives; "" if none. `wasWrong`: whether the server refused an earlier one. */
export function askKey({ wasWrong }) {
  const dialog = document.getElementById("keys");
  const field = document.getElementById("key");
  field.value = "";
  document.getElementById("key-refused").hidden = !wasWrong;
  dialog.returnValue = "";
  dialog.showModal();
  field.focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "use" ? field.value.trim() : ""), { once: true });
  });
}
