'use strict';
// Blocks of recommend (what to buy or rent) and of scale (one machine in many sizes).

const buy = {choice: 0, machine: null};
const buyDrawers = [];  // blocks about the choice that is looked at
const machineColours = ['c-forward', 'c-reduce', 'c-optimizer', 'c-gather', 'c-all', 'c-loss'];  // of as many; the others are grey

function planDetails(plan, place) {
  const text = JSON.stringify(plan, null, 2);
  return el('details', {}, el('summary', {}, `Plan of ${place}`),
      el('div', {class: 'tools'}, copyButton('Copy the plan', () => text), el('span', {class: 'small'}, 'A file that --plan takes.')),
      el('pre', {class: 'plan', tabindex: 0, 'aria-label': `Plan of ${place}`}, text));
}

function rejectedTable(list) {
  if (!list.length) return null;
  return el('details', {}, el('summary', {}, `${list.length} looked at and no choice`),
      table('', ['cluster', 'why'], list.map(r => [r.cluster, r.reason])));
}

// Why nothing can be chosen, and the way on.
function drawNothing(body, model, list) {
  const reasons = d3.rollups ? d3.rollups(list, l => l.map(r => r.cluster), r => r.reason) : d3.nest().key(r => r.reason).rollup(l => l.map(r => r.cluster)).entries(list).map(e => [e.key, e.value]);
  const way = list.length ? `foreshard search --model ${model} --cluster ${list[list.length - 1].cluster}` : null;
  body.append(advice('advice', [...reasons.map(([reason, clusters]) => `${clusters.slice(0, 8).join(', ')}${clusters.length > 8 ? ` and ${clusters.length - 8} more` : ''}: ${reason}.`),
    way ? el('span', {}, 'By how much, and what would make it fit: ', el('code', {}, way)) : null,
    'More GPUs of a machine, or machines with more memory: ask for more sizes (--gpus), or leave --cluster out and the whole catalogue is looked through.']) || '');
}

// --- recommend ---

function choose(i) {
  buy.choice = i;
  for (const draw of buyDrawers) draw();
  say(`The blocks show ${doc.recommend.choices[i].cluster}`);
}

function meets(c) { return c.meets_deadline && c.within_budget; }

function termsWords() {
  const words = el('span', {}, num('/recommend/terms/tokens', 'amount'), ' tokens');
  if (doc.recommend.terms.deadline_s != null) words.append(' in ', num('/recommend/terms/deadline_s', 'wall'));
  if (doc.recommend.terms.budget_usd != null) words.append(' for ', num('/recommend/terms/budget_usd', 'dollars'));
  return words;
}

function remedyWords(path, remedy) {
  const to = {deadline_s: 'wall', budget_usd: 'dollars', gpus: 'count', tokens: 'amount'}[remedy.change];
  const name = {deadline_s: 'a deadline of ', budget_usd: 'a budget of ', gpus: 'more GPUs: ', tokens: 'fewer tokens: '}[remedy.change];
  const line = el('li', {}, name, num(`${path}/to`, to), ` on ${remedy.cluster}`);
  if (remedy.global_batch) line.append(', steps of ', num(`${path}/global_batch`, 'count'), ' sequences');
  if (remedy.days != null) line.append(': ', num(`${path}/days`, 'd'), ', ', num(`${path}/dollars`, 'dollars'));
  return line;
}

