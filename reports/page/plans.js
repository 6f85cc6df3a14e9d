'use strict';
// Blocks about other plans: heatmap, time against memory, why the best won, scaling.

function show(viewIndex) {
  if (viewIndex == null || viewIndex === state.view) return;
  state.view = viewIndex;
  state.event = null;
  document.getElementById('view').value = String(viewIndex);
  for (const draw of drawers) draw();
  say(`The blocks show ${view().label}`);
}

// --- heatmap ---

const heatColours = ['#f7fbff', '#08519c'];  // light to dark blue: dark is fast
function heated(node, seconds, times) {
  const fastest = d3.min(times), slowest = d3.max(times);
  const share = slowest > fastest ? (seconds - fastest) / (slowest - fastest) : 0;
  if (seconds === fastest) node.append(' ★');
  node.style.background = d3.interpolateRgb(heatColours[1], heatColours[0])(share);
  node.style.color = share < 0.25 ? '#fff' : '#111';
  return node;
}

function drawHeatmap(body) {
  const cells = doc.search.heatmap;
  const words = p => p.words || `${p.forward}/${p.backward}`;
  const shards = [...new Set(cells.map(c => c.shard))], prefetches = [...new Set(cells.map(c => words(c.prefetch)))];
  const times = cells.filter(c => c.seconds != null).map(c => c.seconds);
  const button = (cell, i) => {
    if (cell.seconds == null) return el('div', {class: 'none', title: 'no plan with these fits'}, 'no fit');
    const label = `shard ${cell.shard}, prefetch ${words(cell.prefetch)}: ${textOf(cell.seconds, 's')}${cell.view == null ? '' : ', show this plan'}`;
    const b = el('button', {type: 'button', 'data-cell': i, 'data-view': cell.view, 'aria-pressed': String(cell.view != null && cell.view === state.view),
      'aria-label': label, disabled: cell.view == null, onclick: () => show(cell.view)},
    num(`/search/heatmap/${i}/seconds`, 's'));
    return heated(b, cell.seconds, times);
  };
  const rows = shards.map(shard => el('tr', {}, el('th', {scope: 'row', class: 'n'}, num(`/search/heatmap/${cells.findIndex(c => c.shard === shard)}/shard`, 'text')),
      prefetches.map(p => {
        const i = cells.findIndex(c => c.shard === shard && words(c.prefetch) === p);
        return el('td', {}, i < 0 ? '' : button(cells[i], i));
      })));
  body.append(el('p', {class: 'note'}, num('/search/enumerated', 'count'), ' plans: ', num('/search/rejected_memory', 'count'), ' do not fit, ',
      num('/search/simulated', 'count'), ' simulated', doc.search.pruned ? [', ', num('/search/pruned', 'count'), ' ruled out by a lower bound'] : '', ' in ', num('/search/seconds', 's'), '. A cell has the best step time over everything else (reshard, recompute, micro-batch); ',
      'dark is fast, ★ the fastest. Choose a cell: verdict, plan, memory, timeline and waterfall show its plan.'));
  body.append(el('div', {class: 'scroll'}, el('table', {class: 'heat', id: 'heatmap'},
      el('thead', {}, el('tr', {}, el('th', {scope: 'col', class: 'n'}, 'shard group'), prefetches.map(p => el('th', {scope: 'col'}, p.split('/')[0], p.includes('/') ? ['/', el('wbr'), p.split('/')[1]] : ''))),
          ), el('tbody', {}, rows)), el('p', {class: 'small'}, 'Columns: prefetch depth forward/backward, in units ahead; implicit: the host running ahead.')));
}

// --- any two axes ---

function drawAxes(body) {
  const cells = doc.search.meshes, times = cells.filter(c => c.seconds != null).map(c => c.seconds);
  const values = key => [...new Set(cells.map(c => c[key]))].sort((a, b) => a - b);
  const keys = ['tp', 'cp', 'ep', 'etp', 'pp'].sort((a, b) => values(b).length - values(a).length);
  const chosen = keys.slice(0, 2), map = el('div', {class: 'scroll'});
  const cell = (row, column) => {
    const some = cells.filter(c => c[chosen[0]] === row && c[chosen[1]] === column);
    const best = some.filter(c => c.seconds != null).sort((a, b) => a.seconds - b.seconds)[0];
    if (best == null) return some.length ? el('div', {class: 'none'}, 'no fit') : '';
    return heated(el('div', {class: 'tile'}, num(`/search/meshes/${cells.indexOf(best)}/seconds`, 's')), best.seconds, times);
  };
  const draw = () => map.replaceChildren(el('table', {class: 'heat', id: 'axes-map'},
      el('thead', {}, el('tr', {}, el('th', {class: 'n'}), values(chosen[1]).map(c => el('th', {scope: 'col'}, `${chosen[1]} ${c}`)))),
      el('tbody', {}, values(chosen[0]).map(r => el('tr', {}, el('th', {scope: 'row', class: 'n'}, `${chosen[0]} ${r}`),
          values(chosen[1]).map(c => el('td', {}, cell(r, c))))))));
  const pick = (i, words) => el('label', {}, words, el('select', {id: `axes-${i}`, onchange: e => { chosen[i] = e.target.value; draw(); }},
      keys.map(key => el('option', {value: key, selected: key === chosen[i]}, key))));
  draw();
  body.append(el('p', {}, pick(0, 'Rows '), pick(1, ' columns ')), map);
}

