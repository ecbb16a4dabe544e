/* Markdown within a paragraph: code, formulas, emphasis, links and line breaks, as DOM nodes. */

import { el } from "../dom.js";
import { math } from "./math.js";

/* Emphasis within emphasis, at most. */
const DEPTH = 6;
/* No lookbehind and no nested repetition: the time is at most quadratic in a text, which is short. A formula has a
   thousand letters at most, since its signs are common. */
const TOKEN = new RegExp(
  [
    "\\\\\\[(?<shown>[^]{1,1000}?)\\\\\\]|\\$\\$(?<dollars>[^]{1,1000}?)\\$\\$", // a formula on a line of its own
    "\\\\\\((?<formula>[^]{1,1000}?)\\\\\\)", // a formula in the line
    "\\$(?=[^\\s$])(?<money>[^$\\n]*?[^\\s$\\\\])\\$(?!\\w)", // the same, unless it is two prices
    "\\\\(?<escaped>[!-/:-@[-`{-~])",
    "(?<ticks>`+)(?!`)(?<code>[^]*?[^`])\\k<ticks>(?!`)",
    "(?<pair>\\*\\*|__)(?=\\S)(?<strong>[^]*?\\S)\\k<pair>",
    "~~(?=\\S)(?<struck>[^]*?\\S)~~",
    "\\*(?=[^\\s*])(?<starred>[^]*?[^\\s*])\\*(?!\\*)",
    "\\b_(?=[^\\s_])(?<lined>[^]*?[^\\s_])_\\b", // not within_a_name
    "!?\\[(?<label>[^\\[\\]]*)\\]\\(\\s*<?(?<address>[^\\s()<>]*(?:\\([^\\s()<>]*\\)[^\\s()<>]*)*)>?(?:\\s+\"[^\"]*\")?\\s*\\)",
    "<?(?<bare>https?://[^\\s<>]*[^\\s<>.,:;!?'\")\\]])>?",
    "(?<rest> {2,}|\\\\)\\n", // a line break
  ].join("|"),
  "g",
);
const SAFE = /^(https?:|mailto:)/i;

/* Letters that are read at once. */
const MOST_LETTERS = 4_000;

/** The nodes of a text. Marks do not pair over more than some thousand letters. */
export function inline(text) {
  const nodes = [];
  for (let at = 0; at < text.length; at += MOST_LETTERS) nodes.push(...read(text.slice(at, at + MOST_LETTERS), 0));
  return nodes;
}

function read(text, depth) {
  const nodes = [];
  /* Of text in a row one node is made: many are slow to take away again. */
  const add = (node) => {
    if (typeof node === "string" && typeof nodes.at(-1) === "string") nodes.push(nodes.pop() + node);
    else nodes.push(node);
  };
  let end = 0;
  for (const found of text.matchAll(TOKEN)) {
    if (found.index > end) add(text.slice(end, found.index));
    end = found.index + found[0].length;
    add(nodeOf(found, depth));
  }
  if (end < text.length) add(text.slice(end));
  return nodes;
}

function nodeOf({ 0: whole, groups }, depth) {
  const { shown, dollars, formula, money, escaped, code, strong, struck, starred, lined, label, address, bare, rest } = groups;
  const inner = (text) => (depth < DEPTH ? read(text, depth + 1) : [text]);
  const block = shown ?? dollars, tex = block ?? formula ?? money;
  if (tex !== undefined) return math(tex, { isBlock: block !== undefined }) ?? whole;
  if (escaped !== undefined) return escaped;
  if (code !== undefined) return el("code", {}, code.replaceAll("\n", " ").replace(/^ (.*\S.*) $/, "$1"));
  if (strong !== undefined) return el("strong", {}, inner(strong));
  if (struck !== undefined) return el("del", {}, inner(struck));
  if (starred !== undefined || lined !== undefined) return el("em", {}, inner(starred ?? lined));
  if (label !== undefined) return SAFE.test(address) ? link(address, label || address) : whole;
  if (bare !== undefined) return link(bare, bare);
  if (rest !== undefined) return el("br");
  return whole;
}

/* A picture of a link is never loaded: its sender would learn who reads. */
function link(address, text) {
  return el("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow", title: address }, text);
}