function drawBuyVerdict(body) {
  const r = doc.recommend;
  const asked = el('p', {class: 'note'}, num('/recommend/parameters', 'amount'), ' parameters, ', termsWords(), '; every candidate with its own best plan');
  if (!r.choices.length) {
    body.append(headline('meets', false, 'No candidate can run it'), asked);
    drawNothing(body, r.model, r.rejected);
    return;
  }
  const c = r.choices[buy.choice], path = `/recommend/choices/${buy.choice}`;
  const verdict = meets(c) ? 'Meets the terms' : !c.meets_deadline ? 'Too late' : 'Over the budget';
  const odds = c.memory.fit_probability != null || r.terms.deadline_s != null;  // the probability of a choice is of all that it has to meet
  body.append(headline('meets', meets(c), verdict, ': ', el('strong', {id: 'choice-shown'}, c.cluster), odds ? [' with ', num(`${path}/probability`, 'odds')] : '', ', ',
      num(`${path}/days/value`, 'd'), ', ', num(`${path}/dollars/value`, 'dollars')));
  if (buy.choice) body.append(el('p', {}, 'Not the first choice: ', el('button', {type: 'button', class: 'link', onclick: () => choose(0)}, `back to ${r.choices[0].cluster}`)));
  if (!r.meets_terms && r.would_meet.length) {
    body.append(el('div', {class: 'advice'}, el('p', {}, 'The terms would be met with any one of'), el('ul', {id: 'would-meet'}, r.would_meet.map((w, i) => remedyWords(`/recommend/would_meet/${i}`, w)))));
  }
  body.append(asked);
  const cards = el('div', {class: 'cards'});
  const quantity = (what, key, unit) => cards.append(card(what, num(`${path}/${key}/value`, unit), el('span', {}, interval(`${path}/${key}`, unit), ' ', evidence(`${path}/${key}`))));
  quantity('Wall clock', 'days', 'd');
  quantity('Cost', 'dollars', 'dollars');
  if (odds) {
    const part = (words, key) => at(`${path}/${key}`) == null ? null : [words, num(`${path}/${key}`, 'odds')];
    const parts = [part('fits ', 'memory/fit_probability'), part('in time ', 'probability_in_time'), r.terms.budget_usd == null ? null : part('within the budget ', 'probability_within_budget')].filter(p => p);
    cards.append(card('Odds of all', num(`${path}/probability`, 'odds'), el('span', {}, parts.map((p, i) => i ? [', ', ...p] : p).flat())));
  }
  quantity('Per million tokens', 'dollars_per_million_tokens', 'usd');
  quantity('MFU', 'mfu', 'ratio');
  quantity('Goodput', 'goodput', 'ratio');
  quantity('Energy', 'energy_kwh', 'energy');
  body.append(cards);
  const x = c.interruptions;
  body.append(el('dl', {class: 'facts'}, [
    ['Plan', c.plan ? planWords(c.plan) : 'in the answer as JSON; there is no room for it here'],
    ['Step', el('span', {}, num(`${path}/step_s/value`, 's'), ' (', interval(`${path}/step_s`, 's'), '), ', num(`${path}/exposed_communication`, 'ratio'), ' exposed')],
    ['Memory', el('span', {}, num(`${path}/memory/margin_bytes`, 'B'), ' to spare of ', num(`${path}/memory/capacity_bytes`, 'B'), ', ', num(`${path}/memory/peak_reserved_bytes`, 'B'), ' reserved')],
    ['Failures', x.mean_between_s == null ? 'none' : el('span', {}, 'one every ', num(`${path}/interruptions/mean_between_s`, 'wall'), ', ', num(`${path}/interruptions/restart_s`, 'wall'), ' to restart')],
    ['Checkpoints', x.checkpoint_interval_s == null ? 'none' : el('span', {}, num(`${path}/interruptions/checkpoint_bytes`, 'B'), ' in ', num(`${path}/interruptions/checkpoint_s`, 's'), ', every ', num(`${path}/interruptions/checkpoint_interval_s`, 'wall'))],
    ['Price', el('span', {}, num(`${path}/price/usd_per_gpu_hour/value`, 'usd'), ` per GPU-hour (${[c.price.date, c.price.source].filter(Boolean).join(', ')}) `, evidence(`${path}/price/usd_per_gpu_hour`))],
  ].map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value)))));
  if (c.plan) body.append(planDetails(c.plan, c.cluster));
}