// --- time against memory ---

// What has to fit: reserved by the allocator, and what is outside it. Where that was not asked, of the view's report.
function totalOf(point) {
  if (point.total_bytes != null) return point.total_bytes;
  const memory = point.view != null && doc.views[point.view].report.memory;
  return memory ? memory.outside_allocator_bytes.value + memory.peak_reserved_bytes.value : point.peak_allocated_bytes;
}

function drawPareto(body) {
  const points = doc.search.pareto;
  const others = doc.views.map((v, i) => ({view: i, report: v.report})).filter(v => v.report.origin !== 'measured' && v.report.memory.fits)
      .map(v => ({view: v.view, gib: totalOf(v) / 2 ** 30, rate: v.report.step.tokens_per_s_per_gpu.value}));
  const f = frame(body, 300, {top: 26, right: 20, bottom: 46, left: 66}, 'Tokens per second against the memory per GPU of the plans found');
  const data = points.map((p, i) => ({i, gib: totalOf(p) / 2 ** 30, rate: p.tokens_per_s_per_gpu, p}));
  const all = data.concat(others);
  const capacity = doc.views.length && doc.views[0].report.memory.capacity_bytes / 2 ** 30;
  const x = d3.scaleLinear().domain([0, Math.max(capacity || 0, d3.max(all, d => d.gib)) * 1.03]).range([0, f.width]);
  const y = d3.scaleLinear().domain([d3.min(all, d => d.rate) * 0.94, d3.max(all, d => d.rate) * 1.04]).range([f.height, 0]);
  axes(f, x, y, 'memory in all, GiB per GPU', 'tokens/s per GPU');
  if (capacity) f.inner.append('line').attr('class', 'capacity').attr('x1', x(capacity)).attr('x2', x(capacity)).attr('y1', 0).attr('y2', f.height);
  f.inner.selectAll('circle.other').data(others).enter().append('circle').attr('class', 'other').attr('cx', d => x(d.gib)).attr('cy', d => y(d.rate)).attr('r', 3.5).attr('fill', 'var(--faint)');
  f.inner.append('path').datum([...data].sort((a, b) => a.gib - b.gib)).attr('fill', 'none').attr('stroke', 'var(--accent)').attr('stroke-width', 1.5)
      .attr('d', d3.line().x(d => x(d.gib)).y(d => y(d.rate)).curve(d3.curveStepAfter));
  const marks = f.inner.selectAll('circle.pareto').data(data).enter().append('circle').attr('class', 'pareto').attr('cx', d => x(d.gib)).attr('cy', d => y(d.rate)).attr('r', 6)
      .attr('fill', 'var(--accent)').attr('data-view', d => d.p.view).classed('chosen', d => d.p.view != null && d.p.view === state.view);
  reachable(marks, d => `${planWords(d.p.plan)}\n${textOf(d.p.seconds, 's')} per step, ${textOf(d.rate, 'count')} tokens/s per GPU\n${textOf(totalOf(d.p), 'B')} in all, ${textOf(d.p.peak_allocated_bytes, 'B')} allocated`, d => show(d.p.view));
  place(f, [...(capacity ? [{x: x(capacity), y: f.height, text: 'capacity', places: [[-6, -8, 'end'], [-6, -26, 'end'], [-6, 16 - f.height, 'end']]}] : []),
    ...data.map(d => ({x: x(d.gib), y: y(d.rate), text: textOf(d.p.seconds, 's')}))]);
  body.append(table('No plan is better in both than these; marks say the step', ['plan', '#step', '#tokens/s per GPU', '#memory in all', '#allocated'], points.map((p, i) => {
    const path = `/search/pareto/${i}`;
    const name = p.view == null ? planWords(p.plan) : el('button', {type: 'button', class: 'link', onclick: () => show(p.view)}, planWords(p.plan));
    return [name, num(`${path}/seconds`, 's'), num(`${path}/tokens_per_s_per_gpu`, 'count'), num(`${path}/total_bytes`, 'B'), num(`${path}/peak_allocated_bytes`, 'B')];
  })));
}

