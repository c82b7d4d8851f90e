// SPDX-License-Identifier: Apache-2.0
'use strict';

// --- markdown: text of a model as elements ---
//
// Nothing is ever parsed as HTML: elements are made one by one, and what a model or a user wrote
// gets into the page as text nodes only. A link is one if its address is http, https or mailto; a
// picture is a link, since showing it would tell its server who reads.

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function safeAddress(text) {
  if (!/^(https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    const url = new URL(text);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function makeLink(address) {
  const a = make('a');
  a.href = address;
  a.target = '_blank';
  a.rel = 'noopener noreferrer';
  return a;
}

const INLINE_DEPTH = 8; // of emphasis in links in emphasis ...
const INLINE_REACH = 4000; // characters that the end of a span is looked for in

// [text](address "title") at i: its parts, or null.
function linkAt(s, i) {
  const pattern = /\[((?:[^[\]\\]|\\.|\[[^[\]]*\]){0,1000})\]\(\s*<?([^\s<>()]{0,2000}(?:\([^\s()]{0,500}\)[^\s<>()]{0,500})?)>?(?:\s+"[^"]{0,500}")?\s*\)/y;
  pattern.lastIndex = i;
  const m = pattern.exec(s);
  return m && { text: m[1], address: m[2], end: pattern.lastIndex };
}

// Where the span that `mark` opens just before `from` ends, or -1.
function closeOf(s, mark, from) {
  const until = Math.min(s.length, from + INLINE_REACH);
  for (let at = s.indexOf(mark, from); at >= 0 && at < until; at = s.indexOf(mark, at + 1)) {
    const before = s[at - 1], after = s[at + mark.length];
    if (at === from || /\s/.test(before)) continue;
    if (mark.length === 1 && (after === mark || before === mark)) {
      while (s[at + 1] === mark) at++;
      continue;
    }
    if (mark[0] === '_' && after && /[\p{L}\p{N}]/u.test(after)) continue;
    return at;
  }
  return -1;
}

const EMPHASIS = { '*': ['em'], '_': ['em'], '**': ['strong'], '__': ['strong'], '***': ['strong', 'em'],
                   '___': ['strong', 'em'], '~~': ['del'] };

// The emphasis that begins at i: appended; where it ends, or 0.
function emphasisAt(parent, s, i, depth) {
  const c = s[i];
  let n = 1;
  while (s[i + n] === c && n < 4) n++;
  const mark = c.repeat(n), names = EMPHASIS[mark], next = s[i + n];
  if (!names || !next || /\s/.test(next) || depth >= INLINE_DEPTH) return 0;
  if (c === '_' && i > 0 && /[\p{L}\p{N}]/u.test(s[i - 1])) return 0;
  const end = closeOf(s, mark, i + n);
  if (end < 0) return 0;
  let inner = parent;
  for (const name of names) inner = inner.appendChild(make(name));
  inlineInto(inner, s.slice(i + n, end), depth + 1);
  return end + n;
}

function codeAt(parent, s, i) {
  const ticks = /`+/y;
  ticks.lastIndex = i;
  const mark = ticks.exec(s)[0];
  const close = s.slice(i + mark.length, i + mark.length + INLINE_REACH)
    .match(new RegExp('(?<!`)' + mark + '(?!`)'));
  if (!close) return 0;
  const text = s.slice(i + mark.length, i + mark.length + close.index);
  parent.append(make('code', '', text.replace(/^ (.*) $/s, '$1')));
  return i + mark.length + close.index + mark.length;
}

function anchorAt(parent, s, i, depth) {
  const picture = s[i] === '!';
  const link = s[picture ? i + 1 : i] === '[' ? linkAt(s, picture ? i + 1 : i) : null;
  const address = link && safeAddress(link.address);
  if (!address || depth >= INLINE_DEPTH) return 0;
  const a = makeLink(address);
  if (picture) a.append(link.text || link.address);
  else inlineInto(a, link.text, INLINE_DEPTH - 1); // no link in a link
  parent.append(a);
  return link.end;
}

function bareAddressAt(parent, s, i, depth) {
  const pattern = s[i] === '<' ? /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/yi : /https?:\/\/[^\s<>"'`*]{1,2000}/yi;
  if (depth >= INLINE_DEPTH - 1 || (s[i] !== '<' && i > 0 && /[\p{L}\p{N}]/u.test(s[i - 1]))) return 0;
  pattern.lastIndex = i;
  const m = pattern.exec(s);
  if (!m) return 0;
  const text = m[1] || m[0].replace(/[.,:;!?)\]]+$/, '');
  const address = safeAddress(text);
  if (!address) return 0;
  const a = makeLink(address);
  a.append(text);
  parent.append(a);
  return m[1] ? pattern.lastIndex : i + text.length;
}

function inlineInto(parent, s, depth) {
  let plain = '';
  for (let i = 0; i < s.length;) {
    const c = s[i], holder = document.createDocumentFragment();
    let end = 0;
    if (c === '\\' && i + 1 < s.length && /[!-/:-@[-`{-~]/.test(s[i + 1])) {
      plain += s[i + 1];
      i += 2;
      continue;
    }
    if (c === '`') end = codeAt(holder, s, i);
    else if (c === '*' || c === '_' || c === '~') end = emphasisAt(holder, s, i, depth);
    else if (c === '[' || c === '!') end = anchorAt(holder, s, i, depth);
    else if (c === '<' || c === 'h' || c === 'H') end = bareAddressAt(holder, s, i, depth);
    else if (c === '\n') {
      holder.append(make('br'));
      end = i + 1;
    }
    if (end > 0) {
      parent.append(plain, holder);
      plain = '';
      i = end;
    } else {
      // A run of marks that opens nothing is text as a whole.
      do plain += s[i++]; while (i < s.length && s[i] === c && '*_~`'.includes(c));
    }
  }
  parent.append(plain);
}

// --- blocks ---

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +(.*)|)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*))?$/;
const DASHES = /^ *\|? *:?-+:? *(\| *:?-+:? *)*\|? *$/;
const BLOCK_DEPTH = 12;

function codeBlock(lines, language) {
  const text = lines.join('\n');
  const copy = make('button', 'quiet', 'Copy');
  copy.type = 'button';
  copy.dataset.copy = 'code';
  const pre = make('pre', '', make('code', '', text));
  pre.tabIndex = 0;
  return make('div', 'code', make('div', 'bar', make('span', '', language || 'text'), copy), pre);
}

function cellsOf(line) {
  const text = line.trim().replace(/^\|/, '').replace(/([^\\]|^)\|$/, '$1');
  const cells = [''];
  for (let i = 0, code = false; i < text.length; i++) {
    if (text[i] === '`') code = !code;
    if (text[i] === '\\' && text[i + 1] === '|') cells[cells.length - 1] += text[++i];
    else if (text[i] === '|' && !code) cells.push('');
    else cells[cells.length - 1] += text[i];
  }
  return cells.map((cell) => cell.trim());
}

function isTable(lines, i) {
  return i + 1 < lines.length && lines[i].includes('|') && lines[i + 1].includes('-') && DASHES.test(lines[i + 1]) &&
    cellsOf(lines[i]).length === cellsOf(lines[i + 1]).length;
}

function tableAt(parent, lines, i) {
  const sides = cellsOf(lines[i + 1]).map((c) => (/^:.*:$/.test(c) ? 'center' : /:$/.test(c) ? 'right' : ''));
  const rowOf = (name, line) => {
    const cells = cellsOf(line), row = make('tr');
    sides.forEach((side, k) => inlineInto(row.appendChild(make(name, side)), cells[k] || '', 0));
    return row;
  };
  const body = make('tbody'), head = make('thead', '', rowOf('th', lines[i]));
  for (i += 2; i < lines.length && lines[i].includes('|'); i++) body.append(rowOf('td', lines[i]));
  const box = make('div', 'scroll', make('table', '', head, body));
  box.tabIndex = 0;
  parent.append(box);
  return i;
}

// The list that begins at line i. An item's lines are those indented behind its mark.
function listAt(parent, lines, i, depth) {
  const first = lines[i].match(ITEM), ordered = /\d/.test(first[2]), list = make(ordered ? 'ol' : 'ul');
  if (ordered && parseInt(first[2], 10) !== 1) list.start = parseInt(first[2], 10);
  for (let m; i < lines.length && (m = lines[i].match(ITEM)) && m[1].length < first[1].length + 2;) {
    if (/\d/.test(m[2]) !== ordered || RULE.test(lines[i])) break;
    const inner = [m[4] || ''], indent = m[1].length + 2;
    for (i++; i < lines.length; i++) {
      const blank = lines[i].trim() === '', deeper = lines[i].search(/\S/) >= indent;
      if (blank && !(i + 1 < lines.length && lines[i + 1].search(/\S/) >= indent)) break;
      if (!blank && !deeper && (startsBlock(lines, i) || inner[inner.length - 1] === '')) break;
      inner.push(deeper ? lines[i].slice(Math.min(lines[i].search(/\S/), m[0].length - (m[4] || '').length)) : lines[i].trim());
    }
    // Blank lines between items do not end the list.
    let next = i;
    while (next < lines.length && lines[next].trim() === '') next++;
    if (next < lines.length && next > i && ITEM.test(lines[next])) i = next;
    const item = list.appendChild(make('li'));
    blocksInto(item, inner, depth + 1);
    // A tight item's only paragraph is its text.
    if (item.firstChild && item.firstChild.nodeName === 'P') item.firstChild.replaceWith(...item.firstChild.childNodes);
  }
  parent.append(list);
  return i;
}

function startsBlock(lines, i) {
  const line = lines[i];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || /^ {0,3}>/.test(line) ||
    isTable(lines, i);
}

function fenceAt(parent, lines, i) {
  const m = lines[i].match(FENCE), body = [];
  const close = new RegExp('^ {0,3}' + m[1][0] + '{' + m[1].length + ',} *$');
  for (i++; i < lines.length && !close.test(lines[i]); i++) body.push(lines[i]);
  parent.append(codeBlock(body, m[2]));
  return i + 1;
}

function blocksInto(parent, lines, depth) {
  for (let i = 0; i < lines.length;) {
    const line = lines[i], heading = line.match(HEADING);
    if (line.trim() === '') {
      i++;
    } else if (FENCE.test(line)) {
      i = fenceAt(parent, lines, i);
    } else if (heading) {
      inlineInto(parent.appendChild(make('h' + heading[1].length)), (heading[2] || '').trim().replace(/(^| )#+$/, ''), 0);
      i++;
    } else if (RULE.test(line)) {
      parent.append(make('hr'));
      i++;
    } else if (depth < BLOCK_DEPTH && /^ {0,3}>/.test(line)) {
      const inner = [];
      for (; i < lines.length && /^ {0,3}>/.test(lines[i]); i++) inner.push(lines[i].replace(/^ {0,3}> ?/, ''));
      blocksInto(parent.appendChild(make('blockquote')), inner, depth + 1);
    } else if (isTable(lines, i)) {
      i = tableAt(parent, lines, i);
    } else if (depth < BLOCK_DEPTH && ITEM.test(line)) {
      i = listAt(parent, lines, i, depth);
    } else {
      const text = [line.trim()];
      for (i++; i < lines.length && lines[i].trim() !== '' && !startsBlock(lines, i); i++) text.push(lines[i].trim());
      inlineInto(parent.appendChild(make('p')), text.join('\n'), 0);
    }
  }
}

// The whole of a text, as a fragment.
function renderMarkdown(text) {
  const all = document.createDocumentFragment();
  blocksInto(all, text.replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n'), 0);
  return all;
}
