'use strict';
// Blocks about one step: verdict, plan, memory, waterfall.

// --- verdict ---

function card(what, figure, more) {
  return el('div', {class: 'card'}, el('div', {class: 'what'}, what), el('div', {class: 'figure'}, figure), el('div', {class: 'more'}, more));
}

function evidence(path) {
  const said = at(`${path}/evidence`);
  return said ? el('span', {class: 'evidence', title: evidenceMeaning[said] || ''}, said) : null;
}
const evidenceMeaning = {
  measured: 'measured on this machine', interpolated: 'between measurements', extrapolated: 'beyond what was measured',
  datasheet: 'from a data sheet', assumed: 'assumed: nobody measured it',
};

// Whether a forecast fits, and how sure that is.
function fitLine(path, report) {
  const memory = report.memory;
  if (memory.fits == null) return null;
  const odds = memory.fit_probability != null && report.origin !== 'measured' ? [' with ', num(`${path}/memory/fit_probability`, 'odds')] : [];
  if (!memory.fits) return headline('fits', false, 'Does not fit', ': ', num(`${path}/memory/margin_bytes`, 'lacking'), ' more than the ', num(`${path}/memory/capacity_bytes`, 'B'), ' per GPU that there are');
  return headline('fits', true, el('span', {}, 'Fits', odds), ': ', num(`${path}/memory/margin_bytes`, 'B'), ' to spare of ', num(`${path}/memory/capacity_bytes`, 'B'), ' per GPU');
}

// Of a search: what was looked through, and what is faster but riskier.
function searchWords() {
  const s = doc.search;
  const line = el('p', {id: 'searched'}, s.best ? 'The best of ' : 'None of ', num('/search/enumerated', 'count'), s.best ? ' plans' : ' plans fits; this is the smallest');
  if (s.riskier) line.append('. Faster but riskier: ', planWords(s.riskier.plan), ', ', num('/search/riskier/seconds', 's'), ' per step, fits with ', num('/search/riskier/fit_probability', 'odds'));
  line.append('.');
  return line;
}

function drawNoPlan(body) {
  body.append(headline('fits', false, 'No plan fits', ': ', num('/search/enumerated', 'count'), ' were tried'), advice('advice', [doc.advice, ...infeasibleWords(doc.search.infeasible)]) || '');
}

// Of an answer's JSON: what is lacking, and the change that fits.
function infeasibleWords(infeasible) {
  if (!infeasible || infeasible.exceeds_bytes == null) return [];
  const lacking = `The smallest plan needs ${textOf(infeasible.exceeds_bytes, 'B')} more per GPU than there are`;
  const way = infeasible.remedy;
  if (!way) return [`${lacking}; nothing that was tried makes it fit.`];
  return [`${lacking}. It fits on ${textOf(way.gpus, 'count')} GPUs with ${Object.entries(way.set).map(([key, value]) => `--set ${key}=${value}`).join(' ')}: ${textOf(way.margin_bytes, 'B')} to spare.`];
}

