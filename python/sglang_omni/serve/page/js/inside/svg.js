/* Elements of SVG. */

/** An element of SVG with attributes and children. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A text that is cut to a width; the whole is its title. @param charWidth of its font, in pixels. */
export function cutText(text, width, charWidth, attributes) {
  const fits = Math.max(1, Math.floor(width / charWidth));
  const shown = text.length > fits ? `${text.slice(0, fits - 1)}…` : text;
  const element = svg("text", attributes, shown);
  if (shown !== text) element.append(svg("title", {}, text));
  return element;
}
