// SPDX-License-Identifier: Apache-2.0

// --- messages as elements ---

const byId = (id) => document.getElementById(id);

const ROLE_NAMES = { user: 'You', assistant: 'Model', tool: 'Result of a tool' };

function makeButton(text, action, className = 'quiet') {
  const b = make('button', className, text);
  b.type = 'button';
  if (action) b.dataset.action = action;
  return b;
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without https there is no clipboard but the old way.
    const area = make('textarea', 'unseen', text);
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
    button.focus();
  }
  const before = button.textContent;
  if (before === 'Copied') return;
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = before; }, 1200);
}

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // as the model wrote it
  }
}

function thoughtsOf(m, growing, wasOpen) {
  const details = make('details', 'thoughts', make('summary', '', growing && !m.content ? 'Thinking \u2026' : 'Thoughts'),
                       make('div', '', m.reasoning));
  details.open = wasOpen === null ? growing && !m.content : wasOpen;
  return details;
}

// A call; while its result is missing, with a field for it.
function callCard(call, index, open) {
  const card = make('div', 'call', make('h4', '', call.name || '\u2026'), make('pre', '', prettyJson(call.arguments)));
  if (open) {
    const area = make('textarea');
    area.rows = 2;
    area.dataset.result = String(index);
    card.append(make('label', '', 'Result', area));
  }
  return card;
}

function errorBox(error) {
  return make('div', 'error', make('strong', '', error.title), error.text);
}

// Which of several answers to a question it is, with buttons to those before and behind it.
function placeOf(m) {
  const before = makeButton('\u2039', 'before'), behind = makeButton('\u203a', 'behind');
  before.setAttribute('aria-label', 'The answer before');
  behind.setAttribute('aria-label', 'The next answer');
  before.disabled = !m.place;
  behind.disabled = m.place === m.others.length;
  return make('span', 'others', before, (m.place || 0) + 1 + ' of ' + (m.others.length + 1), behind);
}

function actionsOf(m, last, growing) {
  const row = make('div', 'actions');
  if (growing) return row;
  if (m.content) row.append(makeButton('Copy', 'copy'));
  if (m.role === 'user') row.append(makeButton('Edit', 'edit'));
  if (m.role === 'assistant') row.append(makeButton('Regenerate', 'regenerate'));
  if (m.others && m.others.length > 0) row.append(placeOf(m));
  if (m.facts) {
    const facts = row.appendChild(make('span', 'facts', m.facts));
    facts.title = 'Tokens of the answer, how many came a second, the time to the first; tokens of the prompt, and how many of them the prefix cache had';
  }
  return row;
}

// Fills the element of a message. growing: the answer is coming in; last: nothing is behind it.
function fillMessage(element, m, last, growing) {
  const old = element.querySelector('.thoughts');
  const touched = old && old.dataset.touched ? old.open : null;
  const parts = [make('h3', '', m.role === 'tool' && m.name ? 'Result of ' + m.name : ROLE_NAMES[m.role])];
  if (m.reasoning) {
    const thoughts = thoughtsOf(m, growing, touched);
    if (touched !== null) thoughts.dataset.touched = '1';
    thoughts.firstChild.addEventListener('click', () => { thoughts.dataset.touched = '1'; });
    parts.push(thoughts);
  }
  const body = make('div', m.role === 'assistant' ? 'body text' : 'body');
  if (m.role === 'assistant') body.append(renderMarkdown(m.content));
  else body.append(m.content);
  if (growing) {
    const end = body.lastElementChild;
    (end && ['P', 'H1', 'H2', 'H3', 'H4'].includes(end.nodeName) ? end : body).append(make('span', 'caret'));
  }
  parts.push(body);
  (m.calls || []).forEach((call, i) => parts.push(callCard(call, i, last && !growing)));
  if (m.calls && m.calls.length > 0 && last && !growing) parts.push(make('div', 'row', makeButton('Send results', 'results', 'main')));
  if (m.error) parts.push(errorBox(m.error));
  parts.push(actionsOf(m, last, growing));
  element.className = 'message ' + m.role;
  element.replaceChildren(...parts);
}

function welcome() {
  const box = make('div', 'welcome', make('h2', '', 'What would you like to know?'),
                   make('p', '', 'Your conversations stay in this browser.'), make('div', 'row'));
  for (const text of ['Hello! Who are you?', 'What is minisgl?', 'What is 27 + 58?']) {
    const b = makeButton(text, '', '');
    b.dataset.ask = text;
    box.lastChild.append(b);
  }
  return box;
}

function showChat(chat, growing) {
  const all = byId('messages');
  all.replaceChildren();
  if (chat.messages.length === 0) all.append(welcome());
  chat.messages.forEach((m, i) => {
    const element = make('article');
    element.dataset.index = String(i);
    fillMessage(element, m, i === chat.messages.length - 1, growing === m);
    all.append(element);
  });
}

function titleOf(chat) {
  const first = chat.messages.find((m) => m.role === 'user');
  return first ? first.content.trim().replace(/\s+/g, ' ').slice(0, 60) : 'New chat';
}

function showChatList(chats, now) {
  byId('chat-list').replaceChildren(...chats.filter((c) => c.messages.length > 0 || c === now).map((chat) => {
    const open = makeButton(titleOf(chat), '', 'open'), remove = makeButton('\u00d7', '', 'delete');
    open.dataset.open = remove.dataset.remove = chat.id;
    if (chat === now) open.setAttribute('aria-current', 'true');
    remove.setAttribute('aria-label', 'Delete: ' + titleOf(chat));
    return make('li', chat === now ? 'now' : '', open, remove);
  }));
}

// Puts a field for its text in place of a message; done(text) or done(null).
function editMessage(element, text, done) {
  const area = make('textarea', '', ''), send = makeButton('Send', '', 'main'), cancel = makeButton('Cancel', '', '');
  area.value = text;
  area.rows = Math.min(12, text.split('\n').length + 1);
  area.setAttribute('aria-label', 'Edit the message');
  send.addEventListener('click', () => done(area.value));
  cancel.addEventListener('click', () => done(null));
  area.addEventListener('keydown', (e) => {
    if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      done(area.value);
    } else if (e.key === 'Escape') {
      e.stopPropagation();
      done(null);
    }
  });
  element.querySelector('.body').replaceWith(make('div', 'edit', area, make('div', 'row end', send, cancel)));
  element.querySelector('.actions').replaceChildren();
  area.focus();
}

// --- what a screen reader says of a stream: whole sentences, not every token ---

const speaker = {
  said: 0,
  at: 0,
  begin() {
    this.said = 0;
    this.at = 0;
    byId('spoken').textContent = 'The model answers.';
  },
  news(text) {
    const now = performance.now(), end = text.lastIndexOf('. ') + 1 || text.lastIndexOf('\n');
    if (now - this.at < 2500 || end <= this.said) return;
    byId('spoken').textContent = text.slice(this.said, end);
    this.said = end;
    this.at = now;
  },
  end(text, how) {
    byId('spoken').textContent = text.slice(this.said) + ' ' + how;
  },
};