function drawChoices(body) {
  const r = doc.recommend;
  const box = el('div', r.choices.length > 24 ? {class: 'tall', tabindex: 0, 'aria-label': 'Candidates'} : {});
  body.append(box);
  box.append(table('In the order of the answer: those that meet the terms first, then by dollars. A cluster shows its details above.',
      ['cluster', '#days', '#90 %', '#cost', '#90 %', '#odds', '#to spare', '#per 1M tokens', '#step', '#MFU', '#goodput', '#energy', 'terms'],
      r.choices.map((c, i) => {
        const path = `/recommend/choices/${i}`;
        return [el('button', {type: 'button', class: 'link', 'data-choice': i, 'aria-pressed': String(i === buy.choice), onclick: () => choose(i)}, c.cluster),
          num(`${path}/days/value`, 'd'), interval(`${path}/days`, 'd'), num(`${path}/dollars/value`, 'dollars'), interval(`${path}/dollars`, 'dollars'),
          num(`${path}/probability`, 'odds'), num(`${path}/memory/margin_bytes`, 'B'), num(`${path}/dollars_per_million_tokens/value`, 'usd'), num(`${path}/step_s/value`, 's'),
          num(`${path}/mfu/value`, 'ratio'), num(`${path}/goodput/value`, 'ratio'), num(`${path}/energy_kwh/value`, 'energy'), meets(c) ? 'met' : !c.meets_deadline ? 'too late' : 'over the budget'];
      })));
  const rejected = rejectedTable(r.rejected);
  if (rejected) body.append(rejected);
}

// No other choice is both sooner and cheaper.
function undominated(list) {
  const sorted = [...list].sort((a, b) => a.days - b.days || a.dollars - b.dollars);
  let least = Infinity;
  return sorted.filter(d => d.dollars < least && (least = d.dollars, true));
}

function padded([low, high], by) { return [low / by, high * by]; }

function drawCostAndTime(body) {
  const r = doc.recommend;
  const data = r.choices.map((c, i) => ({i, c, days: c.days.value, dollars: c.dollars.value}));
  const f = frame(body, 380, {top: 26, right: 24, bottom: 46, left: 76}, 'Cost against wall clock of every choice, with 90 % intervals');
  const deadline = r.terms.deadline_s == null ? null : r.terms.deadline_s / 86400, budget = r.terms.budget_usd;
  const extent = (key, line) => padded(d3.extent([...data.flatMap(d => [d.c[key].low, d.c[key].high]), ...(line > 0 ? [line] : [])]), 1.15);
  const x = d3.scaleLog().domain(extent('days', deadline)).range([0, f.width]);
  const y = d3.scaleLog().domain(extent('dollars', budget)).range([f.height, 0]);
  axes(f, x, y, 'wall clock, days', 'cost, USD', {bottom: d3.axisBottom(x).tickValues(logTicks(x.domain())).tickFormat(v => significant(v, 2)).tickSizeOuter(0),
    left: d3.axisLeft(y).tickValues(logTicks(y.domain())).tickFormat(v => textOf(v, 'dollars').replace(/\.0+(?= |$)/, '')).tickSizeOuter(0)});
  const limit = (x1, y1, x2, y2) => f.inner.append('line').attr('class', 'capacity').attr('x1', x1).attr('x2', x2).attr('y1', y1).attr('y2', y2);
  const words = [];
  if (deadline) { limit(x(deadline), 0, x(deadline), f.height); words.push(['deadline: to the right is too late', 'var(--bad)']); }
  if (budget) { limit(0, y(budget), f.width, y(budget)); words.push(['budget: above is too much', 'var(--bad)']); }
  const best = undominated(data);
  f.inner.append('path').datum(best).attr('fill', 'none').attr('stroke', 'var(--accent)').attr('stroke-width', 1.5).attr('d', d3.line().x(d => x(d.days)).y(d => y(d.dollars)).curve(d3.curveStepAfter));
  const g = f.inner.selectAll('g.choice').data(data).enter().append('g').attr('class', 'choice');
  const onFront = new Set(best.map(d => d.i));
  const lit = d => onFront.has(d.i) || d.i === buy.choice;  // the others are grey
  g.classed('lit', lit);
  const bar = (x1, x2, y1, y2) => g.append('line').attr('x1', x1).attr('x2', x2).attr('y1', y1).attr('y2', y2);
  bar(d => x(d.c.days.low), d => x(d.c.days.high), d => y(d.dollars), d => y(d.dollars));
  bar(d => x(d.days), d => x(d.days), d => y(d.c.dollars.low), d => y(d.c.dollars.high));
  const tone = d => lit(d) ? 'var(--accent)' : 'var(--faint)';
  const marks = g.append('circle').attr('class', 'choice').attr('data-choice', d => d.i).attr('cx', d => x(d.days)).attr('cy', d => y(d.dollars)).attr('r', d => lit(d) ? 6 : 3.5)
      .attr('fill', d => meets(d.c) ? tone(d) : 'var(--paper)').attr('stroke', tone).attr('stroke-width', d => lit(d) ? 2 : 1).classed('chosen', d => d.i === buy.choice);
  reachable(marks, d => `${d.c.cluster}\n${textOf(d.days, 'd')} (${textOf(d.c.days.low, 'd')} to ${textOf(d.c.days.high, 'd')})\n${textOf(d.dollars, 'dollars')} (${textOf(d.c.dollars.low, 'dollars')} to ${textOf(d.c.dollars.high, 'dollars')})\n${meets(d.c) ? 'meets the terms' : 'does not meet the terms'}`, d => choose(d.i));
  g.filter(lit).raise();
  const chosen = data[buy.choice];
  place(f, [chosen, ...best.filter(d => d !== chosen)].map(d => ({x: x(d.days), y: y(d.dollars), text: d.c.cluster})));
  body.append(legend([['the line: no other choice is both sooner and cheaper', 'var(--accent)'], ...words]), el('p', {class: 'small'}, 'Filled marks meet the terms, hollow ones do not. Grey: something else is both sooner and cheaper; point at one to see its interval.'));
}

