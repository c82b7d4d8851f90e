// SPDX-License-Identifier: Apache-2.0

// --- the server, live: /metrics each second, /radix_tree every other, while somebody can see it ---

const SVG = 'http://www.w3.org/2000/svg';
const POLL_MS = 1000, POINTS = 60;

function makeSvg(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  return element;
}

// Samples of Prometheus' text format: name -> [{labels, value}].
function parseMetrics(text) {
  const all = new Map();
  for (const line of text.split('\n')) {
    const m = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!m) continue;
    const labels = {};
    for (const [, name, value] of (m[2] || '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    if (!all.has(m[1])) all.set(m[1], []);
    all.get(m[1]).push({ labels, value: Number(m[3]) });
  }
  return all;
}

const sumOf = (metrics, name) => (metrics.get(name) || []).reduce((sum, s) => sum + s.value, 0);

function byGroup(metrics, name) {
  const out = new Map();
  for (const s of metrics.get(name) || []) {
    const group = s.labels.group || '0';
    out.set(group, (out.get(group) || 0) + s.value);
  }
  return out;
}

const shortNumber = (n) => (n < 10000 ? String(Math.round(n)) : n < 1e6 ? (n / 1e3).toFixed(1) + ' k' : (n / 1e6).toFixed(1) + ' M');

function showPools(metrics) {
  const total = byGroup(metrics, 'minisgl_pool_pages'), used = byGroup(metrics, 'minisgl_pool_pages_used');
  const cached = byGroup(metrics, 'minisgl_pool_pages_cached');
  byId('pools').replaceChildren(...[...total].map(([group, all]) => {
    const u = used.get(group) || 0, c = cached.get(group) || 0;
    const meter = make('div', 'meter');
    for (const [name, value] of [['used', u], ['cached', c]]) {
      const part = meter.appendChild(make('div', name));
      part.style.width = (all > 0 ? 100 * value / all : 0) + '%';
    }
    meter.setAttribute('role', 'img');
    meter.setAttribute('aria-label', 'group ' + group + ': ' + u + ' in use, ' + c + ' cached of ' + all);
    const name = total.size === 1 ? 'pages' : group === '0' ? 'pages of every token' : 'group ' + group;
    return make('div', 'pool', make('div', 'names', make('span', '', name),
                                    make('span', '', shortNumber(u) + ' in use, ' + shortNumber(c) + ' cached, of ' + shortNumber(all))), meter);
  }));
}

function showSpark(rates) {
  const top = Math.max(1, ...rates), n = POINTS - 1;
  const at = (v, i) => ((i + POINTS - rates.length) / n * 120).toFixed(1) + ',' + (31 - 29 * v / top).toFixed(1);
  const line = rates.map(at).join(' ');
  const from = ((POINTS - rates.length) / n * 120).toFixed(1);
  byId('spark').replaceChildren(makeSvg('polygon', { class: 'area', points: from + ',32 ' + line + ' 120,32' }),
                                makeSvg('polyline', { class: 'line', points: line }));
}

// --- the radix tree ---

// Nodes with their depths and children from what the server says; what makes no tree is left out.
function treeOf(nodes) {
  const all = nodes.map((n) => ({ ...n, children: [] })), roots = [];
  all.forEach((n, i) => {
    const up = all[n.parent];
    if (n.parent === -1) roots.push(n);
    else if (up && n.parent !== i) up.children.push(n);
  });
  return roots;
}

const lengthOf = (tokens) => Math.log2(1 + tokens); // a run of 4,000 tokens must not hide one of 4

// Left to right from the root, each run as high as what is below it. Returns the leaves.
function placeTree(roots) {
  const placed = [], stack = [...roots].reverse().map((n) => ({ n, x: 0 }));
  let leaves = 0;
  while (stack.length > 0) {
    const { n, x } = stack.pop();
    Object.assign(n, { x, w: lengthOf(n.tokens), top: leaves });
    placed.push(n);
    if (n.children.length === 0) leaves++;
    for (const child of n.children.slice().reverse()) stack.push({ n: child, x: x + n.w });
  }
  for (const n of placed.slice().reverse()) n.rows = n.children.reduce((sum, c) => sum + c.rows, 0) || 1;
  return { placed, leaves, depth: Math.max(1, ...placed.map((n) => n.x + n.w)) };
}

function treePicture(roots) {
  const { placed, leaves, depth } = placeTree(roots);
  const row = Math.max(4, Math.min(20, 220 / leaves)), width = 260, left = 8;
  const svg = makeSvg('svg', { viewBox: '0 0 ' + width + ' ' + row * leaves, height: row * leaves, preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  svg.append(makeSvg('rect', { class: 'root', x: 0, y: 0, width: left, height: row * leaves }));
  const scale = (width - left) / depth;
  for (const n of placed) {
    const heat = n.hits > 15 ? 3 : n.hits > 3 ? 2 : n.hits > 0 ? 1 : 0;
    const rect = makeSvg('rect', { class: n.refs > 0 ? 'held' : 'h' + heat, x: (left + n.x * scale).toFixed(2), y: n.top * row,
                                   width: Math.max(1, n.w * scale).toFixed(2), height: n.rows * row, rx: 2 });
    const title = makeSvg('title', {});
    title.textContent = n.tokens + ' tokens, ' + n.hits + (n.hits === 1 ? ' hit' : ' hits') + (n.refs > 0 ? ', in use' : '');
    rect.append(title);
    svg.append(rect);
  }
  return svg;
}

function showTree(answer) {
  const boxes = [], replicas = answer.replicas || [];
  let tokens = 0, runs = 0, held = 0, whole = true;
  for (const r of replicas) {
    tokens += r.tokens;
    runs += r.nodes.length;
    held += r.nodes.filter((n) => n.refs > 0).length;
    whole = whole && r.complete;
    if (replicas.length > 1) boxes.push(make('p', 'none', 'engine ' + r.replica));
    boxes.push(r.nodes.length > 0 ? treePicture(treeOf(r.nodes)) : make('p', 'none', 'Nothing is cached.'));
  }
  byId('tree').replaceChildren(...boxes);
  byId('tree-text').textContent = shortNumber(tokens) + ' tokens in ' + runs + (runs === 1 ? ' run' : ' runs') +
    (whole ? '' : ' (not all are shown)') + ', ' + held + ' in use. Stronger: found more often. Lengths are logarithmic.';
}

// --- polling ---

const panel = {
  rates: [], last: null, timer: 0, turns: 0, busy: false, locked: false, // locked: until there is another key

  wanted: () => !panel.locked && !document.hidden && !document.body.classList.contains('no-live'),

  start() {
    clearTimeout(this.timer);
    if (this.wanted()) this.turn();
  },

  async turn() {
    if (this.busy) return;
    this.busy = true;
    try {
      this.show(parseMetrics(await (await ask('metrics')).text()));
      if (this.turns++ % 2 === 0) showTree(await (await ask('radix_tree')).json());
      this.state('', false);
    } catch (e) {
      if (e.status === 401) {
        this.locked = true;
        needKey(e.message);
      }
      this.state(e.title || 'no numbers', true);
      this.last = null;
    }
    this.busy = false;
    clearTimeout(this.timer);
    if (this.wanted()) this.timer = setTimeout(() => this.turn(), POLL_MS);
  },

  state(text, off) {
    byId('state').textContent = text;
    byId('state').className = off ? 'tag off' : 'tag';
  },

  // Engines report once a second, out of step with this: a rate is over the time since the counter
  // last moved, and it counts as standing still after two seconds only.
  rateOf(made) {
    const now = performance.now(), last = this.last, before = this.rates.length > 0 ? this.rates[this.rates.length - 1] : 0;
    if (last && made === last.made && now - last.at < 2200) return before;
    this.last = { made, at: now };
    return last && made > last.made ? (made - last.made) / ((now - last.at) / 1000) : 0;
  },

  show(metrics) {
    const rate = this.rateOf(sumOf(metrics, 'minisgl_generation_tokens_total'));
    this.rates = [...this.rates, rate].slice(-POINTS);
    byId('rate').textContent = rate < 10 && rate > 0 ? rate.toFixed(1) : shortNumber(rate);
    showSpark(this.rates);
    byId('running').textContent = sumOf(metrics, 'minisgl_requests_running');
    byId('waiting').textContent = sumOf(metrics, 'minisgl_requests_waiting');
    const up = metrics.get('minisgl_engine_up') || [];
    byId('engines').textContent = sumOf(metrics, 'minisgl_engine_up') + ' / ' + up.length;
    showPools(metrics);
    const prompt = sumOf(metrics, 'minisgl_prompt_tokens_total'), cached = sumOf(metrics, 'minisgl_cached_tokens_total');
    byId('hit').textContent = prompt > 0 ? Math.round(100 * cached / prompt) + ' %' : '\u2013';
    const drafted = sumOf(metrics, 'minisgl_drafted_tokens_total'), accepted = sumOf(metrics, 'minisgl_accepted_tokens_total');
    byId('drafts-line').hidden = drafted === 0; // of a server that drafts none it says nothing
    if (drafted > 0) byId('drafts').textContent = shortNumber(accepted) + ' of ' + shortNumber(drafted) + ' (' + Math.round(100 * accepted / drafted) + ' %)';
    byId('evicted').textContent = shortNumber(sumOf(metrics, 'minisgl_evictions_total'));
  },
};
