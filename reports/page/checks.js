'use strict';
// Blocks that hold forecasts against measurements: one run, or tables of many.

// A log-log plot of predicted against measured with the line on which they are equal.
function scatter(body, data, unit, label, titles) {
  const f = frame(body, 420, {top: 26, right: 24, bottom: 46, left: 80}, label);
  const values = data.map(d => d.measured).concat(data.map(d => d.predicted), data.filter(d => d.low).map(d => d.low), data.filter(d => d.high).map(d => d.high)).filter(v => v > 0);
  const domain = [d3.min(values) / 1.25, d3.max(values) * 1.25];
  const x = d3.scaleLog().domain(domain).range([0, f.width]), y = d3.scaleLog().domain(domain).range([f.height, 0]);
  const ticks = logTicks(domain);
  axes(f, x, y, titles[0], titles[1], {bottom: d3.axisBottom(x).tickValues(ticks.filter((t, i) => i % Math.ceil(ticks.length * 62 / f.width) === 0)).tickFormat(v => unit(v)).tickSizeOuter(0), left: d3.axisLeft(y).tickValues(ticks).tickFormat(v => unit(v)).tickSizeOuter(0)});
  const line = (factor, dash) => f.inner.append('path').attr('fill', 'none').attr('stroke', 'var(--soft)').attr('stroke-dasharray', dash)
      .attr('d', d3.line()([[x(Math.max(domain[0], domain[0] / factor)), y(Math.max(domain[0], domain[0] * factor))], [x(Math.min(domain[1], domain[1] / factor)), y(Math.min(domain[1], domain[1] * factor))]]));
  line(1, null);
  line(1.1, '3 4');
  line(1 / 1.1, '3 4');
  const bars = data.filter(d => d.low > 0 && d.high > d.low);
  f.inner.append('g').selectAll('line').data(bars).enter().append('line').attr('x1', d => x(d.measured)).attr('x2', d => x(d.measured)).attr('y1', d => y(d.low)).attr('y2', d => y(d.high))
      .attr('stroke', d => d.colour).attr('stroke-opacity', 0.45);
  return f.inner.append('g').selectAll('circle').data(data).enter().append('circle').attr('cx', d => x(d.measured)).attr('cy', d => y(d.predicted)).attr('r', 4)
      .attr('fill', d => d.colour).attr('fill-opacity', 0.75);
}

// How many measurements lie in the intervals of each level, against the diagonal of honest ones.
function drawReliability(body, points) {
  body.append(el('h3', {}, 'Do intervals hold what they say?'),
      el('p', {class: 'note'}, 'Below the diagonal they are too narrow, above it too wide.'));
  const f = frame(body, 320, {top: 26, right: 24, bottom: 46, left: 80}, 'Share of measurements within intervals of each level');
  const x = d3.scaleLinear().domain([0, 1]).range([0, f.width]), y = d3.scaleLinear().domain([0, 1]).range([f.height, 0]);
  axes(f, x, y, 'interval', 'measurements inside', {bottom: d3.axisBottom(x).ticks(5, '%').tickSizeOuter(0), left: d3.axisLeft(y).ticks(5, '%').tickSizeOuter(0)});
  const path = (data, stroke, dash) => f.inner.append('path').attr('fill', 'none').attr('stroke', stroke).attr('stroke-dasharray', dash).attr('d', d3.line()(data.map(d => [x(d[0]), y(d[1])])));
  path([[0, 0], [1, 1]], 'var(--soft)', '3 4');
  path([[0, 0]].concat(points.map(p => [p.level, p.covered])), groupColours[0], null);
  const marks = f.inner.append('g').selectAll('circle').data(points).enter().append('circle').attr('cx', p => x(p.level)).attr('cy', p => y(p.covered)).attr('r', 4).attr('fill', groupColours[0]);
  reachable(marks, p => `${textOf(p.covered, 'ratio')} of measurements lie in intervals of ${textOf(p.level, 'ratio')}`);
}

// --- one run ---