// The machines that are in colour: what was asked for, the choice's, and the others that nothing beats;
// all, where the colours suffice. In this order.
function litMachines(r) {
  const all = [...new Set(r.choices.map(c => c.machine))];
  if (all.length <= machineColours.length) return all;
  const front = undominated(r.choices.map(c => ({c, days: c.days.value, dollars: c.dollars.value}))).map(d => d.c.machine);
  return [...new Set([buy.machine, r.choices[buy.choice].machine, ...front].filter(m => m != null))].slice(0, machineColours.length);
}

// The largest size that was looked at is none.
function isKnee(m, d) { return d.c.gpus === m.sizes.knee_gpus && d !== m.points[m.points.length - 1]; }

function drawSizes(body) {
  const r = doc.recommend;
  const lit = litMachines(r);
  const machines = [...new Set(r.choices.map(c => c.machine))].map(machine => ({
    machine, lit: lit.includes(machine), colour: lit.includes(machine) ? `var(--${machineColours[lit.indexOf(machine)]})` : 'var(--faint)',
    points: r.choices.map((c, i) => ({c, i})).filter(d => d.c.machine === machine).sort((a, b) => a.c.gpus - b.c.gpus),
    sizes: r.machines.find(m => m.machine === machine) || {},
  })).sort((a, b) => a.lit - b.lit || lit.indexOf(b.machine) - lit.indexOf(a.machine));
  const all = r.choices;
  const f = frame(body, 380, {top: 26, right: 130, bottom: 46, left: 62}, 'Tokens per second against the number of GPUs, one line for each machine');
  const gpus = d3.extent(all, c => c.gpus);
  const x = d3.scaleLog().base(2).domain(gpus[0] < gpus[1] ? gpus : [gpus[0] / 2, gpus[0] * 2]).range([0, f.width]);
  const y = d3.scaleLog().domain(padded([d3.min(all, c => c.tokens_per_s.low), d3.max(all, c => c.tokens_per_s.high)], 1.1)).range([f.height, 0]);
  const octaves = Math.ceil(Math.log2(x.domain()[1] / x.domain()[0]));
  const step = Math.max(1, Math.ceil(octaves / (f.width / 70)));
  const ticks = d3.range(0, octaves + 1, step).map(k => x.domain()[0] * 2 ** k).filter(v => v <= x.domain()[1]);
  axes(f, x, y, 'GPUs', 'tokens/s of all GPUs', {bottom: d3.axisBottom(x).tickValues(ticks).tickFormat(v => textOf(v, 'count')).tickSizeOuter(0),
    left: d3.axisLeft(y).tickValues(logTicks(y.domain())).tickFormat(v => textOf(v, 'amount').replace(/\.0+(?= |$)/, '')).tickSizeOuter(0)});
  for (const m of machines) {
    const g = f.inner.append('g').attr('class', `machine${m.lit ? ' lit' : ''}`).attr('data-machine', m.machine).style('color', m.colour);
    g.append('path').datum(m.points).attr('fill', 'none').attr('stroke-dasharray', lit.indexOf(m.machine) % 2 === 1 ? '7 5' : null)  // lines may coincide
        .attr('d', d3.line().x(d => x(d.c.gpus)).y(d => y(d.c.tokens_per_s.value)));
    const marks = g.selectAll('circle').data(m.points).enter().append('circle').attr('cx', d => x(d.c.gpus)).attr('cy', d => y(d.c.tokens_per_s.value))
        .attr('r', d => (isKnee(m, d) ? 6 : 3) + m.lit).classed('knee', d => isKnee(m, d));
    reachable(marks, d => `${d.c.cluster}\n${textOf(d.c.tokens_per_s.value, 'amount')} tokens/s, MFU ${textOf(d.c.mfu.value, 'ratio')}\n${isKnee(m, d) ? 'the knee: beyond, a doubling brings less than 1.6 times as many' : ''}`, d => choose(d.i));
  }
  place(f, [...machines].reverse().map(m => {
    const last = m.points[m.points.length - 1].c;
    return {x: x(last.gpus), y: y(last.tokens_per_s.value), text: m.machine, kind: m.lit ? 'direct' : 'axis-title', tone: m.lit && machines.length > 1 ? m.colour : null, places: last.gpus === x.domain()[1] ? behind : m.lit ? [...behind, ...beside] : behind.slice(0, 1)};
  }));
  body.append(el('p', {class: 'small'}, machines.length > lit.length ? 'In colour: the machine of the choice and those that no other beats in both cost and time; choose one in the table to see it among them. ' : '',
      'Each mark is a forecast with its own best plan. Rings: the knee, beyond which a doubling brings less than 1.6 times the tokens per second.'));
  body.append(el('div', r.machines.length > 16 ? {class: 'tall low', tabindex: 0, 'aria-label': 'Machines'} : {}, table('', ['machine', '#smallest that fits', '#knee'], r.machines.map((m, i) => {
    const path = `/recommend/machines/${i}`;
    const name = el('button', {type: 'button', class: 'link', 'aria-pressed': String(m.machine === buy.machine), onclick: () => { buy.machine = m.machine; for (const draw of buyDrawers) draw(); }}, m.machine);
    return [name, m.smallest_gpus == null ? 'none' : num(`${path}/smallest_gpus`, 'count'), m.knee_gpus == null ? '–' : num(`${path}/knee_gpus`, 'count')];
  }))));
}