function drawVerdict(body) {
  const path = `${viewPath()}/report`;
  const report = view().report;
  const fits = fitLine(path, report);
  if (fits) body.append(fits);
  const isShortfall = line => line.startsWith('does not fit');
  const ways = [...(report.warnings || []).filter(isShortfall), state.view === 0 ? doc.advice : null];
  const help = advice('advice', ways);
  if (help) body.append(help);
  const best = doc.search && doc.search.best;
  if (doc.search && state.view === (best || doc.search.smallest || {}).view) body.append(searchWords());
  const job = jobWords(report);
  if (job) body.append(el('p', {class: 'note'}, job));
  const cards = el('div', {class: 'cards'});
  const quantity = (what, key, unit) => {
    const q = at(`${path}/step/${key}`);
    if (q == null) return;
    cards.append(card(what, num(`${path}/step/${key}/value`, unit), el('span', {}, interval(`${path}/step/${key}`, unit), ' ', evidence(`${path}/step/${key}`))));
  };
  quantity(report.origin === 'measured' ? 'Step time, measured' : 'Step time', 'seconds', 's');
  quantity('Tokens/s per GPU', 'tokens_per_s_per_gpu', 'count');
  quantity('MFU', 'mfu', 'ratio');
  quantity('Exposed comm.', 'exposed_communication_s', 's');
  if (report.origin === 'measured' && !report.memory.peak_allocated_bytes?.value) {
    cards.append(card('Memory per GPU', 'not measured', ''));
  } else if (report.memory.peak_reserved_bytes) {
    const inAll = report.memory.total_bytes != null;
    cards.append(card(inAll ? 'Memory per GPU' : 'Peak reserved', num(`${path}/memory/${inAll ? 'total_bytes' : 'peak_reserved_bytes/value'}`, 'B'),
        el('span', {}, num(`${path}/memory/peak_allocated_bytes/value`, 'B'), ' allocated', inAll ? ', the rest cached or outside the allocator' : '')));
  }
  if (doc.price && state.view === 0) {
    cards.append(card('Per million tokens', num('/price/usd_per_million_tokens/value', 'usd'),
        el('span', {}, 'at ', num('/price/usd_per_gpu_hour', 'usd'), ' per GPU-hour')));
  }
  body.append(cards);
  if (view().waterfall) {
    const bars = view().waterfall.map((bar, i) => ({bar, i})).sort((a, b) => b.bar.seconds - a.bar.seconds).slice(0, 4);
    const where = el('p', {id: 'limits'}, el('strong', {}, 'What the step is made of: '));
    bars.forEach(({bar, i}, k) => where.append(k ? ', ' : '', `${bar.what} `, num(`${viewPath()}/waterfall/${i}/seconds`, 's')));
    where.append('. ', limitWords());
    body.append(where);
  }
  if (best && best.view != null && best.view !== state.view && best.seconds < report.step.seconds.value) {
    body.append(el('p', {}, 'The search found a faster plan: ', num('/search/best/seconds', 's'), ' per step. ',
        el('button', {type: 'button', id: 'show-best', onclick: () => show(best.view)}, 'Show the best plan')));
  }
  for (const warning of (report.warnings || []).filter(w => !isShortfall(w))) body.append(el('div', {class: 'warning'}, warning));
  body.append(el('p', {class: 'note'}, 'Intervals are 90 % of re-simulations in which what is not known of the machine varies; exposed communication is time in which a ' +
      'collective moves data and no kernel computes; MFU counts the model’s FLOPs against the dense peak of the parameters’ type.'));
}

function limitWords() {
  const bars = view().waterfall;
  const total = d3.sum(bars, b => b.seconds);
  const exposed = d3.sum(bars.filter(b => b.what.startsWith('exposed')), b => b.seconds);
  const host = d3.sum(bars.filter(b => b.what === 'host'), b => b.seconds);
  if (exposed > 0.25 * total) return 'The network limits it.';
  if (host > 0.15 * total) return 'The host limits it: kernels are issued too late.';
  return 'The GPU’s own work limits it.';
}

// --- plan ---

function drawPlan(body) {
  const yaml = view().plan_yaml || '';
  const plan = view().report.plan;
  body.append(el('p', {class: 'note', id: 'plan-label'}, view().label));
  if (plan) {
    const path = `${viewPath()}/report/plan`;
    const words = v => v !== null && typeof v === 'object' ? JSON.stringify(v) : String(v);
    const facts = [['mesh', ['shard ', num(`${path}/mesh/shard`, 'text'), ' × replicate ', num(`${path}/mesh/replicate`, 'text')]],
      ['reshard_after_forward', words(plan.reshard_after_forward)], ['prefetch', `forward ${words(plan.prefetch.forward)}, backward ${words(plan.prefetch.backward)}`],
      ['recompute', words(plan.recompute)], ['batch per GPU', [num(`${path}/batch/micro_batch`, 'text'), ' × ', num(`${path}/batch/accumulation`, 'text'), ' sequences of ', num(`${path}/batch/sequence`, 'text')]],
      ['dtype', `${plan.dtype.param} parameters, ${plan.dtype.reduce} reduction`], ['optimizer', `${plan.optimizer.kind}, state ${plan.optimizer.state}`],
      ['runtime', plan.runtime], ['offload', words(plan.offload)]];
    body.append(el('dl', {class: 'facts'}, facts.map(([key, value]) => el('div', {}, el('dt', {}, key), el('dd', {}, value)))));
  }
  if (!yaml) return;
  const script = plan && String(plan.runtime).startsWith('fsdp2') ? ['foreshard export   --plan plan.yaml --to fsdp2 --out train.py   # a PyTorch script of this plan'] : [];
  const commands = ['# with the plan in plan.yaml', 'foreshard predict  --plan plan.yaml', 'foreshard explain  --plan plan.yaml', ...script,
    'foreshard validate --plan plan.yaml --run RUN   # a trace of torch.profiler, or a run folder'].join('\n');
  body.append(el('div', {class: 'tools'}, copyButton('Copy plan.yaml', () => yaml), copyButton('Copy its commands', () => commands)),
      el('details', {}, el('summary', {}, 'plan.yaml and its commands'), el('pre', {id: 'plan-yaml', tabindex: 0, 'aria-label': 'Plan as YAML'}, yaml), el('pre', {tabindex: 0, 'aria-label': 'Commands'}, commands)));
}

