// SPDX-License-Identifier: Apache-2.0

// --- asking the server ---

// What the server said, as it said it.
class ServerError extends Error {
  constructor(status, title, text) {
    super(text);
    this.status = status;
    this.title = title;
  }
}

// Paths are relative, so that the page also works behind a proxy that serves it below a path, with or
// without a "/" at its end.
async function ask(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (store.key) headers.Authorization = 'Bearer ' + store.key;
  let response;
  try {
    response = await fetch(location.pathname.replace(/\/?$/, '/') + path, { ...options, headers, credentials: 'same-origin', redirect: 'error' });
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    throw new ServerError(0, 'No connection', 'The server does not answer. ' + e.message);
  }
  if (response.ok) return response;
  throw errorOf(response.status, await response.text().catch(() => ''));
}

function errorOf(status, body) {
  let text = body, code = '';
  try {
    const error = JSON.parse(body).error;
    text = String(error.message);
    code = error.code || error.type || '';
  } catch { /* not in OpenAI's form: shown whole */ }
  return new ServerError(status, (status ? 'Error ' + status : 'Error') + (code ? ' (' + code + ')' : ''), text || 'The answer has no text.');
}

const NUMBERS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed', 'repetition_penalty',
                 'presence_penalty', 'frequency_penalty'];

function wireMessage(m) {
  if (m.role === 'tool') return { role: 'tool', tool_call_id: m.tool_call_id, name: m.name, content: m.content };
  const out = { role: m.role, content: m.content };
  if (m.reasoning) out.reasoning_content = m.reasoning;
  if (m.calls && m.calls.length > 0) {
    out.tool_calls = m.calls.map((c) => ({ id: c.id, type: 'function', function: { name: c.name, arguments: c.arguments } }));
  }
  return out;
}

// The body of a chat request. Settings that are empty are not sent.
function requestOf(model, settings, messages) {
  const body = { model, messages: [], stream: true, stream_options: { include_usage: true } };
  if (settings.system) body.messages.push({ role: 'system', content: settings.system });
  // What failed without a word is no turn of the conversation.
  const said = messages.filter((m) => m.role !== 'assistant' || m.content || m.reasoning || (m.calls && m.calls.length > 0));
  body.messages.push(...said.map(wireMessage));
  for (const name of NUMBERS) {
    if (settings[name] !== undefined && settings[name] !== '') body[name] = Number(settings[name]);
  }
  if (settings.stop) body.stop = settings.stop.split('\n').filter(Boolean);
  const tools = settings.tools ? JSON.parse(settings.tools) : [];
  if (tools.length > 0) {
    body.tools = tools;
    if (settings.tool_choice) body.tool_choice = settings.tool_choice;
  }
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === 'on' };
  return body;
}

// Events of a stream, one by one: each is the text behind "data: ".
async function* eventsOf(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split('\n');
      rest = done ? '' : lines.pop();
      for (const line of lines) if (line.startsWith('data:')) yield line.slice(5).trim();
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Adds a delta to the message that grows. The pieces of a call are told apart by its index.
function addDelta(m, delta) {
  if (delta.content) m.content += delta.content;
  if (delta.reasoning_content) m.reasoning = (m.reasoning || '') + delta.reasoning_content;
  for (const piece of delta.tool_calls || []) {
    m.calls = m.calls || [];
    while (m.calls.length <= Math.min(piece.index || 0, 127)) m.calls.push({ id: '', name: '', arguments: '' });
    const call = m.calls[Math.min(piece.index || 0, 127)], f = piece.function || {};
    if (piece.id) call.id = piece.id;
    if (f.name) call.name += f.name;
    if (f.arguments) call.arguments += f.arguments;
  }
}

// Lets the model answer: m grows, onNews is called for each piece. Throws what the server says.
async function streamChat(body, m, signal, onNews) {
  const begun = performance.now();
  const response = await ask('v1/chat/completions', {
    method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body), signal });
  let first = 0, finish = null, usage = null, ended = false;
  for await (const data of eventsOf(response)) {
    if (data === '[DONE]') {
      ended = true; // read on to the end: a client that leaves here would count as gone
      continue;
    }
    const event = JSON.parse(data);
    if (event.error) throw errorOf(0, data);
    usage = event.usage || usage;
    const choice = event.choices && event.choices[0];
    if (!choice) continue;
    finish = choice.finish_reason || finish;
    addDelta(m, choice.delta || {});
    if (!first && (m.content || m.reasoning || m.calls)) first = performance.now();
    onNews();
  }
  if (!ended) throw new ServerError(0, 'Cut off', 'The connection ended before the answer did.');
  m.facts = factsOf(usage, finish, begun, first, performance.now());
}

function factsOf(usage, finish, begun, first, now) {
  const facts = [];
  if (usage) {
    const n = usage.completion_tokens, cached = usage.prompt_tokens_details && usage.prompt_tokens_details.cached_tokens;
    facts.push(n + (n === 1 ? ' token' : ' tokens'));
    // What came within a few reads has no rate that means anything.
    if (n > 1 && now > first + 100) facts.push(((n - 1) / ((now - first) / 1000)).toFixed(1) + '/s');
    if (first) facts.push('first after ' + Math.round(first - begun) + ' ms');
    const details = usage.completion_tokens_details || {}, right = details.accepted_prediction_tokens || 0;
    const drafted = right + (details.rejected_prediction_tokens || 0);
    if (drafted > 0) facts.push(right + ' of ' + drafted + (drafted === 1 ? ' draft' : ' drafts') + ' right');
    facts.push('prompt ' + usage.prompt_tokens + (cached ? ' (' + cached + ' cached)' : ''));
  }
  if (finish && finish !== 'stop') facts.push(finish === 'length' ? 'cut at max_tokens' : finish.replace(/_/g, ' '));
  return facts.join(' \u00b7 ');
}
