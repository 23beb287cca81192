// Markdown of model answers as DOM nodes. No HTML string is made anywhere: whatever a model writes stays text.

import { button, copy, el } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_DEPTH = 8;

/** Keeps a node in step with a text that grows: only blocks that changed are made anew, so that a selection above stays. */
export class MarkdownView {
  constructor(node) {
    this.node = node;
    this.sources = [];
  }

  update(text) {
    const blocks = split(text);
    let same = 0;
    while (same < blocks.length && same < this.sources.length && blocks[same] === this.sources[same]) same += 1;
    while (this.node.childNodes.length > same) this.node.lastChild.remove();
    for (const block of blocks.slice(same)) this.node.append(render(block, 0));
    this.sources = blocks;
  }
}

/** Blocks of a text, each as its own source. Fences keep their blank lines, lists their continuation. */
function split(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const flush = () => {
    if (lines.length) blocks.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.replaceAll("\r", "").split("\n")) {
    if (fence) {
      lines.push(line);
      if (line.trim().startsWith(fence) && !line.trim().slice(fence.length).trim().replaceAll(fence[0], "")) {
        fence = null;
        flush();
      }
      continue;
    }
    const opens = FENCE.exec(line);
    if (opens) {
      flush();
      fence = opens[1];
      lines.push(line);
    } else if (!line.trim()) {
      flush();
    } else if (HEADING.test(line) || RULE.test(line)) {
      flush();
      blocks.push(line);
    } else {
      if (lines.length && kind(line) !== kind(lines[0]) && kind(lines[0]) !== "item") flush();
      lines.push(line);
    }
  }
  flush();
  return joinLists(blocks);
}

const kind = (line) => (ITEM.test(line) ? "item" : QUOTE.test(line) ? "quote" : line.includes("|") ? "table" : "text");

/** Items with blank lines between them are one list, so that numbers go on. */
function joinLists(blocks) {
  const joined = [];
  for (const block of blocks) {
    const last = joined.at(-1);
    const goesOn = ITEM.test(block.split("\n")[0]) || /^ {2,}\S/.test(block);
    if (last !== undefined && goesOn && ITEM.test(last.split("\n")[0])) joined[joined.length - 1] = `${last}\n${block}`;
    else joined.push(block);
  }
  return joined;
}

function render(block, depth) {
  const lines = block.split("\n");
  const first = lines[0];
  const fence = FENCE.exec(first);
  if (fence) return code(lines.slice(1, closed(lines, fence[1]) ? -1 : undefined).join("\n"), fence[2]);
  const heading = HEADING.exec(first);
  if (heading && lines.length === 1) return el(`h${Math.min(heading[1].length + 2, 5)}`, {}, ...inline(heading[2]));
  if (RULE.test(first) && lines.length === 1) return el("hr");
  if (depth < MAX_DEPTH && ITEM.test(first)) return list(lines, depth);
  if (depth < MAX_DEPTH && lines.every((line) => QUOTE.test(line))) {
    const quote = el("blockquote");
    for (const inner of split(lines.map((line) => QUOTE.exec(line)[1]).join("\n"))) quote.append(render(inner, depth + 1));
    return quote;
  }
  if (lines.length > 1 && first.includes("|") && TABLE_RULE.test(lines[1]) && lines[1].includes("-")) return table(lines);
  const paragraph = el("p");
  lines.forEach((line, at) => {
    if (at) paragraph.append(el("br"));
    paragraph.append(...inline(line.trim()));
  });
  return paragraph;
}

const closed = (lines, fence) => lines.length > 1 && lines.at(-1).trim().startsWith(fence) && /^[`~]+$/.test(lines.at(-1).trim());

function code(text, language) {
  const copier = button("Copy", () => copy(text, copier));
  return el("figure", {}, el("figcaption", {}, el("span", { text: language || "text" }), copier), el("pre", { tabindex: "0" }, el("code", { text })));
}

function list(lines, depth) {
  const start = ITEM.exec(lines[0]);
  const ordered = /\d/.test(start[2]);
  const root = el(ordered ? "ol" : "ul", ordered && start[2] !== "1." ? { start: parseInt(start[2], 10) } : {});
  let item = null;
  let inner = [];
  const finish = () => {
    if (!item) return;
    const [own, rest] = [inner[0], inner.slice(1)];
    item.append(...inline(own));
    if (rest.length) {
      const shift = Math.min(...rest.map((line) => /^\s*/.exec(line)[0].length));
      for (const block of split(rest.map((line) => line.slice(shift)).join("\n"))) item.append(render(block, depth + 1));
    }
  };
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= start[1].length + 1) {
      finish();
      item = el("li");
      inner = [found[3]];
      root.append(item);
    } else inner.push(line);
  }
  finish();
  return root;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, tag) => el("tr", {}, ...cells(line).map((cell) => el(tag, {}, ...inline(cell))));
  const rows = lines.slice(2).map((line) => row(line, "td"));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, row(lines[0], "th")), el("tbody", {}, ...rows)));
}

// Code first: nothing inside it means anything. Then links, bold, italics, struck out.
const INLINE = /(`+)(.+?)\1(?!`)|\[([^\]]+)\]\(([^\s()]+)(?:\s+"[^"]*")?\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])|\*\*(.+?)\*\*|(?<![\w*])\*(?!\s)(.+?)(?<!\s)\*(?!\w)|(?<!\w)_(?!\s)(.+?)(?<!\s)_(?!\w)|~~(.+?)~~/;

function inline(text, depth = 0) {
  const nodes = [];
  while (text) {
    const found = depth < MAX_DEPTH ? INLINE.exec(text) : null;
    if (!found) {
      nodes.push(text);
      break;
    }
    if (found.index) nodes.push(text.slice(0, found.index));
    nodes.push(piece(found, depth + 1));
    text = text.slice(found.index + found[0].length);
  }
  return nodes;
}

function piece(found, depth) {
  const [whole, , inCode, label, target, bare, bold, star, underscore, struck] = found;
  if (inCode !== undefined) return el("code", { text: inCode.trim() });
  if (label !== undefined) return link(target, inline(label, depth), whole);
  if (bare !== undefined) return link(bare, [bare], whole);
  if (bold !== undefined) return el("strong", {}, ...inline(bold, depth));
  if (struck !== undefined) return el("s", {}, ...inline(struck, depth));
  return el("em", {}, ...inline(star ?? underscore, depth));
}

/** Only web addresses become links; all else stays as it was written. Pictures are never loaded. */
function link(target, children, whole) {
  if (!/^https?:\/\//i.test(target) || !URL.canParse(target)) return document.createTextNode(whole);
  return el("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}
