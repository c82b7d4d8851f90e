// SPDX-License-Identifier: Apache-2.0

// --- what the browser keeps: conversations and settings, bounded; the key until the tab closes ---

const MAX_CHATS = 50;
const MAX_STORED = 2000000; // characters of all conversations as JSON; the oldest go first

function readStored(name, fallback) {
  try {
    const value = JSON.parse(localStorage.getItem(name));
    return value === null || typeof value !== typeof fallback ? fallback : value;
  } catch {
    return fallback;
  }
}

// A browser may keep nothing, or have no room: the page works without.
function writeStored(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

// Only what the page itself could have written: others may write to this storage as well.
function cleanMessage(m, depth = 0) {
  const text = (v) => (typeof v === 'string' ? v : '');
  if (!m || !['user', 'assistant', 'tool'].includes(m.role)) return null;
  const out = { role: m.role, content: text(m.content) };
  if (m.reasoning) out.reasoning = text(m.reasoning);
  if (m.tool_call_id) out.tool_call_id = text(m.tool_call_id);
  if (m.name) out.name = text(m.name);
  if (m.facts) out.facts = text(m.facts);
  if (m.error && typeof m.error === 'object') out.error = { title: text(m.error.title), text: text(m.error.text) };
  if (Array.isArray(m.calls)) {
    out.calls = m.calls.filter(Boolean).map((c) => ({ id: text(c.id), name: text(c.name), arguments: text(c.arguments) }));
  }
  // Other answers to the same question; below those there are no more than in a conversation.
  if (Array.isArray(m.others) && depth < 4) {
    const tails = m.others.filter(Array.isArray).map((tail) => tail.map((one) => cleanMessage(one, depth + 1)).filter(Boolean));
    out.others = tails.filter((tail) => tail.length > 0);
  }
  if (Number.isInteger(m.place)) out.place = Math.max(0, Math.min(m.place, (out.others || []).length));
  return out;
}

function cleanChat(chat) {
  if (!chat || typeof chat.id !== 'string' || !Array.isArray(chat.messages)) return null;
  return { id: chat.id, title: String(chat.title || ''), messages: chat.messages.map((m) => cleanMessage(m)).filter(Boolean) };
}

const store = {
  chats: readStored('minisgl.chats', []),
  settings: readStored('minisgl.settings', {}),

  load() {
    this.settings = Object.fromEntries(Object.entries(this.settings).filter(([, value]) => typeof value === 'string'));
    this.chats = (Array.isArray(this.chats) ? this.chats : []).map(cleanChat).filter(Boolean).slice(0, MAX_CHATS);
  },

  // The newest first. An empty conversation is not kept.
  save() {
    const kept = this.chats.filter((chat) => chat.messages.length > 0).slice(0, MAX_CHATS);
    while (kept.length > 1 && JSON.stringify(kept).length > MAX_STORED) kept.pop();
    while (kept.length > 0 && !writeStored('minisgl.chats', kept)) kept.pop();
    if (kept.length === 0) writeStored('minisgl.chats', []);
    this.chats = this.chats.filter((chat) => chat.messages.length === 0 || kept.includes(chat));
  },

  // Another tab has written: its conversations, but the one that is open here.
  merge(open) {
    const theirs = readStored('minisgl.chats', []);
    const others = (Array.isArray(theirs) ? theirs : []).map(cleanChat).filter((chat) => chat && chat.id !== open.id);
    this.chats = [open, ...others].slice(0, MAX_CHATS);
  },

  touch(chat) {
    this.chats = [chat, ...this.chats.filter((other) => other !== chat)];
    this.save();
  },

  remove(chat) {
    this.chats = this.chats.filter((other) => other !== chat);
    this.save();
  },

  begin() {
    const empty = this.chats.find((chat) => chat.messages.length === 0);
    if (empty) return empty;
    const chat = { id: Date.now().toString(36) + Math.random().toString(36).slice(2, 8), title: '', messages: [] };
    this.chats.unshift(chat);
    return chat;
  },

  saveSettings(settings) {
    this.settings = settings;
    writeStored('minisgl.settings', settings);
  },

  // The conversation that this tab had open before a reload.
  get now() {
    try {
      return this.chats.find((chat) => chat.id === sessionStorage.getItem('minisgl.chat')) || this.begin();
    } catch {
      return this.begin();
    }
  },

  set now(chat) {
    try {
      sessionStorage.setItem('minisgl.chat', chat.id);
    } catch { /* then a reload begins a new one */ }
  },

  get key() {
    try {
      return sessionStorage.getItem('minisgl.key') || '';
    } catch {
      return this.keyHere || '';
    }
  },

  set key(value) {
    this.keyHere = value;
    try {
      if (value) sessionStorage.setItem('minisgl.key', value);
      else sessionStorage.removeItem('minisgl.key');
    } catch { /* kept in keyHere */ }
  },
};
