// SPDX-License-Identifier: Apache-2.0

// --- the page itself ---

store.load();

const page = { chat: store.now, growing: null, abort: null, frame: 0, showAfter: 0, asked: false };
// What the server takes: the least, the most, and 1 for whole numbers.
const FIELDS = [['temperature', '0', '', 'any'], ['top_p', '0.0001', '1', 'any'], ['top_k', '-1', '', '1'], ['min_p', '0', '1', 'any'],
                ['max_tokens', '1', '', '1'], ['seed', '0', '', '1'], ['repetition_penalty', '0.01', '100', 'any'],
                ['presence_penalty', '-2', '2', 'any'], ['frequency_penalty', '-2', '2', 'any']];
const EXAMPLE_TOOL = [{ type: 'function', function: { name: 'get_weather', description: 'The weather of a city.',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } } }];

function refresh() {
  store.now = page.chat;
  showChat(page.chat, page.growing);
  showChatList(store.chats, page.chat);
  byId('send').hidden = page.growing !== null;
  byId('stop').hidden = page.growing === null;
  document.title = page.chat.messages.length > 0 ? titleOf(page.chat) + ' \u2013 minisgl' : 'minisgl';
}

const nearEnd = () => {
  const s = byId('scroller');
  return s.scrollHeight - s.scrollTop - s.clientHeight < 60;
};
const toEnd = () => { byId('scroller').scrollTop = byId('scroller').scrollHeight; };

// --- answers ---

// The last message has grown: shown at most once a frame, and for long ones for a quarter of the time.
function showGrowth() {
  if (page.frame || performance.now() < page.showAfter) return;
  page.frame = requestAnimationFrame(() => {
    const begun = performance.now();
    page.frame = 0;
    const m = page.growing, element = byId('messages').lastElementChild;
    if (!m || !page.chat.messages.includes(m)) return;
    const stay = nearEnd();
    fillMessage(element, m, true, true);
    speaker.news(m.content);
    if (stay) toEnd();
    page.showAfter = performance.now() + 3 * (performance.now() - begun);
  });
}

// others: the answers that there were before, each with what came behind it.
async function generate(others = []) {
  if (page.growing) return;
  const chat = page.chat, m = { role: 'assistant', content: '' }, abort = new AbortController();
  let how = 'The answer is complete.', body;
  try {
    body = requestOf(byId('model').value, store.settings, chat.messages);
  } catch (e) {
    m.error = { title: 'The tools in the settings are not JSON', text: e.message };
  }
  if (others.length > 0) Object.assign(m, { others, place: others.length });
  chat.messages.push(m);
  store.touch(chat);
  if (body) Object.assign(page, { growing: m, abort });
  refresh();
  toEnd();
  if (!body) return;
  speaker.begin();
  try {
    await streamChat(body, m, abort.signal, showGrowth);
  } catch (e) {
    if (e.name === 'AbortError') m.facts = how = 'stopped';
    else m.error = { title: e.title || 'Error', text: e.message };
    if (m.error) how = m.error.title + ': ' + m.error.text;
    if (e.status === 401) needKey(e.message, true);
  }
  const stay = nearEnd();
  Object.assign(page, { growing: null, abort: null });
  store.save();
  refresh();
  if (stay) toEnd();
  speaker.end(m.content, how);
}

function stop() {
  if (page.abort) page.abort.abort();
}

function send(text) {
  if (page.growing || text.trim() === '') return;
  page.chat.messages.push({ role: 'user', content: text });
  byId('ask').value = '';
  fitAsk();
  generate();
}

function regenerate(index) {
  if (page.growing) return;
  const old = page.chat.messages.splice(index), others = othersOf(old[0]);
  others.splice(old[0].place || 0, 0, old);
  generate(others);
  byId('ask').focus();
}

// Takes the other answers from one, which is no longer the one that is shown.
function othersOf(m) {
  const others = m.others || [];
  delete m.others;
  return others;
}

// Puts the answer before or behind this one in its place, with what came behind it then.
function swap(index, step) {
  const messages = page.chat.messages, to = (messages[index].place || 0) + step;
  if (page.growing || to < 0 || to > (messages[index].others || []).length) return;
  const now = messages.splice(index), others = othersOf(now[0]);
  others.splice(now[0].place || 0, 0, now);
  const [then] = others.splice(to, 1);
  Object.assign(then[0], { others, place: to });
  messages.push(...then);
  store.touch(page.chat);
  refresh();
  byId('messages').children[index].scrollIntoView({ block: 'nearest' });
}

