'use strict';
// Blocks about what the forecast rests on: operations against the roofs, uncertainty, assumptions.

// --- roofline ---

function drawRoofline(body) {
  const o = doc.operations;
  const data = o.operations.map((p, i) => ({p, i})).filter(d => d.p.flops > 0 && d.p.bytes > 0 && d.p.seconds > 0)
      .map(d => ({...d, intensity: d.p.flops / d.p.bytes, rate: d.p.flops / d.p.seconds})).filter(d => d.rate > o.peak_flops_per_s * 1e-5);
  if (!data.length || !(o.bandwidth_bytes_per_s > 0)) return;
  const f = frame(body, 340, {top: 26, right: 24, bottom: 46, left: 96}, 'Operations of the step: FLOP per second against FLOP per byte, and the roofs of the GPU');
  const ridge = o.peak_flops_per_s / o.bandwidth_bytes_per_s;
  const xs = data.map(d => d.intensity).concat([ridge]);
  const domain = [d3.min(xs) / 2, d3.max(xs) * 2.5];
  const x = d3.scaleLog().domain(domain).range([0, f.width]);
  const y = d3.scaleLog().domain([Math.min(d3.min(data, d => d.rate) || 1e12, o.bandwidth_bytes_per_s * domain[0]) / 1.5, o.peak_flops_per_s * 1.6]).range([f.height, 0]);
  axes(f, x, y, 'FLOP per byte of memory moved', 'FLOP/s',
      {bottom: d3.axisBottom(x).tickValues(logTicks(x.domain())).tickFormat(v => textOf(v, 'count')).tickSizeOuter(0),
        left: d3.axisLeft(y).tickValues(logTicks(y.domain())).tickFormat(v => textOf(v, 'flops')).tickSizeOuter(0)});
  const roof = [[Math.max(domain[0], y.domain()[0] / o.bandwidth_bytes_per_s), 0], [ridge, 0], [domain[1], 0]].map(([i]) => [x(i), y(Math.min(o.peak_flops_per_s, i * o.bandwidth_bytes_per_s))]);
  f.inner.append('path').attr('fill', 'none').attr('stroke', 'var(--ink)').attr('stroke-width', 1.5).attr('d', d3.line()(roof));
  const size = d3.scaleSqrt().domain([0, d3.max(data, d => d.p.total_s)]).range([2, 22]);
  const tones = {'matrix products': 'c-forward', attention: 'c-reduce', 'memory-bound kernels': 'c-gather'};
  const marks = f.inner.selectAll('circle').data(data.sort((a, b) => b.p.total_s - a.p.total_s)).enter().append('circle').attr('cx', d => x(d.intensity)).attr('cy', d => y(d.rate))
      .attr('r', d => size(d.p.total_s)).attr('fill', d => `var(--${tones[d.p.class] || 'c-copy'})`).attr('fill-opacity', 0.65).attr('stroke', 'var(--paper)');
  reachable(marks, d => `${d.p.name}\n${textOf(d.rate, 'flops')} at ${significant(d.intensity, 3)} FLOP/B\n${textOf(d.p.count, 'count')} times ${textOf(d.p.seconds, 's')}: ${textOf(d.p.total_s, 's')} of the step, ${d.p.evidence}`);
  place(f, [{x: f.width, y: roof[2][1], text: `${o.peak_dtype} peak ${textOf(o.peak_flops_per_s, 'flops')}`, places: [[0, -7, 'end'], [0, 18, 'end']]},
    {x: (roof[0][0] + roof[1][0]) / 2, y: (roof[0][1] + roof[1][1]) / 2, text: `memory ${textOf(o.bandwidth_bytes_per_s, 'rate')}`}]);
  const shown = new Set(data.map(d => d.p.class));
  body.append(legend(Object.entries(tones).filter(([name]) => shown.has(name)).map(([name, tone]) => [name, `var(--${tone})`])), el('p', {class: 'note'}, 'Area of a circle: its time in the step, alone. Operations that are counted in bytes alone (norms, copies, activations) stand in the table.'));
  body.append(el('div', {class: 'tall', tabindex: 0, 'aria-label': 'Operations of the step'}, table('Longest first, priced alone', ['operation', 'class', '#times', '#each', '#in all', '#FLOP', '#bytes', 'evidence'], o.operations.map((p, i) => {
    const path = `/operations/operations/${i}`;
    return [p.name, p.class, num(`${path}/count`, 'count'), num(`${path}/seconds`, 's'), num(`${path}/total_s`, 's'), num(`${path}/flops`, 'flop'), num(`${path}/bytes`, 'B'), p.evidence];
  }))));
}

// --- the network ---