// --- memory ---

const categoryColours = {
  sharded_param: '#0072b2', unsharded_param: '#56b4e9', all_gather_output: '#9bd0ee', post_forward_shard: '#3a87b8', optimizer_state: '#009e73',
  sharded_grad: '#e69f00', unsharded_grad: '#f3c65f', accumulated_grad: '#c98a00', activation: '#cc79a7', recomputed_activation: '#e3b0cd',
  backward_temp: '#d55e00', reduce_scatter_input: '#f0a06a', reduce_scatter_output: '#b5501a', optimizer_temp: '#5cc5a5',
};
const categoryColour = name => categoryColours[name] || '#8c8c8c';

function memoryOf(t) {
  const raw = t.raw.memory;
  if (!raw || raw.series) return raw;
  const sum = (list, factor) => {
    let value = 0;
    return list.map(d => (value += d) * factor);
  };
  raw.ids = sum(raw.rows, 1);
  raw.peaks = sum(raw.peak, raw.granule);
  raw.series = raw.categories.map(c => sum(c.now, raw.granule));
  return raw;
}

function drawMemory(body) {
  const report = view().report, t = timelineOf(state.view);
  const m = t && memoryOf(t);
  if (m) drawMemoryChart(body, t, m, report);
  const path = viewPath();
  const atPeak = Object.keys(report.memory.at_peak || {});
  const left = el('div', {}, table('By category at the peak' + (report.memory.peak_event ? `: ${report.memory.peak_event}` : ''), ['category', '#bytes'],
      atPeak.map(name => [name, num(`${path}/report/memory/at_peak/${name}`, 'B')])
          .concat([['outside the allocator', num(`${path}/report/memory/outside_allocator_bytes/value`, 'B')],
            ['peak allocated', num(`${path}/report/memory/peak_allocated_bytes/value`, 'B')],
            ['peak reserved', num(`${path}/report/memory/peak_reserved_bytes/value`, 'B')],
            ['capacity', num(`${path}/report/memory/capacity_bytes`, 'B')]])));
  const split = el('div', {class: 'split'}, left);
  const alive = view().alive_at_peak;
  if (alive && alive.groups.length) {
    const rows = alive.groups.map((g, i) => [g.name, g.where, g.category, num(`${path}/alive_at_peak/groups/${i}/buffers`, 'count'),
      num(`${path}/alive_at_peak/groups/${i}/bytes`, 'B')]);
    if (alive.other_buffers) rows.push(['others', '', '', num(`${path}/alive_at_peak/other_buffers`, 'count'), num(`${path}/alive_at_peak/other_bytes`, 'B')]);
    split.append(el('div', {class: 'tall low', tabindex: 0, id: 'alive', 'aria-label': 'Who is alive at the peak'}, table('Who is alive at the peak', ['buffer', 'where', 'category', '#buffers', '#bytes'], rows)));
  }
  body.append(split);
}