function edit(element, index) {
  if (page.growing) return;
  editMessage(element, page.chat.messages[index].content, (text) => {
    if (text === null || text.trim() === '' || page.growing) {
      refresh();
      byId('ask').focus();
      return;
    }
    page.chat.messages.length = index;
    send(text);
    byId('ask').focus();
  });
}

// Results of the last answer's calls, as typed in; empty ones are sent, too: a tool may return nothing.
function sendResults(element, m) {
  if (page.growing) return;
  const results = [...element.querySelectorAll('textarea[data-result]')].map((area) => area.value);
  m.calls.forEach((call, i) => {
    page.chat.messages.push({ role: 'tool', tool_call_id: call.id, name: call.name, content: results[i] || '' });
  });
  generate();
  byId('ask').focus();
}

byId('messages').addEventListener('click', (e) => {
  const b = e.target.closest('button');
  if (!b) return;
  if (b.dataset.copy) copyText(b.closest('.code').querySelector('code').textContent, b);
  if (b.dataset.ask) send(b.dataset.ask);
  const element = b.closest('.message'), index = element ? Number(element.dataset.index) : -1, m = page.chat.messages[index];
  if (!m) return;
  if (b.dataset.action === 'copy') copyText(m.content, b);
  if (b.dataset.action === 'edit') edit(element, index);
  if (b.dataset.action === 'regenerate') regenerate(index);
  if (b.dataset.action === 'before') swap(index, -1);
  if (b.dataset.action === 'behind') swap(index, 1);
  if (b.dataset.action === 'results') sendResults(element, m);
});

// --- the composer ---

function fitAsk() {
  const ask = byId('ask');
  ask.style.height = 'auto';
  ask.style.height = ask.scrollHeight + 2 + 'px';
}

byId('ask').addEventListener('input', fitAsk);
byId('ask').addEventListener('keydown', (e) => {
  if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return;
  e.preventDefault();
  send(byId('ask').value);
});
byId('composer').addEventListener('submit', (e) => {
  e.preventDefault();
  send(byId('ask').value);
});
byId('stop').addEventListener('click', () => {
  stop();
  byId('ask').focus();
});
document.addEventListener('keydown', (e) => {
  if (e.key !== 'Escape' || document.querySelector('dialog[open]')) return;
  stop();
  if (document.body.classList.contains('with-chats')) toggleChats(false);
});

// --- conversations ---

function openChat(chat) {
  stop();
  page.chat = chat;
  toggleChats(false);
  refresh();
  toEnd();
}

function toggleChats(on) {
  document.body.classList.toggle('with-chats', on);
  byId('show-chats').setAttribute('aria-expanded', String(on));
}

byId('show-chats').addEventListener('click', () => {
  const on = !document.body.classList.contains('with-chats');
  toggleChats(on);
  if (on) byId('new-chat').focus();
});
byId('new-chat').addEventListener('click', () => {
  openChat(store.begin());
  byId('ask').focus();
});
byId('chat-list').addEventListener('click', (e) => {
  const b = e.target.closest('button');
  const chat = b && store.chats.find((c) => c.id === (b.dataset.open || b.dataset.remove));
  if (!chat) return;
  if (b.dataset.open) {
    openChat(chat);
  } else if (confirm('Delete "' + titleOf(chat) + '"?')) {
    store.remove(chat);
    if (chat === page.chat) openChat(store.begin());
    else refresh();
    byId('new-chat').focus();
  }
});
byId('delete-all').addEventListener('click', () => {
  if (!confirm('Delete all conversations of this browser?')) return;
  stop();
  store.chats = [];
  store.save();
  openChat(store.begin());
});
byId('export').addEventListener('click', () => {
  const chats = store.chats.filter((chat) => chat.messages.length > 0);
  const a = make('a');
  a.href = URL.createObjectURL(new Blob([JSON.stringify(chats, null, 2)], { type: 'application/json' }));
  a.download = 'minisgl-conversations.json';
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
});

// --- settings and the key ---

function buildSettings() {
  byId('sampling').replaceChildren(...FIELDS.map(([name, min, max, step]) => {
    const input = make('input');
    Object.assign(input, { name, type: 'number', min, max, step, placeholder: 'default' });
    input.addEventListener('input', () => checkField(input));
    return make('label', '', name.replace(/_/g, ' '), input, make('small', 'bad', ''));
  }), (() => {
    const area = make('textarea');
    Object.assign(area, { name: 'stop', rows: 1, placeholder: 'one a line' });
    return make('label', '', 'stop', area);
  })());
}

