/* The turns of the conversation, one below the other. The latest stays in view unless the person has scrolled up. */

import { TurnView } from "./turn_view.js";

/* Pixels from the end that still count as the end. */
const NEAR = 80;

/** Has `list` (in the scrolled `scroller`) show the conversation; `jump` is a button that leads to its end. */
export function mountLog({ scroller, list, jump, welcome, conversation, actions }) {
  let views = [];
  let isAtEnd = true, top = 0;
  const toEnd = () => { scroller.scrollTop = scroller.scrollHeight; };
  const isNear = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR;
  const arrange = () => {
    welcome.hidden = views.length > 0;
    views.forEach((view, index) => { view.isLast = index === views.length - 1; });
  };
  const add = (turn) => {
    const view = new TurnView(turn, actions);
    views.push(view);
    list.append(view.element);
  };

  scroller.addEventListener("scroll", () => {
    /* A window that shrinks moves its end away, and the person does not. */
    if (isNear()) isAtEnd = true;
    else if (scroller.scrollTop < top) isAtEnd = false;
    top = scroller.scrollTop;
    jump.hidden = isAtEnd || isNear();
  }, { passive: true });
  jump.addEventListener("click", toEnd);
  const grown = new ResizeObserver(() => { if (isAtEnd && views.length) toEnd(); });
  grown.observe(list);
  grown.observe(scroller);

  conversation.addEventListener("turn", ({ detail }) => {
    isAtEnd = true;
    add(detail);
    arrange();
  });
  conversation.addEventListener("removed", ({ detail }) => {
    for (const view of views.filter(({ turn }) => detail.includes(turn))) view.remove();
    views = views.filter(({ turn }) => !detail.includes(turn));
    arrange();
  });
  conversation.addEventListener("load", () => {
    for (const view of views) view.remove();
    views = [];
    isAtEnd = true;
    for (const turn of conversation.turns) add(turn);
    arrange();
    if (views.length) toEnd();
  });
  conversation.addEventListener("busy", ({ detail }) => list.setAttribute("aria-busy", String(detail)));
}
