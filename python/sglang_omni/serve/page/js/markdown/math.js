/* Formulas: the part of TeX that models write, as MathML, which browsers draw themselves.
 *
 * MathML Core (https://www.w3.org/TR/mathml-core/) has no alphabets but the upright one, so that letters of others are
 * those of Unicode's block "Mathematical Alphanumeric Symbols".
 */

import { ACCENTS, ALPHABETS, FENCES, FUNCTIONS, LARGE, LETTERS, LIMITED, OPERATORS, SPACES } from "./symbols.js";

const TOKEN = /\\(?:[a-zA-Z]+|[^])|[0-9]+(?:[.,][0-9]+)*|\s+|[^]/gu;
const DEPTH = 40;

/** The element of a formula; null if it has something that is not known here. */
export function math(source, { isBlock = false } = {}) {
  try {
    const parser = new Parser(source.match(TOKEN) ?? [], isBlock);
    const content = parser.row(null);
    return node("math", isBlock ? { display: "block" } : {}, content);
  } catch (error) {
    if (error instanceof Unknown) return null;
    throw error;
  }
}

class Unknown extends Error {}

function node(tag, attributes, children = []) {
  const element = document.createElementNS("http://www.w3.org/1998/Math/MathML", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const leaf = (tag, text, attributes = {}) => node(tag, attributes, [text]);
const operator = (text, isStretched = false) => leaf("mo", text, { stretchy: String(isStretched) });
const group = (children) => (children.length === 1 ? children[0] : node("mrow", {}, children));

class Parser {
  #tokens;
  #at = 0;
  #isBlock;
  #depth = 0;

  constructor(tokens, isBlock) {
    this.#tokens = tokens;
    this.#isBlock = isBlock;
  }

  /** The nodes up to a token that `ends` takes, which is read; without `ends`, all. */
  row(ends) {
    const nodes = [];
    if (++this.#depth > DEPTH) throw new Unknown();
    for (;;) {
      this.#skipSpace();
      const token = this.#tokens[this.#at];
      if (token === undefined && !ends) break;
      if (token === undefined) throw new Unknown();
      if (ends?.(token)) { this.#at++; break; }
      if (token === "}" || token === "&" || token === "\\\\" || token === "\\end" || token === "\\right") throw new Unknown();
      nodes.push(this.#scripted());
    }
    this.#depth--;
    return nodes;
  }

  #skipSpace() {
    while (/^\s/.test(this.#tokens[this.#at] ?? "")) this.#at++;
  }

  #next() {
    this.#skipSpace();
    if (this.#at >= this.#tokens.length) throw new Unknown();
    return this.#tokens[this.#at++];
  }

  /* Something and what stands below and above it. */
  #scripted() {
    const token = this.#tokens[this.#at];
    const base = token === "^" || token === "_" ? node("mrow", {}) : this.#one();
    let below = null, above = null;
    for (;;) {
      this.#skipSpace();
      const mark = this.#tokens[this.#at];
      if (mark === "_" && !below) { this.#at++; below = this.#argument(); }
      else if (mark === "^" && !above) { this.#at++; above = this.#argument(); }
      else if (mark === "'" && !above) above = this.#primes();
      else break;
    }
    const name = token?.slice(1);
    const hasLimits = this.#isBlock && (LIMITED.has(name) || (name in LARGE && !name.endsWith("int")));
    const [under, over, both] = hasLimits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    if (below && above) return node(both, {}, [base, below, above]);
    if (below) return node(under, {}, [base, below]);
    return above ? node(over, {}, [base, above]) : base;
  }

  #primes() {
    let count = 0;
    while (this.#tokens[this.#at] === "'") { this.#at++; count++; }
    return operator("′".repeat(count));
  }

  /* A group in braces, or one thing. */
  #argument() {
    this.#skipSpace();
    return this.#one();
  }

  #one() {
    const token = this.#next();
    if (token === "{") return group(this.row((end) => end === "}"));
    if (/^[0-9]/.test(token)) return leaf("mn", token);
    if (/^\p{L}$/u.test(token)) return leaf("mi", token);
    if (token === "-") return operator("−");
    if (token === "$" || token === "#" || token === "%") throw new Unknown();
    if (!token.startsWith("\\")) return operator(token);
    return this.#command(token.slice(1));
  }

  #command(name) {
    if (name in LETTERS) return leaf("mi", LETTERS[name]);
    if (name in OPERATORS) return operator(OPERATORS[name]);
    if (name in LARGE) return leaf("mo", LARGE[name]);
    if (FUNCTIONS.has(name)) return leaf("mi", name.replace(/^(lim|arg)(?=...)/, "$1 "));
    if (name in SPACES) return node("mspace", { width: `${SPACES[name]}em` });
    if (name in ACCENTS) return node("mover", { accent: "true" }, [this.#argument(), operator(ACCENTS[name], name.length > 4)]);
    if (name in ALPHABETS) return inAlphabet(this.#argument(), ALPHABETS[name]);
    if (/^[dt]?frac$/.test(name)) return node("mfrac", {}, [this.#argument(), this.#argument()]);
    if (/^[{}%$#&_]$/.test(name)) return operator(name);
    if (name === "|") return operator("‖");
    switch (name) {
      case "binom":
        return group([operator("("), node("mfrac", { linethickness: "0" }, [this.#argument(), this.#argument()]), operator(")")]);
      case "sqrt": return this.#root();
      case "text": case "textbf": case "textit": case "mbox": return leaf("mtext", this.#text());
      case "left": return this.#between();
      case "begin": return this.#environment();
      case "underbrace": return node("munder", {}, [this.#argument(), operator("⏟", true)]);
      case "overbrace": return node("mover", {}, [this.#argument(), operator("⏞", true)]);
      case "boxed": return this.#argument();
      case "displaystyle": case "limits": case "nolimits": case "big": case "Big": case "bigl": case "bigr": return node("mrow", {});
      default: throw new Unknown();
    }
  }

  #root() {
    this.#skipSpace();
    if (this.#tokens[this.#at] !== "[") return node("msqrt", {}, [this.#argument()]);
    this.#at++;
    const index = group(this.row((end) => end === "]"));
    return node("mroot", {}, [this.#argument(), index]);
  }

  /* The letters of a group, as they are. */
  #text() {
    if (this.#next() !== "{") throw new Unknown();
    let text = "", depth = 1;
    for (;;) {
      const token = this.#tokens[this.#at++];
      if (token === undefined) throw new Unknown();
      depth += token === "{" ? 1 : token === "}" ? -1 : 0;
      if (!depth) return text.replace(/^ | $/g, "\u00a0");
      text += token.replace(/^\\(?=[^a-zA-Z])/, "");
    }
  }

  #fence() {
    const token = this.#next();
    if (token === ".") return "";
    const name = token.slice(1);
    const fence = token.startsWith("\\") ? OPERATORS[name] ?? { "{": "{", "}": "}", "|": "‖" }[name] : token;
    if (fence === undefined) throw new Unknown();
    return fence;
  }

  #between() {
    const first = this.#fence();
    const content = this.row((end) => end === "\\right");
    return fenced(first, content, this.#fence());
  }

  #environment() {
    const name = this.#text();
    if (!(name in FENCES)) throw new Unknown();
    if (name === "array") this.#text();
    const rows = [[]];
    let last;
    do {
      const cell = this.row((end) => {
        last = end;
        return end === "&" || end === "\\\\" || end === "\\end";
      });
      rows.at(-1).push(node("mtd", {}, cell));
      if (last === "\\\\") rows.push([]);
    } while (last !== "\\end");
    if (this.#text() !== name) throw new Unknown();
    /* After the last line's end there may be nothing. */
    if (rows.length > 1 && rows.at(-1).every((cell) => !cell.childNodes.length)) rows.pop();
    const isAligned = /^(aligned|align|split)\*?$/.test(name);
    const table = node("mtable", { class: isAligned ? "aligned" : name === "cases" ? "cases" : "" },
      rows.map((cells) => node("mtr", {}, cells)));
    const [first, end] = FENCES[name];
    return first || end ? fenced(first, [table], end) : table;
  }
}

function fenced(first, content, last) {
  const fence = (text) => (text ? [leaf("mo", text, { fence: "true", stretchy: "true" })] : []);
  return node("mrow", {}, [...fence(first), ...content, ...fence(last)]);
}

/* The first letters of each alphabet in Unicode; the exceptions stand in a block of their own. */
const STARTS = {
  bold: [0x1d400, 0x1d7ce], italic: [0x1d434], script: [0x1d49c], fraktur: [0x1d504], "double-struck": [0x1d538, 0x1d7d8],
  "sans-serif": [0x1d5a0, 0x1d7e2], monospace: [0x1d670, 0x1d7f6],
};
const ELSEWHERE = {
  italic: { h: "ℎ" },
  script: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" },
  fraktur: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" },
  "double-struck": { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" },
};

function letterIn(letter, alphabet) {
  const found = ELSEWHERE[alphabet]?.[letter];
  if (found) return found;
  const [letters, digits] = STARTS[alphabet];
  if (/[A-Z]/.test(letter)) return String.fromCodePoint(letters + letter.charCodeAt(0) - 65);
  if (/[a-z]/.test(letter)) return String.fromCodePoint(letters + 26 + letter.charCodeAt(0) - 97);
  return /[0-9]/.test(letter) && digits ? String.fromCodePoint(digits + letter.charCodeAt(0) - 48) : letter;
}

/* An upright word is one identifier. */
function inAlphabet(element, alphabet) {
  if (alphabet === "normal") return leaf("mi", element.textContent, { mathvariant: "normal" });
  for (const text of texts(element)) text.data = Array.from(text.data, (letter) => letterIn(letter, alphabet)).join("");
  return element;
}

function texts(element) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) found.push(walker.currentNode);
  return found;
}