function drawWorth(body) {
  const list = doc.recommend.what_if.map((p, i) => ({p, i, name: `${p.property} ${p.change}`, worth: p.worth_usd_per_gpu_hour}));
  const rows = rowFrame(body, list, d => d.name, 'What a change of the machine may cost per GPU and hour',
      [{text: d => textOf(d.worth, 'signed_usd'), path: d => `/recommend/what_if/${d.i}/worth_usd_per_gpu_hour`, unit: 'signed_usd'}]);
  const ends = [Math.min(0, d3.min(list, d => d.worth)), Math.max(0, d3.max(list, d => d.worth))];
  const x = d3.scaleLinear().domain(ends[0] < ends[1] ? ends : [-1, 1]).nice().range([0, rows.f.width]);
  axisBelow(rows.f, x, rows.height, 'worth, USD per GPU and hour', null);
  rows.g.append('rect').attr('x', d => x(Math.min(0, d.worth))).attr('y', rows.top).attr('height', rows.bar).attr('width', d => Math.abs(x(d.worth) - x(0)))
      .attr('fill', d => d.worth >= 0 ? 'var(--c-optimizer)' : 'var(--c-reduce)');
  rows.rule(x(0));
  reachable(rows.g, d => `${d.name}\n${textOf(d.p.days.value, 'd')}, ${textOf(d.p.dollars.value, 'dollars')}\nstep ${textOf(d.p.step_s.value, 's')}\nworth ${textOf(d.worth, 'signed_usd')} per GPU and hour`);
  body.append(el('details', {}, el('summary', {}, 'Days, dollars and plans'), table('The best plan is searched anew for each', ['change', '#days', '#cost', '#step', 'plan'], list.map(({p, i, name}) => {
    const path = `/recommend/what_if/${i}`;
    return [name, num(`${path}/days/value`, 'd'), num(`${path}/dollars/value`, 'dollars'), num(`${path}/step_s/value`, 's'), planWords(p.plan)];
  }))));
}