function drawValidation(body) {
  const v = doc.validation, path = '/validation';
  // [words, path of the error, path of what is allowed] of every figure that is judged.
  const judged = [['step time', 'step_error', 'step_error'], ['exposed communication', 'exposed_communication_error', 'exposed_communication_error'],
    ...(v.memory || []).map((m, i) => m.judged ? [`memory: ${m.what}`, `memory/${i}/error`, 'memory_error'] : null)]
      .filter(j => j && at(`${path}/${j[1]}`) != null && v.tolerances[j[2]] != null).map(([words, error, allowed]) => ({words, error: `${path}/${error}`, allowed: `${path}/tolerances/${allowed}`}));
  const isOff = j => Math.abs(at(j.error)) > at(j.allowed);
  const off = judged.filter(isOff), named = off.length ? off : judged;
  body.append(headline('passed', v.passed, v.passed ? 'Passed' : 'Failed', ': ',
      named.map((j, i) => [i ? '; ' : '', `${j.words} `, num(j.error, 'change'), ' (', num(j.allowed, 'ratio'), ' allowed)']).flat()),
  el('p', {class: 'note'}, 'The forecast against the run: errors are forecast / measured − 1.'));
  const rows = [['step time', num(`${path}/step/predicted_s`, 's'), num(`${path}/step/measured_s`, 's'), num(`${path}/step_error`, 'change'), num(`${path}/tolerances/step_error`, 'ratio')],
    ['exposed communication, of the step', num(`${path}/exposed_communication/predicted_s`, 's'), num(`${path}/exposed_communication/measured_s`, 's'),
      num(`${path}/exposed_communication_error`, 'change'), num(`${path}/tolerances/exposed_communication_error`, 'ratio')]];
  (v.memory || []).forEach((m, i) => rows.push([`memory: ${m.what}`, num(`${path}/memory/${i}/predicted_bytes`, 'B'), m.error == null && !m.measured_bytes ? 'not measured' : num(`${path}/memory/${i}/measured_bytes`, 'B'),
    m.error == null ? '–' : num(`${path}/memory/${i}/error`, 'change'), m.judged ? num(`${path}/tolerances/memory_error`, 'ratio') : 'not judged']));
  body.append(table('', ['', '#forecast', '#measured', '#error', '#allowed'], rows));
  const split = el('div', {class: 'split wide-left'}), left = el('div'), right = el('div');
  split.append(left, right);
  body.append(split);
  if (v.scatter) {
    const s = v.scatter;
    const data = s.kind.map((kind, i) => ({i, kind, name: s.name[i], predicted: s.predicted_s[i], measured: s.measured_s[i], colour: `var(--${colourOf(kind)})`})).filter(d => d.predicted > 0 && d.measured > 0);
    left.append(el('h3', {}, 'Every event'), el('p', {class: 'note'}, 'Its own duration; on the line they are equal, the dashed lines are 10 % off.'));
    const marks = scatter(left, data, value => textOf(value, 's'), 'Predicted against measured duration of every event', ['measured', 'forecast']);
    const press = d => { if (chart.t) { select(d.i); document.getElementById('timeline-block').scrollIntoView({block: 'start'}); } };
    reachable(marks.attr('data-event', d => d.i), d => `${d.name}\nforecast ${textOf(d.predicted, 's')}, measured ${textOf(d.measured, 's')} (${textOf(d.predicted / d.measured - 1, 'change')})`, press);
  }
  right.append(el('h3', {}, 'By kind'), table('', ['kind', '#events', '#forecast', '#measured', '#error'], v.by_kind.map((k, i) => [k.kind, num(`${path}/by_kind/${i}/count`, 'count'),
    num(`${path}/by_kind/${i}/predicted_s`, 's'), num(`${path}/by_kind/${i}/measured_s`, 's'), num(`${path}/by_kind/${i}/error`, 'change')])));
  body.append(el('h3', {}, 'The ten that differ most'), table('', ['event', '#measured − forecast', 'because'], v.worst.map((w, i) => [
    view().timeline != null ? el('button', {type: 'button', class: 'link', onclick: () => { if (!chart.t) return; select(w.id); document.getElementById('timeline-block').scrollIntoView(); }}, w.name) : w.name,
    num(`${path}/worst/${i}/difference_s`, 's'), w.cause])));
  for (const note of (v.memory || []).filter(m => m.note).map(m => `${m.what}: ${m.note}`).concat(v.notes || [])) body.append(el('p', {class: 'small'}, note));
}

// --- tables of measurements ---

const groupColours = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#8c8c8c'];
const accuracyState = {by: null, group: null};