// Links between switches, and the ports that bind, by load; the nodes that hang on each switch.
function drawNetwork(body) {
  const n = doc.network;
  body.append(table('', ['communicator', '#ranks', '#nodes', '#inside', '#between', 'narrowest wire'], n.communicators.map((c, i) => {
    const path = `/network/communicators/${i}`;
    return [c.name, num(`${path}/size`, 'count'), num(`${path}/nodes`, 'count'), num(`${path}/link_bytes_per_s`, 'rate'),
      c.nodes > 1 ? num(`${path}/network_bytes_per_s`, 'rate') : '', c.narrowest ? `${c.narrowest.from} – ${c.narrowest.to}` : ''];
  })));
  const links = n.links.map((p, i) => ({p, i, name: `${p.from} – ${p.to}`})).slice(0, 40);
  if (links.length) {
    const r = rowFrame(body, links, d => d.name, 'How full the wires are',
        [{text: d => textOf(d.p.used, 'ratio'), path: d => `/network/links/${d.i}/used`, unit: 'ratio'},
          {text: d => textOf(d.p.bytes_per_s, 'rate'), path: d => `/network/links/${d.i}/bytes_per_s`, unit: 'rate', soft: true}]);
    const x = d3.scaleLinear().domain([0, 1]).range([0, r.f.width]);
    axisBelow(r.f, x, r.height, 'share of the wire that is used', v => textOf(v, 'ratio'));
    r.g.append('rect').attr('y', r.top).attr('height', r.bar).attr('width', d => x(Math.min(1, d.p.used)))
        .attr('fill', d => `hsl(${120 * (1 - Math.min(1, d.p.used))} 70% 42%)`);
    reachable(r.g, d => `${d.name}\n${textOf(d.p.bytes_per_s, 'rate')}, ${textOf(d.p.used, 'ratio')} used`);
  }
  const below = d3.rollups(n.nodes, nodes => nodes, node => [...new Set(node.leaves)].join(', '));
  body.append(el('details', {}, el('summary', {}, 'Which nodes hang where'), table('', ['switches', 'nodes'],
      below.map(([leaf, nodes]) => [leaf, nodes.slice(0, 64).map(node => node.name).join(', ') + (nodes.length > 64 ? ', …' : '')]))));
}

// --- what is not known, and what would help ---

function bars(body, rows, center, label, values) {
  const r = rowFrame(body, rows, d => d.name, label, values);
  const x = d3.scaleLinear().domain([d3.min(rows, d => Math.min(d.low, center * 0.98)), d3.max(rows, d => Math.max(d.high, center * 1.02))]).nice().range([0, r.f.width]);
  timeAxis(r.f, x, r.height, 'step time');
  const bar = (from, to, tone) => r.g.append('rect').attr('x', d => x(from(d))).attr('y', r.top).attr('height', r.bar).attr('width', d => Math.max(0, x(to(d)) - x(from(d)))).attr('fill', `var(--${tone})`);
  bar(d => Math.min(d.low, center), d => Math.max(center, d.low), 'c-optimizer');
  bar(d => Math.min(center, d.high), d => Math.max(center, d.high), 'c-reduce');
  r.rule(x(center));
  return r.g;
}