function drawTerms(body) {
  const t = doc.recommend.terms;
  const rows = [['parameters', num('/recommend/parameters', 'amount')], ['tokens', num('/recommend/terms/tokens', 'amount')],
    ['step', el('span', {}, 'at most ', num('/recommend/terms/most_sequences', 'count'), ' sequences of ', num('/recommend/terms/sequence', 'count'), ' tokens')],
    ['failures', el('span', {}, num('/recommend/terms/failures_per_gpu_day', 'plain'), ` per GPU and day (${t.failures_source})`)],
    ['checkpoints', el('span', {}, num('/recommend/terms/checkpoint_bytes_per_s_per_gpu', 'rate'), ' of each GPU to storage')],
    ['restart', num('/recommend/terms/restart_s', 'wall')],
    ['power', el('span', {}, 'servers draw ', num('/recommend/terms/server_power_over_gpu_limit', 'plain'), ' times their GPUs’ limit, buildings ', num('/recommend/terms/pue', 'plain'), ' times that')]];
  if (t.evaluate_every_steps > 0) rows.push(['evaluation', el('span', {}, num('/recommend/terms/evaluate_sequences', 'count'), ' sequences every ', num('/recommend/terms/evaluate_every_steps', 'count'), ' steps')]);
  body.append(table('', ['', ''], rows));
}

function drawBuyBlocks() {
  const r = doc.recommend, any = r.choices.length > 0;
  const follow = (id, title, note, draw) => block(id, title, note, draw, buyDrawers);
  follow('buy', doc.title, null, drawBuyVerdict);
  if (any) {
    follow('cost-time', 'Cost against time', 'Of the whole run, with failures, checkpoints and restarts.', drawCostAndTime);
    follow('choices', 'Candidates', null, drawChoices);
    follow('sizes', 'How far it scales', null, drawSizes);
  } else {
    const rejected = rejectedTable(r.rejected);
    if (rejected) block('choices', 'Candidates', null, body => body.append(rejected));
  }
  if (r.what_if && r.what_if.length) block('worth', 'Which property buys most', `Of ${r.choices[0].cluster}: what each change may cost per GPU and hour for the run to cost the same.`, drawWorth);
}

// --- scale ---

function drawScaleVerdict(body) {
  const s = doc.scale;
  const asked = el('p', {class: 'note'}, `${s.scaling === 'weak' ? 'Weak scaling: the step grows with the GPUs' : 'Strong scaling: the step stays'}; sequence ${s.sequence}; each size with its own best plan`);
  if (!s.points.length) {
    body.append(headline('knee', false, 'It fits on none of these sizes'), asked);
    drawNothing(body, s.model, s.rejected);
    return;
  }
  const last = s.points.length - 1;
  const knee = s.points.findIndex(p => p.gpus === s.knee_gpus);
  const bends = knee >= 0 && knee < last;
  const atKnee = bends ? knee : last;
  const cheapest = d3.scan(s.points, (a, b) => a.dollars_per_million_tokens - b.dollars_per_million_tokens);
  body.append(headline('knee', true, last === 0 ? 'One size' : bends ? el('span', {}, 'Scales to ', num('/scale/knee_gpus', 'count'), ' GPUs') : el('span', {}, 'No knee up to ', num(`/scale/points/${last}/gpus`, 'count'), ' GPUs'),
      last === 0 ? '' : bends ? ': beyond, a doubling brings less than 1.6 times the tokens per second' : ': every doubling brings 1.6 times the tokens per second or more'), asked);
  const path = i => `/scale/points/${i}`;
  body.append(el('div', {class: 'cards'},
      card(bends ? 'At the knee' : 'At the largest', el('span', {}, num(`${path(atKnee)}/tokens_per_s/value`, 'amount'), ''), 'tokens/s of all GPUs'),
      card('Efficiency there', num(`${path(atKnee)}/efficiency`, 'ratio'), el('span', {}, 'of ', num(`${path(0)}/gpus`, 'count'), ' GPUs’ tokens/s per GPU')),
      card('MFU there', num(`${path(atKnee)}/mfu/value`, 'ratio'), interval(`${path(atKnee)}/mfu`, 'ratio')),
      card('Cheapest', num(`${path(cheapest)}/dollars_per_million_tokens`, 'usd'), el('span', {}, 'per million tokens, on ', num(`${path(cheapest)}/gpus`, 'count'), ' GPUs'))));
}

