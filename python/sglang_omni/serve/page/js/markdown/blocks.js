/* Markdown that grows: blocks as DOM nodes.
 *
 * A line is read once. The last one, which is not whole yet, is read too, and taken back when more of it comes. So the
 * work for a piece is that for its own lines and for its paragraph, however long the text before it.
 */

import { el } from "../dom.js";
import { inline } from "./inline.js";

/* Lists and quotes within each other, at most: deeper ones are text. */
const DEPTH = 8;
/* Of the heading that a turn has. */
const TURN_LEVEL = 2;
/* Letters of a paragraph that are read again with each piece; what is before them is settled. */
const OPEN_LETTERS = 2_000;
/* Letters of a line that decide what it is. This also bounds the time of the patterns below. */
const LINE_LETTERS = 4_000;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*))?$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?: {1,4}|$)/;
const FIGURE = /^(?!1[.)])\d/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/** Appends Markdown to an element, in pieces that end anywhere. */
export class Markdown {
  #blocks;
  #rest = "";
  #isWithin = false;
  #undo = [];

  /** @param codeBlock makes the element of a code block from a language's name and a `code` element. */
  constructor(element, codeBlock) {
    this.#blocks = new Blocks(element, { codeBlock, undo: this.#undo, level: TURN_LEVEL });
  }

  write(text) {
    while (this.#undo.length) this.#undo.pop()();
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const line of lines) {
      this.#read(line.replace(/\r$/, ""));
      this.#isWithin = false;
    }
    while (this.#rest.length > LINE_LETTERS) {
      this.#read(this.#rest.slice(0, LINE_LETTERS));
      this.#isWithin = true;
      this.#rest = this.#rest.slice(LINE_LETTERS);
    }
    this.#blocks.settle();
    this.#undo.length = 0;
    if (this.#rest) this.#read(this.#rest);
    this.#blocks.settle();
  }

  /* Reads a line, or the rest of one if its beginning has been read. */
  #read(line) {
    if (this.#isWithin) this.#blocks.goOn(line.slice(0, LINE_LETTERS));
    else this.#blocks.line(line.slice(0, LINE_LETTERS));
    for (let at = LINE_LETTERS; at < line.length; at += LINE_LETTERS) {
      this.#blocks.goOn(line.slice(at, at + LINE_LETTERS));
    }
  }
}

/* The blocks of an element: of the whole text, of a quote or of a list's item. `open` is the last block if further
   lines may belong to it; it is replaced and never changed, so that a line can be taken back. */
class Blocks {
  #element;
  #shared;
  #depth;
  #open = null;
  #isBlank = false;
  #isShown = true;

  constructor(element, shared, depth = 0) {
    this.#element = element;
    this.#shared = shared;
    this.#depth = depth;
  }

  /** Reads a line. */
  line(line) {
    const text = line.replace(/\t/g, "    ");
    const open = this.#open, wasBlank = this.#isBlank, isBlank = !text.trim();
    this.#shared.undo.push(() => { this.#isBlank = wasBlank; });
    this.#isBlank = isBlank;
    if (open?.kind === "code") return this.#codeLine(open, line);
    if (open?.kind === "list" && this.#listLine(open, text, isBlank, wasBlank)) return;
    if (open?.kind === "quote" && QUOTE.test(text)) return open.blocks.line(text.replace(QUOTE, ""));
    if (open?.kind === "table" && text.includes("|")) return this.#row(open, text);
    if (isBlank) return this.#set(null);
    const isParagraph = open?.kind === "paragraph";
    if (isParagraph && TABLE_RULE.test(text) && this.#table(open, text)) return;
    if (this.#begins(text, isParagraph)) return;
    if (isParagraph) return this.#set({ ...open, text: `${open.text}\n${text.trimStart()}` });
    const element = this.#append(el("p", { dir: "auto" }));
    this.#set({ kind: "paragraph", element, text: text.trimStart(), settled: 0, kept: 0 });
  }

  /** Reads what follows the last line's beginning. */
  goOn(text) {
    const open = this.#open;
    if (open?.blocks) open.blocks.goOn(text);
    else if (open?.kind === "code") this.#addCode(open, text);
    else if (open?.kind === "paragraph") this.#set({ ...open, text: open.text + text });
    else this.line(text);
  }

  /** Shows the paragraph that lines have changed. */
  settle() {
    const open = this.#open;
    open?.blocks?.settle();
    if (open?.kind !== "paragraph" || this.#isShown) return;
    this.#isShown = true;
    this.#fill(open);
  }

  /* A paragraph's element: nodes of its settled text, which stay, and those of the rest. */
  #fill(open) {
    const { element, text } = open;
    let { settled, kept } = open;
    while (element.childNodes.length > kept) element.lastChild.remove();
    while (text.length - settled > OPEN_LETTERS) {
      const end = Math.max(text.lastIndexOf(" ", settled + OPEN_LETTERS) + 1, settled + OPEN_LETTERS / 2);
      element.append(...inline(text.slice(settled, end)));
      [settled, kept] = [end, element.childNodes.length];
    }
    element.append(...inline(text.slice(settled)));
    this.#open = { ...open, settled, kept };
  }

  /* A figure at the beginning of a paragraph's line, as a year, begins no list unless it is 1. */
  #begins(text, isParagraph) {
    const fence = FENCE.exec(text), heading = HEADING.exec(text), item = ITEM.exec(text);
    if (fence) {
      const code = el("code", {}, new Text());
      this.#append(this.#shared.codeBlock(fence[2], code));
      this.#set({ kind: "code", node: code.firstChild, fence: fence[1], indent: text.search(/\S/), isEmpty: true });
    } else if (heading) {
      this.#append(el(`h${this.#level(heading[1].length)}`, { dir: "auto" }, inline((heading[2] ?? "").replace(/ +#+ *$/, ""))));
      this.#set(null);
    } else if (RULE.test(text)) {
      this.#append(el("hr"));
      this.#set(null);
    } else if (QUOTE.test(text) && this.#depth < DEPTH) {
      const blocks = this.#within(this.#append(el("blockquote")));
      this.#set({ kind: "quote", blocks });
      blocks.line(text.replace(QUOTE, ""));
    } else if (item && this.#depth < DEPTH && !(isParagraph && FIGURE.test(item[2]))) {
      const isOrdered = /\d/.test(item[2]);
      const start = isOrdered && parseInt(item[2], 10) !== 1 ? parseInt(item[2], 10) : null;
      const element = this.#append(el(isOrdered ? "ol" : "ul", { start, dir: "auto" }));
      this.#item({ kind: "list", element, mark: item[2].at(-1) }, text, item);
    } else return false;
    return true;
  }

  /* A heading's level on the page: below that of the turn, and at most one below the heading before it. */
  #level(marks) {
    const before = this.#shared.level;
    this.#shared.undo.push(() => { this.#shared.level = before; });
    this.#shared.level = Math.min(TURN_LEVEL + marks, before + 1, 6);
    return this.#shared.level;
  }

  #codeLine(open, line) {
    const end = line.trim();
    if (end.startsWith(open.fence) && !end.replaceAll(open.fence[0], "")) return this.#set(null);
    this.#addCode(open, (open.isEmpty ? "" : "\n") + line.slice(Math.min(open.indent, Math.max(0, line.search(/\S|$/)))));
    if (open.isEmpty) this.#set({ ...open, isEmpty: false });
  }