function drawTornado(body) {
  const s = doc.sensitivity;
  const rows = s.factors.map((p, i) => ({i, p, name: p.factor, low: Math.min(p.low_s, p.high_s), high: Math.max(p.low_s, p.high_s)})).sort((a, b) => (b.high - b.low) - (a.high - a.low));
  const split = el('div', {class: 'split'}), left = el('div'), right = el('div');
  split.append(left, right);
  body.append(split);
  left.append(el('h3', {}, 'Which uncertainty matters'), el('p', {class: 'note'}, 'Each class of work at the ends of its own 90 % interval, the others as they are best known.'));
  const chart = bars(left, rows, s.step_s, 'How far the step moves when one factor of the machine does',
      [{text: d => `±${textOf((d.high - d.low) / 2 / s.step_s, 'ratio')}`, soft: true}]);
  reachable(chart, d => `${d.name}\nstep ${textOf(d.p.low_s, 's')} to ${textOf(d.p.high_s, 's')}\nits work ${textOf(d.p.low_factor, 'factor')} to ${textOf(d.p.high_factor, 'factor')}\n${d.p.source}`);
  right.append(el('h3', {}, 'What would help'), el('p', {class: 'note'}, 'The step if one class of work took half its time: a NIC or GPU twice as fast, with the same plan.'));
  const half = s.halved.map((p, i) => ({i, p, name: p.factor, low: p.seconds, high: s.step_s})).sort((a, b) => a.low - b.low);
  const chart2 = bars(right, half, s.step_s, 'The step when one class of work takes half its time',
      [{text: d => textOf(d.p.seconds, 's'), path: d => `/sensitivity/halved/${d.i}/seconds`, unit: 's'}]);
  reachable(chart2, d => `${d.name} in half its time\nstep ${textOf(d.p.seconds, 's')}: ${textOf(d.p.seconds / s.step_s - 1, 'change')}`);
  if ((s.changed || []).length) {
    const changed = s.changed.map((p, i) => ({i, p, name: `${p.property} ${p.change}`, low: Math.min(p.seconds, s.step_s), high: Math.max(p.seconds, s.step_s)}))
        .filter(d => d.p.property !== 'gpu.memory').sort((a, b) => a.p.seconds - b.p.seconds);
    const memory = s.changed.map((p, i) => ({p, i})).filter(d => d.p.property === 'gpu.memory');
    body.append(el('h3', {}, 'On another machine'), el('p', {class: 'note'}, 'The same plan where one property of the machine is another.'));
    const chart3 = bars(body, changed, s.step_s, 'The step on a machine that is changed in one property',
        [{text: d => textOf(d.p.seconds, 's'), path: d => `/sensitivity/changed/${d.i}/seconds`, unit: 's'}]);
    reachable(chart3, d => `${d.name}\nstep ${textOf(d.p.seconds, 's')}: ${textOf(d.p.seconds / s.step_s - 1, 'change')}`);
    body.append(el('p', {class: 'small', id: 'other-memory'}, 'Memory of the GPU: ', memory.flatMap(({p, i}, k) => [k ? '; ' : '', `${p.change} `, p.fits ? 'fits with ' : 'lacks ', num(`/sensitivity/changed/${i}/margin_bytes`, p.fits ? 'B' : 'lacking'), p.fits ? ' to spare' : '']), '.'));
  }
  body.append(el('details', {}, el('summary', {}, 'Where these intervals come from'), table('', ['class of work', '#low', '#high', '#step, low', '#step, high', 'source'], rows.map(({p, i}) => {
    const path = `/sensitivity/factors/${i}`;
    return [p.factor, num(`${path}/low_factor`, 'factor'), num(`${path}/high_factor`, 'factor'), num(`${path}/low_s`, 's'), num(`${path}/high_s`, 's'), p.source];
  }))));
}

// --- assumptions ---

function drawAssumptions(body) {
  const report = doc.views[0].report;
  const cluster = report.cluster;
  if (cluster) {
    body.append(table('Where it runs', ['', ''], [['GPUs', el('span', {}, num('/views/0/report/cluster/gpus', 'count'), ` × ${cluster.gpu_name}`)],
      ['nodes', el('span', {}, num('/views/0/report/cluster/nodes', 'count'), ' of ', num('/views/0/report/cluster/gpus_per_node', 'count'), ` GPUs (${cluster.node})`)],
      ['network', cluster.nics_per_node ? `${cluster.nics_per_node} × ${cluster.nic} per node, ${cluster.network}` : cluster.network]]));
  }
  const outside = report.memory.outside || [];
  if (outside.length) {
    body.append(el('h3', {}, 'Memory outside the allocator'), table('', ['what', '#bytes', 'evidence', 'source'],
        outside.map((o, i) => [o.name, num(`/views/0/report/memory/outside/${i}/bytes`, 'B'), el('span', {class: 'evidence'}, o.evidence), o.source])));
  }
  const assumed = report.assumed || [];
  if (assumed.length) {
    body.append(el('h3', {}, 'Assumed, because nothing else was said or measured'), el('div', {class: 'tall', tabindex: 0, 'aria-label': 'Assumed values'},
        table('', ['key', 'value'], assumed.map((a, i) => [a.key, num(`/views/0/report/assumed/${i}/value`, 'text')]))));
  }
  body.append(el('p', {class: 'small'}, `Evidence, from strong to weak: ${Object.entries(evidenceMeaning).map(([k, v]) => `${k} (${v})`).join('; ')}.`));
}

// --- reproduce ---

function drawReproduce(body) {
  const tool = doc.tool || {};
  const rows = [['program', `${tool.name || 'foreshard'} ${tool.version || ''}`], ['made', `${doc.created || ''} on ${doc.host || ''}`]];
  if (doc.views.length) rows.push(['fingerprint of the step', num('/views/0/report/fingerprint', 'text')]);
  body.append(table('', ['', ''], rows));
  if (doc.command) {
    body.append(el('div', {class: 'tools'}, copyButton('Copy the command', () => doc.command)), el('pre', {id: 'command', tabindex: 0, 'aria-label': 'Command'}, doc.command));
  }
  const text = document.getElementById('document').textContent;
  body.append(el('div', {class: 'tools'}, el('button', {type: 'button', id: 'download', onclick: () => {
    const link = el('a', {href: URL.createObjectURL(new Blob([text], {type: 'application/json'})), download: 'foreshard-report.json'});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }}, 'Save this report’s JSON'), el('span', {class: 'small'}, 'Every number above is in it.')));
}