function scaleAxis(f, points) {
  const gpus = d3.extent(points, p => p.gpus);
  const x = d3.scaleLog().base(2).domain(gpus[0] < gpus[1] ? gpus : [gpus[0] / 2, gpus[0] * 2]).range([0, f.width]);
  const every = Math.max(1, Math.ceil(points.length / (f.width / 62)));
  return {x, bottom: d3.axisBottom(x).tickValues(points.map(p => p.gpus).filter((p, i) => i % every === 0)).tickFormat(v => textOf(v, 'count')).tickSizeOuter(0)};
}

function kneeLine(f, x) {
  const s = doc.scale;
  if (s.knee_gpus == null || s.knee_gpus === s.points[s.points.length - 1].gpus) return;
  f.inner.append('line').attr('class', 'capacity').attr('x1', x(s.knee_gpus)).attr('x2', x(s.knee_gpus)).attr('y1', 0).attr('y2', f.height);
  place(f, [{x: x(s.knee_gpus), y: f.height, text: 'knee', places: [[6, -8, 'start'], [-6, -8, 'end']]}]);
}

function drawScaleCurve(body) {
  const points = doc.scale.points.map((p, i) => ({...p, i}));
  const f = frame(body, 340, {top: 26, right: 24, bottom: 46, left: 86}, 'Tokens per second against the number of GPUs');
  const {x, bottom} = scaleAxis(f, points);
  const first = points[0], linear = points.map(p => first.tokens_per_s.value * p.gpus / first.gpus);
  const y = d3.scaleLog().domain(padded([d3.min(points, p => p.tokens_per_s.low), Math.max(d3.max(linear), d3.max(points, p => p.tokens_per_s.high))], 1.1)).range([f.height, 0]);
  axes(f, x, y, 'GPUs', 'tokens/s of all GPUs, with 90 % interval', {bottom, left: d3.axisLeft(y).tickValues(logTicks(y.domain())).tickFormat(v => textOf(v, 'amount').replace(/\.0+(?= |$)/, '')).tickSizeOuter(0)});
  f.inner.append('path').datum(points).attr('fill', 'none').attr('stroke', 'var(--soft)').attr('stroke-dasharray', '5 4').attr('d', d3.line().x(p => x(p.gpus)).y((p, i) => y(linear[i])));
  f.inner.append('path').datum(points).attr('fill', 'var(--accent)').attr('fill-opacity', 0.18).attr('d', d3.area().x(p => x(p.gpus)).y0(p => y(p.tokens_per_s.low)).y1(p => y(p.tokens_per_s.high)));
  f.inner.append('path').datum(points).attr('fill', 'none').attr('stroke', 'var(--accent)').attr('stroke-width', 2).attr('d', d3.line().x(p => x(p.gpus)).y(p => y(p.tokens_per_s.value)));
  kneeLine(f, x);
  const marks = f.inner.selectAll('circle').data(points).enter().append('circle').attr('data-point', p => p.i).attr('cx', p => x(p.gpus)).attr('cy', p => y(p.tokens_per_s.value)).attr('r', 5).attr('fill', 'var(--accent)');
  reachable(marks, p => `${textOf(p.gpus, 'count')} GPUs\n${textOf(p.tokens_per_s.value, 'amount')} tokens/s, ${textOf(p.efficiency, 'ratio')} efficient\n${planWords(p.plan)}`);
  body.append(legend([['the best plan of each size', 'var(--accent)'], ['dashed: linear from the smallest', 'var(--soft)']]));
}

