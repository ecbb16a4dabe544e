/* Elements, made without HTML text: whatever a model or a file's name holds stays text. */

/** An element with properties (`class`, `on*`, attributes, `dataset`) and children; empty children are left out. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/* Drawn on a grid of 24, in lines of the text's colour. */
const PATHS = {
  again: "M19 12a7 7 0 1 1-2.200-5.100M19 4v4h-4",
  chat: "M4 5h16v11H9l-5 4z",
  check: "M5 12.500l4.500 4.500L19 7.500",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  down: "M12 5v14M6 13l6 6 6-6",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  mic: "M12 4a2.500 2.500 0 0 1 2.500 2.500v5a2.500 2.500 0 0 1-5 0v-5A2.500 2.500 0 0 1 12 4zM6.500 11.500a5.500 5.500 0 0 0 11 0M12 17v3",
  mute: "M14.500 9.500v-3a2.500 2.500 0 0 0-5 0M9.500 9.500v2a2.500 2.500 0 0 0 4 2M6.500 11.500a5.500 5.500 0 0 0 9 4.300M17.500 11.500v1M12 17v3M4 4l16 16",
  picture: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M14.500 9h.01",
  sound: "M5 10v4h3l4 4V6L8 10zM16 9q2.500 3 0 6M18.500 6.500q4.500 5.500 0 11",
  trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13",
  video: "M4 6h11v12H4zM15 11l5-3v8l-5-3",
  wave: "M4 11v2M8 8v8M12 5v14M16 8v8M20 11v2",
};

/** A picture that says nothing by itself: its button or text does. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 24 24", "aria-hidden": "true", class: "icon" })) {
    svg.setAttribute(key, value);
  }
  const path = document.createElementNS(svg.namespaceURI, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A button of an icon alone, with its name for screen readers and the mouse. */
export function iconButton(name, label, onclick, properties = {}) {
  return el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...properties },
    icon(name));
}
