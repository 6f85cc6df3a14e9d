'use strict';
// The document, how its numbers are written, and the small parts that blocks are made of.
//
// A number that the page shows is made by num(path, unit): it names its place in the document, so that
// what is shown can be held against the JSON.

const doc = JSON.parse(document.getElementById('document').textContent);
const state = {view: doc.selected || 0, event: null, highlight: null};
const drawers = [];  // functions that draw what depends on the view; run again when it changes

function at(path) {
  return path.split('/').slice(1).reduce((node, key) => node == null ? node : node[key], doc);
}

// --- numbers ---

function significant(value, digits) {
  if (value === 0) return '0';
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  return value.toFixed(Math.max(0, digits - whole)).replace('-', '−');
}

function scaled(value, steps, suffixes) {
  let i = 0;
  while (i + 1 < steps.length && Math.abs(value) < steps[i]) ++i;
  return `${significant(value / steps[i], 3)} ${suffixes[i]}`;
}

// "1.50 M"; "812" where there is nothing to shorten.
function amount(value) { return scaled(value, [1e12, 1e9, 1e6, 1e3, 1], ['T', 'B', 'M', 'k', '']).trim(); }

const unitText = {
  s: v => v === 0 ? '0 s' : scaled(v, [1, 1e-3, 1e-6, 1e-9], ['s', 'ms', 'µs', 'ns']),
  B: v => scaled(v, [2 ** 40, 2 ** 30, 2 ** 20, 2 ** 10, 1], ['TiB', 'GiB', 'MiB', 'KiB', 'B']),
  lacking: v => unitText.B(-v),
  ratio: v => `${(v * 100).toFixed(1)} %`,
  change: v => `${v > 0 ? '+' : v < 0 ? '−' : '±'}${Math.abs(v * 100).toFixed(1)} %`,
  count: v => Math.round(v).toLocaleString('en-US'),
  usd: v => `$${significant(v, 3)}`,
  signed_usd: v => `${v > 0 ? '+' : v < 0 ? '−' : '±'}$${significant(Math.abs(v), 3)}`,
  dollars: v => `$${amount(v)}`,
  amount: v => amount(v),
  plain: v => significant(v, 2),
  d: v => `${significant(v, 3)} d`,
  wall: v => v === 0 ? '0 s' : scaled(v, [86400, 3600, 60, 1], ['d', 'h', 'min', 's']),
  energy: v => scaled(v, [1e6, 1e3, 1], ['GWh', 'MWh', 'kWh']),
  flop: v => scaled(v, [1e15, 1e12, 1e9, 1e6, 1], ['PFLOP', 'TFLOP', 'GFLOP', 'MFLOP', 'FLOP']),
  flops: v => scaled(v, [1e15, 1e12, 1e9, 1], ['PFLOP/s', 'TFLOP/s', 'GFLOP/s', 'FLOP/s']),
  rate: v => scaled(v, [1e12, 1e9, 1e6, 1], ['TB/s', 'GB/s', 'MB/s', 'B/s']),
  factor: v => `× ${significant(v, 3)}`,
  odds: v => v > 0.995 ? '>99 %' : v < 0.005 ? '<1 %' : `${Math.round(v * 100)} %`,
  text: v => String(v),
};

function textOf(value, unit) {
  return value == null ? '–' : unitText[unit](value);
}

// A plan in a line: as pages have it, or from the plan of an answer.
function planWords(plan) {
  if (typeof plan === 'string') return plan;
  const policy = p => !Array.isArray(p) ? String(p) : `${p[0].value}${p.length > 1 ? ` with ${p.length - 1} exception${p.length > 2 ? 's' : ''}` : ''}`;
  const {mesh, prefetch, batch} = plan;
  const reshard = policy(plan.reshard_after_forward);
  return `shard ${mesh.shard} × replicate ${mesh.replicate}${mesh.inner ? ' (inner)' : ''}, reshard ${/^\d/.test(reshard) ? `to groups of ${reshard}` : reshard}, ` +
      `prefetch ${prefetch.forward}/${prefetch.backward}, recompute ${policy(plan.recompute)}, micro-batch ${batch.micro_batch} × ${batch.accumulation}`;
}

// An element that shows the number at `path` of the document.
function num(path, unit) {
  const span = el('span', {'data-path': path, 'data-unit': unit});
  span.textContent = textOf(at(path), unit);
  return span;
}

// "839 ms .. 1.02 s" of a quantity.
function interval(path, unit) {
  return el('span', {}, num(`${path}/low`, unit), ' to ', num(`${path}/high`, unit));
}