function drawMemoryChart(body, t, m, report) {
  const names = m.categories.map(c => c.name);
  const order = d3.range(names.length).sort((a, b) => persistent(names[b]) - persistent(names[a]) || m.categories[b].peak_bytes - m.categories[a].peak_bytes);
  const outside = report.memory.outside_allocator_bytes ? report.memory.outside_allocator_bytes.value : 0;
  body.append(legend([['outside the allocator', '#5b6570'], ...order.filter(c => m.categories[c].peak_bytes > m.peak_bytes / 500).map(c => [names[c], categoryColour(names[c])])]));
  const f = frame(body, 330, {top: 24, right: 14, bottom: 46, left: 62}, 'Memory of one GPU over the events of the step, by category');
  const gib = 2 ** 30;
  const counted = outside + (report.memory.peak_reserved_bytes ? report.memory.peak_reserved_bytes.value : 0);
  const top = Math.max(report.memory.capacity_bytes || 0, counted, outside + m.peak_bytes) * 1.06 / gib;
  const x = d3.scaleLinear().domain([0, Math.max(1, t.n - 1)]).range([0, f.width]);
  const y = d3.scaleLinear().domain([0, top]).range([f.height, 0]);
  axes(f, x, y, f.width < 400 ? 'events, as the host issues them' : 'events of the step in the order the host issues them', 'GiB per GPU');
  const base = m.ids.map(() => outside);
  const area = d3.area().x((d, i) => x(m.ids[i])).curve(d3.curveStepAfter);
  f.inner.append('path').attr('d', area.y0(y(0)).y1(y(outside / gib))(m.ids)).attr('fill', '#5b6570');
  for (const c of order) {
    const low = base.slice();
    m.series[c].forEach((v, i) => { base[i] += v; });
    f.inner.append('path').attr('d', area.y0((d, i) => y(low[i] / gib)).y1((d, i) => y(base[i] / gib))(m.ids)).attr('fill', categoryColour(names[c]));
  }
  f.inner.append('path').attr('fill', 'none').attr('stroke', 'var(--ink)').attr('stroke-width', 1)
      .attr('d', d3.line().x((d, i) => x(m.ids[i])).y(d => y((outside + d) / gib)).curve(d3.curveStepAfter)(m.peaks));
  const labels = [];
  const level = (value, text, kind, dash) => {
    f.inner.append('line').attr('x1', 0).attr('x2', f.width).attr('y1', y(value / gib)).attr('y2', y(value / gib)).attr('class', kind)
        .attr('stroke', 'currentColor').attr('stroke-dasharray', dash);
    labels.push({x: 0, y: y(value / gib), text, places: [[6, -5, 'start'], [f.width, -5, 'end'], [6, 16, 'start'], [f.width, 16, 'end']]});
  };
  if (report.memory.capacity_bytes) level(report.memory.capacity_bytes, `capacity ${textOf(report.memory.capacity_bytes, 'B')}`, 'capacity', null);
  if (counted > outside) level(counted, `what has to fit, with caches: ${textOf(counted, 'B')}`, 'reserved', '5 4');
  const peakAt = x(m.peak_event);
  f.inner.append('circle').attr('cx', peakAt).attr('cy', y((outside + m.peak_bytes) / gib)).attr('r', 4.5).attr('fill', 'var(--ink)');
  labels.push({x: peakAt, y: y((outside + m.peak_bytes) / gib), text: `peak: ${nameOf(t, m.peak_event)}`, id: 'peak-label'});
  place(f, labels);
  const cursor = f.inner.append('line').attr('y1', 0).attr('y2', f.height).attr('stroke', 'var(--ink)').attr('visibility', 'hidden');
  const info = el('p', {class: 'small', id: 'memory-info'}, 'Point at the chart, or focus it and use the arrow keys, to see an event; click or press Enter to find it in the timeline.');
  body.append(info);
  let k = m.ids.indexOf(m.peak_event);
  const words = i => {
    const parts = order.map(c => [names[c], m.series[c][i]]).filter(p => p[1] > 0).sort((a, b) => b[1] - a[1]).slice(0, 6);
    return `${nameOf(t, m.ids[i])}: highest ${textOf(m.peaks[i], 'B')} allocated; then ${parts.map(p => `${p[0]} ${textOf(p[1], 'B')}`).join(', ')}`;
  };
  const show = i => {
    k = i;
    cursor.attr('visibility', 'visible').attr('x1', x(m.ids[i])).attr('x2', x(m.ids[i]));
    info.textContent = words(i);
  };
  const node = f.svg.attr('tabindex', 0).attr('id', 'memory-chart').node();
  node.addEventListener('mousemove', event => {
    const box = node.getBoundingClientRect();
    const row = x.invert(event.clientX - box.left - f.margin.left);
    show(Math.max(0, Math.min(m.ids.length - 1, d3.bisectLeft(m.ids, row))));
  });
  const find = () => { if (chart.t) select(m.ids[k]); };
  node.addEventListener('click', find);
  node.addEventListener('keydown', event => {
    const moves = {ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20};
    if (event.key === 'Enter') return find();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(Math.max(0, Math.min(m.ids.length - 1, k + moves[event.key])));
    say(info.textContent);
  });
}
function persistent(name) { return name === 'optimizer_state' ? 2 : name === 'sharded_param' ? 3 : name === 'sharded_grad' ? 1 : 0; }