// Rows as objects, whether they come in columns (reports/page/page_accuracy.cpp) or as accuracy --json has them.
function accuracyRows(a) {
  if (a.rows) return a.rows;
  const c = a.columns;
  const word = (column, i) => column.words[column.column[i]];
  return c.id.map((id, i) => ({id, measured: c.measured[i], predicted: c.predicted[i], low: c.low[i], high: c.high[i],
    quantity: word(c.quantity, i), reason: word(c.reason, i), scored: word(c.reason, i) === '',
    error: c.measured[i] > 0 ? c.predicted[i] / c.measured[i] - 1 : 0,
    groups: Object.fromEntries(Object.entries(c.groups).map(([by, column]) => [by, word(column, i)]))}));
}

// A figure of a quantity, whose unit is the end of its name.
function quantityText(quantity) {
  if (/_us(_|$)/.test(quantity)) return v => textOf(v / 1e6, 's');
  if (/_s$/.test(quantity)) return v => textOf(v, 's');
  if (/_GiB$/.test(quantity)) return v => `${significant(v, 3)} GiB`;
  return v => significant(v, 3);
}

function drawAccuracy(body) {
  const a = doc.accuracy, s = '/accuracy/summary';
  a.rows = accuracyRows(a);
  body.append(el('p', {class: 'headline'}, el('strong', {id: 'accuracy-verdict'}, a.summary.scored ? ['Half of ', num(`${s}/scored`, 'count'), ' forecasts are within ', num(`${s}/median_abs_error`, 'ratio')] : 'No row is scored'),
      a.summary.scored ? [', nine of ten within ', num(`${s}/p90_abs_error`, 'ratio'), '; ', num(`${s}/coverage`, 'ratio'), ' lie in their 90 % intervals'] : ''),
  el('p', {class: 'note'}, 'Predicted / measured − 1 of every row; a positive error is a forecast that is too slow.'));
  body.append(el('div', {class: 'cards'},
      card('Median |error|', num(`${s}/median_abs_error`, 'ratio'), el('span', {}, num(`${s}/scored`, 'count'), ' of ', num(`${s}/rows`, 'count'), ' rows scored')),
      card('90 % below', num(`${s}/p90_abs_error`, 'ratio'), 'of |predicted/measured − 1|'),
      card('Bias', num(`${s}/bias`, 'change'), 'median signed error'),
      card('Coverage', num(`${s}/coverage`, 'ratio'), 'of measurements within the 90 % interval'),
      card('Half width', num(`${s}/half_width`, 'ratio'), 'of the intervals, median')));
  if (a.columns && a.columns.stride > 1) body.append(el('p', {class: 'note'}, 'Charts show one row of every ', num('/accuracy/columns/stride', 'count'), '; figures are of all.'));
  if (a.balanced && a.balanced.groups > 1) {
    body.append(el('p', {class: 'note'}, 'With every ', a.balanced.by, ' counting the same (', num('/accuracy/balanced/groups', 'count'), ' of them): median ',
        num('/accuracy/balanced/median_abs_error', 'ratio'), ', 90 % below ', num('/accuracy/balanced/p90_abs_error', 'ratio'), ', bias ', num('/accuracy/balanced/bias', 'change'), '.'));
  }
  const kinds = [...new Set(a.groups.map(g => g.by))];
  const quantities = [...new Set(a.rows.map(r => r.quantity))];
  const host = el('div');
  accuracyState.by = accuracyState.by || kinds[0] || null;
  const redraw = () => { host.replaceChildren(); drawAccuracyCharts(host, a, quantities); };
  if (kinds.length > 1) {
    const pick = el('select', {'aria-label': 'Group by', id: 'group-by', onchange: event => { accuracyState.by = event.target.value; accuracyState.group = null; redraw(); }},
        kinds.map(k => el('option', {value: k}, k)));
    body.append(el('div', {class: 'tools'}, el('label', {class: 'small'}, 'Group by ', pick)));
  }
  body.append(host);
  redraw();
  if (a.reliability && a.summary.scored) drawReliability(body, a.reliability);
}