// --- why the best won ---

function drawNeighbours(body) {
  const list = doc.search.neighbours.map((n, i) => ({n, i}));
  body.append(el('p', {class: 'note'}, 'The best plan with one thing changed: how much longer its step takes, and what its memory does.'));
  body.append(table('', ['instead', '#step', '#peak allocated', 'verdict'], list.map(({n, i}) => {
    const path = `/search/neighbours/${i}`;
    const words = {simulated: '', does_not_fit: 'does not fit', not_divisible: 'not divisible', pruned: 'slower'}[n.verdict];
    return [n.changes.join(', '), n.verdict === 'simulated' ? num(`${path}/step_change`, 'change') : '–', n.verdict === 'not_divisible' ? '–' :
      el('span', {}, n.peak_change_bytes > 0 ? '+' : '', num(`${path}/peak_change_bytes`, 'B')), words];
  })));
}

// --- scaling ---

function drawScaling(body) {
  const all = doc.scaling.points;
  const points = all.map((p, i) => ({p, i})).filter(d => d.p.refused == null);
  const f = frame(body, 300, {top: 26, right: 24, bottom: 46, left: 66}, 'Tokens per second and GPU against the number of GPUs');
  const x = d3.scaleLog().base(2).domain(points.length > 1 ? d3.extent(points, d => d.p.gpus) : [points[0].p.gpus / 2, points[0].p.gpus * 2]).range([0, f.width]);
  const y = d3.scaleLinear().domain([0, d3.max(points, d => d.p.tokens_per_s_per_gpu.high) * 1.08]).range([f.height, 0]);
  axes(f, x, y, 'GPUs', 'tokens/s per GPU, with 90 % interval', {bottom: d3.axisBottom(x).tickValues(points.map(d => d.p.gpus)).tickFormat(v => textOf(v, 'count')).tickSizeOuter(0)});
  const best = d3.max(points, d => d.p.tokens_per_s_per_gpu.value);
  f.inner.append('line').attr('x1', 0).attr('x2', f.width).attr('y1', y(best)).attr('y2', y(best)).attr('stroke', 'var(--soft)').attr('stroke-dasharray', '5 4');
  f.inner.append('path').datum(points).attr('fill', 'var(--accent)').attr('fill-opacity', 0.18)
      .attr('d', d3.area().x(d => x(d.p.gpus)).y0(d => y(d.p.tokens_per_s_per_gpu.low)).y1(d => y(d.p.tokens_per_s_per_gpu.high)));
  f.inner.append('path').datum(points).attr('fill', 'none').attr('stroke', 'var(--accent)').attr('stroke-width', 2).attr('d', d3.line().x(d => x(d.p.gpus)).y(d => y(d.p.tokens_per_s_per_gpu.value)));
  const marks = f.inner.selectAll('circle').data(points).enter().append('circle').attr('cx', d => x(d.p.gpus)).attr('cy', d => y(d.p.tokens_per_s_per_gpu.value)).attr('r', 5)
      .attr('fill', d => d.p.fits ? 'var(--accent)' : 'var(--paper)').attr('stroke', 'var(--accent)').attr('stroke-width', 2);
  reachable(marks, d => `${textOf(d.p.gpus, 'count')} GPUs, shard ${d.p.shard} × replicate ${d.p.replicate}\n${textOf(d.p.seconds.value, 's')} per step, ${textOf(d.p.tokens_per_s_per_gpu.value, 'count')} tokens/s per GPU` +
      (d.p.fits ? '' : '\ndoes not fit'));
  place(f, [{x: f.width, y: y(best), kind: 'axis-title', text: 'linear scaling', places: [[0, -6, 'end'], [0, 18, 'end'], [0, 40, 'end']]}]);
  body.append(table('The same plan on other counts of GPUs, the batch of each GPU as it is; hollow marks do not fit', ['#GPUs', '#shard', '#replicate', '#step', '#tokens/s in all', '#tokens/s per GPU', '#exposed', '#memory in all', ''],
      all.map((p, i) => {
        const path = `/scaling/points/${i}`;
        const sizes = [num(`${path}/gpus`, 'count'), num(`${path}/shard`, 'count'), num(`${path}/replicate`, 'count')];
        if (p.refused != null) return [...sizes, '–', '–', '–', '–', '–', p.refused];
        return [...sizes, num(`${path}/seconds/value`, 's'), num(`${path}/tokens_per_s`, 'count'), num(`${path}/tokens_per_s_per_gpu/value`, 'count'),
          num(`${path}/exposed_communication_s/value`, 's'), num(`${path}/total_bytes`, 'B'), p.fits ? '' : 'does not fit'];
      })));
}