// --- elements ---

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, '');
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child != null) node.append(child);
  }
  return node;
}

function table(caption, heads, rows) {
  const cell = (kind, content, number) => el(kind, {class: number ? 'n' : null, scope: kind === 'th' ? 'col' : null}, content);
  return el('div', {class: 'scroll'}, el('table', {},
      caption ? el('caption', {}, el('span', {}, caption)) : null,
      el('thead', {}, el('tr', {}, heads.map(h => cell('th', h.replace(/^#/, ''), h.startsWith('#'))))),
      el('tbody', {}, rows.map(r => el('tr', {}, r.map((c, i) => cell('td', c, heads[i].startsWith('#'))))))));
}

const blocks = [];
// A block of the report: <section> with a heading, an explanation, and what `fill` puts into it. `fill`
// runs again when the page gets another width, and with what is pushed into `whenChanged`.
function block(id, title, note, fill, whenChanged = null) {
  const body = el('div');
  const section = el('section', {id, 'aria-labelledby': `${id}-title`, class: title === doc.title ? 'lead' : null},
      el('h2', {id: `${id}-title`}, title), note ? el('p', {class: 'note'}, note) : null, body);
  document.getElementById('content').append(section);
  const draw = () => {
    const open = [...body.querySelectorAll('details')].map(d => d.open);
    body.replaceChildren();
    fill(body);
    body.querySelectorAll('details').forEach((d, i) => { d.open = !!open[i]; });
  };
  blocks.push({id, title, body, draw});
  draw();
  if (whenChanged) whenChanged.push(draw);
}

// The first thing on the page: what the answer is.
function headline(id, good, said, ...words) {
  return el('p', {class: 'headline'}, el('span', {id, class: `verdict ${good ? 'good' : 'bad'}`}, said), el('span', {}, words));
}

// Of "does not fit: 286 GiB more than there are; it fits with ..." what comes after the headline.
function wayOf(line) {
  const rest = line.replace(/^(the smallest plan )?does not fit: [^;]*; /, '');
  return rest[0].toUpperCase() + rest.slice(1);
}

// Lines that say what would help, as the command says them.
function advice(id, lines) {
  const list = lines.filter(line => line).map(line => typeof line === 'string' ? wayOf(line) : line);
  return list.length ? el('div', {class: 'advice', id}, list.map(line => el('p', {}, line))) : null;
}

function legend(entries) {
  return el('ul', {class: 'legend'}, entries.map(([name, colour]) => {
    const swatch = el('i');
    swatch.style.background = colour;
    return el('li', {}, swatch, name);
  }));
}

function copyButton(label, text) {
  const button = el('button', {type: 'button', class: 'copy'}, label);
  button.addEventListener('click', async () => {
    const done = () => { button.textContent = 'Copied'; setTimeout(() => { button.textContent = label; }, 1500); };
    try {
      await navigator.clipboard.writeText(text());
      done();
    } catch {  // no permission, or an old browser
      const area = el('textarea', {class: 'unseen'});
      area.value = text();
      document.body.append(area);
      area.select();
      if (document.execCommand('copy')) done();
      area.remove();
    }
  });
  return button;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// --- the tooltip, and what screen readers are told ---

const tip = document.getElementById('tip');
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + box.height + 24 > innerHeight ? event.clientY - box.height - 10 : event.clientY + 16}px`;
}
function hideTip() { tip.hidden = true; }
function say(text) { document.getElementById('live').textContent = text; }

// Makes SVG marks that can be pointed at, reached by keyboard, and pressed.
function reachable(marks, text, press) {
  return marks.attr('tabindex', 0).attr('role', press ? 'button' : 'img').classed('mark', true)
      .attr('aria-label', d => text(d).replace(/\n/g, ', '))
      .each(function(d) {
        this.addEventListener('mousemove', event => showTip(event, text(d)));
        this.addEventListener('mouseleave', hideTip);
        this.addEventListener('blur', hideTip);
        this.addEventListener('focus', () => {
          const box = this.getBoundingClientRect();
          if (this.matches(':focus-visible')) showTip({clientX: box.right, clientY: box.top}, text(d));
        });
        if (!press) return;
        this.addEventListener('click', () => press(d));
        this.addEventListener('keydown', event => {
          if (event.key !== 'Enter' && event.key !== ' ') return;
          event.preventDefault();
          press(d);
        });
      });
}

// --- the view that is shown ---

function view() { return doc.views[state.view]; }
function viewPath() { return `/views/${state.view}`; }
