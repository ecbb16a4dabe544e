/* Colours in code: what nearly all languages share, which are comments, strings, numbers and keywords. */

import { el } from "../dom.js";

const HASH = new Set("bash cmake conf dockerfile elixir julia make makefile nim perl php python py r rb ruby sh shell toml yaml yml zsh".split(" "));
const DASHES = new Set("ada elm haskell hs lua sql".split(" "));
const PLAIN = new Set(["", "text", "txt", "plain", "plaintext", "markdown", "md", "output", "console"]);
const KEYWORDS = new Set(`
  abstract and as assert async await begin break case catch class const continue def default defer del delete do done echo elif
  else elseif end enum except export extends extern false fi final finally fn for foreach from func function global go goto if impl
  implements import in include instanceof interface is lambda let local loop match mod module mut namespace new nil none None not
  null of operator or override package pass private protected pub public raise readonly require return self select static struct
  super switch then this throw throws trait true True False try type typedef typeof undefined union unless unsafe until use using
  var virtual void volatile when where while with yield int float double char bool boolean string str byte long short unsigned
  SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE JOIN LEFT RIGHT INNER ON GROUP BY ORDER HAVING LIMIT AS AND
  OR NOT NULL DISTINCT
`.trim().split(/\s+/));

const STRINGS = '"""[^]*?(?:"""|$)|"(?:\\\\.|[^"\\\\\\n])*"?|\'(?:\\\\.|[^\'\\\\\\n])*\'?|`(?:\\\\[^]|[^`\\\\])*`?';
const REST = `(?<string>${STRINGS})|(?<number>\\b\\d[\\w.]*)|(?<word>[A-Za-z_$][\\w$]*)`;
const token = (comment) => new RegExp(`(?<comment>${comment})|${REST}`, "g");
const BY_HASH = token("#[^\\n]*"), BY_DASHES = token("--[^\\n]*"), BY_SLASHES = token("//[^\\n]*|/\\*[^]*?(?:\\*/|$)");

/** Colours a `code` element whose text is whole. */
export function colourCode(code, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name)) return;
  const text = code.textContent, nodes = [];
  let end = 0;
  for (const { 0: found, index, groups } of text.matchAll(HASH.has(name) ? BY_HASH : DASHES.has(name) ? BY_DASHES : BY_SLASHES)) {
    const kind = groups.word ? (KEYWORDS.has(found) ? "keyword" : null) : Object.keys(groups).find((each) => groups[each] !== undefined);
    if (!kind) continue;
    nodes.push(text.slice(end, index), el("span", { class: kind }, found));
    end = index + found.length;
  }
  code.replaceChildren(...nodes, text.slice(end));
}