// Says below a number what is wrong with it; false: something is.
function checkField(input) {
  const v = input.validity, [min, max] = [input.min, input.max];
  const range = max !== '' ? min + ' to ' + max : 'from ' + min;
  const what = v.badInput ? 'no number' : v.rangeUnderflow || v.rangeOverflow ? range : v.stepMismatch ? 'whole numbers' : '';
  input.nextElementSibling.textContent = what && 'allowed: ' + (what === 'no number' ? 'a number, ' + range : what);
  input.classList.toggle('invalid', what !== '');
  input.setAttribute('aria-invalid', String(what !== ''));
  return what === '';
}

const numberFields = () => NUMBERS.map((name) => byId('settings-form').elements[name]);

const settingNames = ['system', 'stop', 'tools', 'tool_choice', 'thinking', ...NUMBERS];

byId('show-settings').addEventListener('click', () => {
  const form = byId('settings-form');
  for (const name of settingNames) form.elements[name].value = store.settings[name] || '';
  form.elements.key.value = store.key;
  byId('tools-error').textContent = '';
  numberFields().forEach(checkField);
  byId('settings').showModal();
});
byId('settings-cancel').addEventListener('click', () => byId('settings').close());
byId('tools-example').addEventListener('click', () => {
  byId('settings-form').elements.tools.value = JSON.stringify(EXAMPLE_TOOL, null, 2);
});
byId('settings-form').addEventListener('submit', (e) => {
  e.preventDefault();
  const form = e.target, settings = {}, wrong = numberFields().filter((input) => !checkField(input));
  if (wrong.length > 0) {
    wrong[0].focus();
    return;
  }
  for (const name of settingNames) if (form.elements[name].value.trim() !== '') settings[name] = form.elements[name].value;
  try {
    if (settings.tools && !Array.isArray(JSON.parse(settings.tools))) throw new Error('they must be an array');
  } catch (problem) {
    byId('tools-error').textContent = 'Tools: ' + problem.message;
    form.elements.tools.focus();
    return;
  }
  const changed = store.key !== form.elements.key.value.trim();
  store.key = form.elements.key.value.trim();
  store.saveSettings(settings);
  byId('settings').close();
  if (changed) connect();
});

// Asked for once, however many requests are refused; who cancels is asked again by the next message.
function needKey(text, again = false) {
  if ((page.asked && !again) || document.querySelector('dialog[open]')) return;
  page.asked = true;
  byId('key-text').textContent = text;
  byId('key').value = '';
  byId('key-dialog').showModal();
}

byId('key-form').addEventListener('submit', (e) => {
  e.preventDefault();
  store.key = byId('key').value.trim();
  byId('key-dialog').close();
  connect();
  byId('ask').focus();
});
byId('key-cancel').addEventListener('click', () => byId('key-dialog').close());

// --- the model, the theme, the panel ---

async function connect() {
  const select = byId('model'), before = select.value || store.settings.model || '';
  page.asked = panel.locked = false;
  try {
    const models = (await (await ask('v1/models')).json()).data.map((model) => model.id);
    select.replaceChildren(...models.map((id) => {
      const option = make('option', '', id);
      option.value = id;
      return option;
    }));
    if (models.includes(before)) select.value = before;
  } catch (e) {
    const option = make('option', '', e.status === 401 ? 'needs a key' : 'no model');
    option.value = '';
    select.replaceChildren(option);
    if (e.status === 401) needKey(e.message);
  }
  panel.start();
}

const THEMES = ['auto', 'light', 'dark'];

function setTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId('theme-name').textContent = theme;
  byId('theme').setAttribute('aria-label', 'Theme: ' + theme);
  byId('theme').title = 'Colours: as the system has them (auto), light or dark';
  page.theme = theme;
}

byId('theme').addEventListener('click', () => {
  setTheme(THEMES[(THEMES.indexOf(page.theme) + 1) % THEMES.length]);
  writeStored('minisgl.theme', page.theme);
});

function toggleLive(on) {
  document.body.classList.toggle('no-live', !on);
  byId('show-live').setAttribute('aria-expanded', String(on));
  panel.start();
}

byId('show-live').addEventListener('click', () => toggleLive(document.body.classList.contains('no-live')));
window.addEventListener('storage', (e) => {
  if (e.key !== 'minisgl.chats') return;
  store.merge(page.chat);
  showChatList(store.chats, page.chat);
});
document.addEventListener('visibilitychange', () => panel.start());

setTheme(THEMES.includes(readStored('minisgl.theme', 'auto')) ? readStored('minisgl.theme', 'auto') : 'auto');
buildSettings();
toggleLive(window.innerWidth > 1120);
refresh();
connect();
byId('ask').focus();