  #addCode({ node }, text) {
    const before = node.length;
    node.appendData(text);
    this.#shared.undo.push(() => node.deleteData(before, text.length));
  }

  /* Whether a line belongs to an open list: to its last item, or as a new one. */
  #listLine(open, text, isBlank, wasBlank) {
    const item = ITEM.exec(text);
    const isIn = text.search(/\S/) >= open.indent;
    if (isBlank || isIn) open.blocks.line(isBlank ? "" : text.slice(open.indent));
    else if (item && item[2].at(-1) === open.mark && !RULE.test(text)) this.#item(open, text, item);
    else if (!wasBlank && !item && !FENCE.test(text) && !HEADING.test(text) && !RULE.test(text)) open.blocks.line(text);
    else return false;
    return true;
  }

  #item(list, text, item) {
    const element = el("li");
    this.#append(element, list.element);
    const blocks = this.#within(element);
    this.#set({ ...list, blocks, indent: Math.max(2, item[0].length) });
    blocks.line(text.slice(item[0].length).replace(/^\[([ xX])\] /, (_, mark) => (mark === " " ? "☐ " : "☑ ")));
  }

  /* Makes a paragraph's last line the head of a table, if it has as many cells as the rule below it. */
  #table(open, rule) {
    const lines = open.text.split("\n");
    const head = cells(lines.at(-1)), aligned = cells(rule).map(alignment);
    if (lines.length > 1 || head.length !== aligned.length || !lines[0].includes("|")) return false;
    const body = el("tbody");
    const row = el("tr", {}, head.map((cell, i) => el("th", { scope: "col", class: aligned[i] }, inline(cell))));
    const table = el("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" },
      el("table", {}, el("thead", {}, row), body));
    const { element } = open;
    element.replaceWith(table);
    this.#shared.undo.push(() => table.replaceWith(element));
    this.#set({ kind: "table", body, aligned });
    return true;
  }

  #row({ body, aligned }, text) {
    const row = cells(text);
    this.#append(el("tr", {}, aligned.map((align, i) => el("td", { class: align }, inline(row[i] ?? "")))), body);
  }

  #within(element) {
    return new Blocks(element, this.#shared, this.#depth + 1);
  }

  #append(node, parent = this.#element) {
    parent.append(node);
    this.#shared.undo.push(() => node.remove());
    return node;
  }

  #set(open) {
    /* What is left is shown whole first. */
    if (open?.kind !== "paragraph" || open.element !== this.#open?.element) this.settle();
    const before = this.#open;
    this.#shared.undo.push(() => { this.#open = before; this.#isShown = false; });
    this.#open = open;
    this.#isShown = false;
  }
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function alignment(rule) {
  if (!rule.endsWith(":")) return null;
  return rule.startsWith(":") ? "centre" : "right";
}