// --- waterfall ---

function drawWaterfall(body) {
  const bars = view().waterfall;
  const path = viewPath();
  const total = d3.sum(bars, b => b.seconds);
  let before = 0;
  const data = bars.map((bar, i) => {
    const entry = {what: bar.what, seconds: bar.seconds, from: before, path: `${path}/waterfall/${i}/seconds`, share: textOf(bar.seconds / total, 'ratio')};
    before += bar.seconds;
    return entry;
  });
  data.push({what: 'the step', seconds: at(`${path}/report/step/seconds/value`), from: 0, path: `${path}/report/step/seconds/value`, share: '', whole: true});
  const r = rowFrame(body, data, d => d.what, 'Where the step’s time goes; the bars add up to the step',
      [{text: d => textOf(d.seconds, 's'), path: d => d.path, unit: 's'}, {text: d => d.share, soft: true}]);
  const x = d3.scaleLinear().domain([0, total]).range([0, r.f.width]);
  timeAxis(r.f, x, r.height, 'time within the step');
  r.g.append('rect').attr('x', d => x(d.from)).attr('y', r.top).attr('height', r.bar).attr('width', d => d.whole ? x(total) : Math.max(1, x(d.seconds)))
      .attr('fill', d => d.whole ? 'none' : `var(--${barColour(d.what)})`).attr('stroke', d => d.whole ? 'var(--ink)' : null);
  reachable(r.g.filter(d => !d.whole), d => `${d.what}\n${textOf(d.seconds, 's')}, ${d.share} of the step`, d => {
    if (!chart.t) return;
    highlightOnly(rowsOfBar(d.what));
    say(`${d.what} stays bright in the timeline`);
    document.getElementById('timeline-block').scrollIntoView({block: 'nearest'});
  });
  if (view().overlap_slowdown_s > 0) {
    body.append(el('p', {class: 'small'}, 'Within the bars: kernels take ', num(`${path}/overlap_slowdown_s`, 's'), ' longer because collectives run beside them',
        view().launch_bound_s > 0 ? [', ', num(`${path}/launch_bound_s`, 's'), ' because the host launches too slowly'] : '', '.'));
  }
  if (view().communication && view().communication.length) {
    body.append(table('Communication by kind', ['kind', '#collectives', '#busy', '#exposed', '#in so many'], view().communication.map((g, i) => {
      const p = `${path}/communication/${i}`;
      return [g.what, num(`${p}/rows`, 'count'), num(`${p}/busy_s`, 's'), num(`${p}/exposed_s`, 's'), num(`${p}/exposed_rows`, 'count')];
    })));
  }
}

const barColours = {forward: 'c-forward', backward: 'c-backward', loss: 'c-loss', recompute: 'c-recompute', optimizer: 'c-optimizer', 'gradient clipping': 'c-optimizer', host: 'c-host'};
function barColour(what) {
  const exposed = /^exposed (\w+)/.exec(what);
  return exposed ? colourOf(exposed[1]) : barColours[what] || 'c-copy';
}

// What a bar of the waterfall is made of, in the timeline.
function rowsOfBar(what) {
  const exposed = /^exposed (\w+) \((\w+)\)/.exec(what);
  if (exposed) {
    const test = (t, i) => kindOf(t, i) === exposed[1] && phaseOf(t, i) === exposed[2];
    return {test, gap: (t, gap) => gap[2] >= 0 && test(t, gap[2])};
  }
  if (what === 'host' || what === 'stream dependency') return {test: () => false, gap: (t, gap) => gap[2] < 0 && (gap[3] === 1) === (what === 'host')};
  return {test: (t, i) => t.stream[i] === 'compute' && barColour(what) === colourOf(kindOf(t, i)) && !isCollective(kindOf(t, i)), gap: () => false};
}