function drawScaleShares(body) {
  const points = doc.scale.points;
  const split = el('div', {class: 'split'}), left = el('div'), right = el('div');
  split.append(left, right);
  body.append(split);
  left.append(el('h3', {}, 'Efficiency, MFU, exposed communication'));
  const f = frame(left, 280, {top: 26, right: 20, bottom: 46, left: 56}, 'Efficiency, MFU and exposed communication against the number of GPUs');
  const {x, bottom} = scaleAxis(f, points);
  const y = d3.scaleLinear().domain([0, Math.max(1, d3.max(points, p => p.efficiency))]).range([f.height, 0]);
  axes(f, x, y, 'GPUs', 'share', {bottom, left: d3.axisLeft(y).ticks(5, '%').tickSizeOuter(0)});
  const lines = [['efficiency', 'c-forward', '', p => p.efficiency], ['MFU', 'c-optimizer', '6 3', p => p.mfu.value], ['exposed', 'c-reduce', '2 3', p => p.exposed_communication]];
  for (const [, tone, dash, of] of lines) {
    f.inner.append('path').datum(points).attr('fill', 'none').attr('stroke', `var(--${tone})`).attr('stroke-width', 2).attr('stroke-dasharray', dash).attr('d', d3.line().x(p => x(p.gpus)).y(p => y(of(p))));
  }
  left.append(legend(lines.map(([name, tone]) => [name, `var(--${tone})`])));
  right.append(el('h3', {}, 'Cost of a million tokens'));
  const c = frame(right, 280, {top: 26, right: 20, bottom: 46, left: 66}, 'Dollars per million tokens against the number of GPUs');
  const along = scaleAxis(c, points);
  const dollars = d3.scaleLinear().domain([0, d3.max(points, p => p.dollars_per_million_tokens) * 1.08]).range([c.height, 0]);
  axes(c, along.x, dollars, 'GPUs', 'USD per million tokens', {bottom: along.bottom});
  c.inner.append('path').datum(points).attr('fill', 'none').attr('stroke', 'var(--accent)').attr('stroke-width', 2).attr('d', d3.line().x(p => along.x(p.gpus)).y(p => dollars(p.dollars_per_million_tokens)));
  const marks = c.inner.selectAll('circle').data(points).enter().append('circle').attr('cx', p => along.x(p.gpus)).attr('cy', p => dollars(p.dollars_per_million_tokens)).attr('r', 5).attr('fill', 'var(--accent)');
  reachable(marks, p => `${textOf(p.gpus, 'count')} GPUs\n${textOf(p.dollars_per_million_tokens, 'usd')} per million tokens`);
}

function drawScaleTable(body) {
  const s = doc.scale;
  body.append(table('', ['#GPUs', '#batch', '#step', '#90 %', '#tokens/s', '#efficiency', '#MFU', '#exposed', '#to spare', '#per 1M tokens', 'plan'], s.points.map((p, i) => {
    const path = `/scale/points/${i}`;
    return [num(`${path}/gpus`, 'count'), num(`${path}/global_batch`, 'count'), num(`${path}/step_s/value`, 's'), interval(`${path}/step_s`, 's'), num(`${path}/tokens_per_s/value`, 'count'),
      num(`${path}/efficiency`, 'ratio'), num(`${path}/mfu/value`, 'ratio'), num(`${path}/exposed_communication`, 'ratio'), num(`${path}/margin_bytes`, 'B'), num(`${path}/dollars_per_million_tokens`, 'usd'), planWords(p.plan)];
  })));
  const knee = s.points.find(p => p.gpus === s.knee_gpus);
  if (knee) body.append(planDetails(knee.plan, knee.cluster));
  const rejected = rejectedTable(s.rejected);
  if (rejected) body.append(rejected);
}

function drawScaleBlocks() {
  const s = doc.scale;
  block('scale', doc.title, null, drawScaleVerdict);
  if (s.points.length) {
    block('curve', 'Tokens per second', null, drawScaleCurve);
    block('shares', 'What becomes of the GPUs', null, drawScaleShares);
  }
  block('points', 'Sizes', null, drawScaleTable);
}