function drawAccuracyCharts(host, a, quantities) {
  const by = accuracyState.by;
  const groups = a.groups.map((g, i) => ({g, i})).filter(d => d.g.by === by).sort((p, q) => q.g.scored - p.g.scored);
  const rank = new Map(groups.map((d, k) => [d.g.group, Math.min(k, groupColours.length - 1)]));
  const groupOf = row => row.groups ? row.groups[by] : null;
  const chosen = row => accuracyState.group == null || groupOf(row) === accuracyState.group;
  const scored = a.rows.map((r, i) => ({...r, i, colour: groupColours[rank.has(groupOf(r)) ? rank.get(groupOf(r)) : 6]})).filter(r => r.scored && r.measured > 0 && r.predicted > 0);
  if (groups.length > 1) host.append(legend(groups.slice(0, 6).map((d, k) => [d.g.group, groupColours[k]]).concat(groups.length > 6 ? [['others', groupColours[6]]] : [])));
  const shown = quantities.filter(q => scored.some(r => r.quantity === q && chosen(r)));
  const charts = el('div', {class: shown.length > 1 ? 'split' : null});
  host.append(charts);
  for (const quantity of shown) {
    const data = scored.filter(r => r.quantity === quantity && chosen(r));
    const half = el('div');
    charts.append(half);
    half.append(el('h3', {}, `${quantity}: forecast against measurement`));
    const unit = quantityText(quantity);
    const marks = scatter(half, data, unit, `Forecasts of ${quantity} against measurements`, ['measured', 'forecast, with 90 % interval']);
    reachable(marks.attr('data-row', d => d.i), d => `${d.id}\nforecast ${unit(d.predicted)} (${unit(d.low)} to ${unit(d.high)}), measured ${unit(d.measured)}\nerror ${textOf(d.error, 'change')}`);
  }
  drawErrorStrips(host, groups, scored, groupOf);
  const rows = groups.map(({g, i}) => {
    const path = `/accuracy/groups/${i}`;
    const name = el('button', {type: 'button', class: 'link', 'aria-pressed': String(accuracyState.group === g.group), onclick: () => {
      accuracyState.group = accuracyState.group === g.group ? null : g.group;
      host.replaceChildren();
      drawAccuracyCharts(host, a, quantities);
    }}, g.group);
    return [name, num(`${path}/rows`, 'count'), num(`${path}/scored`, 'count'), num(`${path}/median_abs_error`, 'ratio'), num(`${path}/p90_abs_error`, 'ratio'), num(`${path}/bias`, 'change'),
      num(`${path}/coverage`, 'ratio'), num(`${path}/half_width`, 'ratio')];
  });
  if (rows.length) host.append(el('h3', {}, `By ${by}`), el('p', {class: 'note'}, 'Choose a group to see it alone in the charts.'), table('', [by, '#rows', '#scored', '#median |error|', '#90 % below', '#bias', '#coverage', '#half width'], rows));
  const left = a.rows.map((r, i) => ({r, i})).filter(d => !d.r.scored);
  if (left.length) {
    host.append(el('details', {}, el('summary', {}, 'Rows that are not scored'), table('', ['row', 'quantity', 'why'], left.slice(0, 400).map(({r}) => [r.id, r.quantity, r.reason]))));
  }
}

// Signed errors, one strip per group.
function drawErrorStrips(host, groups, scored, groupOf) {
  const strips = groups.slice(0, 24).map(d => ({...d, rows: scored.filter(r => groupOf(r) === d.g.group)})).filter(d => d.rows.length);
  if (!strips.length) return;
  host.append(el('h3', {}, 'Signed errors by group'), el('p', {class: 'note'}, 'Each dot a row; the bar its group’s median. Right of the line the forecast is too slow (predicted above measured).'));
  const rows = rowFrame(host, strips, d => d.g.group, 'Signed errors of the scored rows, by group');
  const worst = Math.max(0.1, d3.quantile(scored.map(r => Math.abs(r.error)).sort(d3.ascending), 0.98) || 0.1);
  const x = d3.scaleLinear().domain([-worst, worst]).range([0, rows.f.width]).clamp(true);
  axisBelow(rows.f, x, rows.height, 'predicted / measured − 1', v => textOf(v, 'change'));
  rows.rule(x(0));
  const marks = rows.g.selectAll('circle').data(d => d.rows).enter().append('circle').attr('cx', d => x(d.error)).attr('cy', rows.top + rows.bar / 2).attr('r', 3.2).attr('fill', d => d.colour).attr('fill-opacity', 0.6);
  marks.append('title').text(d => `${d.id}: ${textOf(d.error, 'change')}`);
  rows.g.append('rect').attr('x', d => x(d.g.bias) - 1.5).attr('y', rows.top - 1).attr('width', 3).attr('height', rows.bar + 2).attr('fill', 'var(--ink)');
}
