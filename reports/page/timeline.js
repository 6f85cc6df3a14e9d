'use strict';
// The streams of one step: a canvas, so that 20,000 events draw in milliseconds.

// Names stand to the left of their lanes, or above them where it is narrow.
const axisHeight = 26;
let laneHeight = 30, labelWidth = 136, laneHead = 4;
const chart = {canvas: null, t: null, from: 0, to: 1, lane: 0, gap: null, box: null};

function drawTimeline() {
  const {canvas, t} = chart;
  if (!canvas || !t) return;
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  [laneHeight, labelWidth, laneHead] = width < narrow ? [42, 8, 20] : [30, 136, 4];
  const height = t.lanes.length * laneHeight + axisHeight;
  canvas.style.height = `${height}px`;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const g = canvas.getContext('2d');
  g.scale(ratio, ratio);
  g.font = '13px system-ui, sans-serif';
  g.textBaseline = 'middle';
  const x = time => labelWidth + (time - chart.from) / (chart.to - chart.from) * (width - labelWidth - 8);
  const ink = colour('ink'), soft = colour('soft'), line = colour('line');
  const fills = {};
  for (const sort of t.raw.sorts) fills[sort.kind] = colour(colourOf(sort.kind));
  fills.host = colour('c-host');
  const hatched = hatch(g, colour('hatch'));

  g.save();
  g.beginPath();
  g.rect(labelWidth, 0, width - labelWidth, height);
  g.clip();
  for (const tick of d3.scaleLinear().domain([chart.from, chart.to]).ticks(8)) {
    g.strokeStyle = line;
    g.beginPath();
    g.moveTo(x(tick), 0);
    g.lineTo(x(tick), height - axisHeight);
    g.stroke();
  }
  t.lanes.forEach((lane, l) => {
    const top = l * laneHeight + laneHead, tall = 22;
    const host = lane.name === 'host';
    const marks = [];
    let last = -1, lastFill = null;
    const paint = (i, begin, finish) => {
      const a = x(begin), b = x(finish);
      const fill = host ? fills.host : fills[kindOf(t, i)];
      const dim = state.highlight && !state.highlight.test(t, i) ? 0.18 : 1;
      if (b < last + 0.6 && fill === lastFill && dim === 1) return;  // within the pixel that is painted
      if (!host && t.arrive[i] > t.start[i] && x(t.arrive[i]) - a > 1) {  // waits for its communicator or peers
        g.globalAlpha = 0.35 * dim;
        g.fillStyle = fill;
        g.fillRect(a, top + tall / 3, x(t.arrive[i]) - a, tall / 3);
      }
      const from = host ? a : x(t.arrive[i]);
      g.globalAlpha = dim;
      g.fillStyle = fill;
      g.fillRect(from, top, Math.max(0.7, b - from - (b - from > 4 ? 0.7 : 0)), tall);
      if (!host && t.inPath[i]) marks.push([from, top, b - from, tall]);
      last = b;
      lastFill = fill;
      if (b - from > 58 && !host) {
        g.globalAlpha = dim;
        g.fillStyle = '#111';
        if (fill === fills.forward && document.documentElement.dataset.theme !== 'dark') g.fillStyle = '#fff';
        g.fillText(clip(g, nameOf(t, i), b - from - 8), from + 4, top + tall / 2 + 1);
      }
    };
    const all = (begin, finish, shift) => {
      for (let k = Math.max(0, d3.bisector(finish).left(lane.ids, chart.from - shift) - 1); k < lane.ids.length; ++k) {
        const i = lane.ids[k];
        if (begin(i) + shift > chart.to) break;
        paint(i, begin(i) + shift, finish(i) + shift);
      }
    };
    if (host) {  // what it issues for this step, and for the next while this one runs
      for (const shift of [0, t.period]) all(i => t.issue[i], i => t.issue[i] + t.raw.columns.host[i], shift);
    } else {
      all(i => t.start[i], i => t.end[i], 0);
    }
    g.globalAlpha = 1;
    g.fillStyle = colour('c-critical');
    for (const m of marks) g.fillRect(m[0], m[1] + m[3] + 1, Math.max(1, m[2]), 2);
    if (lane.name === 'compute') {
      t.raw.gaps.forEach((gap, index) => {
        const a = x(gap[0]), b = x(gap[0] + gap[1]);
        if (b < labelWidth || a > width || b - a < 0.5) return;
        const on = !state.highlight || !state.highlight.gap || state.highlight.gap(t, gap);
        g.globalAlpha = on ? 1 : 0.2;
        g.fillStyle = hatched;
        g.fillRect(a, top, b - a, tall);
        if (chart.gap === index) { g.strokeStyle = ink; g.lineWidth = 2; g.strokeRect(a, top, b - a, tall); }
        g.globalAlpha = 1;
      });
    }
  });
  if (state.event != null) drawChain(g, t, x, ink);
  g.strokeStyle = soft;
  g.setLineDash([4, 3]);
  for (const edge of [0, t.period]) {
    g.beginPath();
    g.moveTo(x(edge), 0);
    g.lineTo(x(edge), height - axisHeight);
    g.stroke();
  }
  g.setLineDash([]);
  g.fillStyle = soft;
  g.textAlign = 'center';
  const ticks = d3.scaleLinear().domain([chart.from, chart.to]).ticks(width < 620 ? 4 : 8);
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
  let free = 0;  // from here on
  for (const tick of ticks) {
    const text = (tick / 1e6).toFixed(Math.max(0, Math.ceil(-Math.log10(step / 1e6))));
    const half = g.measureText(text).width / 2;
    if (x(tick) - half < Math.max(labelWidth, free) || x(tick) + half > width - 40) continue;
    g.fillText(text, x(tick), height - axisHeight / 2);
    free = x(tick) + half + 8;
  }
  g.restore();
  g.textAlign = 'left';
  g.fillStyle = soft;
  t.lanes.forEach((lane, l) => g.fillText(lane.name, 8, l * laneHeight + (labelWidth < 20 ? laneHead / 2 : laneHeight / 2)));
  g.textAlign = 'right';
  g.fillText('ms', width - 10, height - axisHeight / 2);
}

function hatch(g, tone) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 6;
  const p = tile.getContext('2d');
  p.strokeStyle = tone;
  p.beginPath();
  for (const o of [-6, 0, 6]) { p.moveTo(o, 6); p.lineTo(o + 6, 0); }
  p.stroke();
  return g.createPattern(tile, 'repeat');
}

function clip(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  let letters = Math.floor(text.length * width / g.measureText(text).width);
  while (letters > 3 && g.measureText(`${text.slice(0, letters)}…`).width > width) --letters;
  return letters > 3 ? `${text.slice(0, letters)}…` : '';
}

function laneOf(t, i) { return t.lanes.findIndex(lane => lane.name === t.stream[i]); }

// The event that is looked at, and lines back along what bound it.
function drawChain(g, t, x, ink) {
  const top = i => laneOf(t, i) * laneHeight + laneHead, middle = i => top(i) + 11;
  const chain = chainOf(t, state.event);
  g.strokeStyle = ink;
  g.lineWidth = 1.5;
  g.beginPath();
  chain.forEach((link, k) => {
    if (k === 0) g.moveTo(x(t.start[link.event]), middle(link.event));
    else {
      g.lineTo(x(t.end[link.event]), middle(link.event));
      g.lineTo(x(t.start[link.event]), middle(link.event));
    }
  });
  g.stroke();
  const i = state.event;
  g.lineWidth = 3;
  g.strokeRect(x(t.start[i]), top(i) - 1, Math.max(3, x(t.end[i]) - x(t.start[i])), 24);
}

function zoom(factor, center) {
  const t = chart.t;
  const whole = t.last - t.first;
  const width = Math.min(whole, Math.max(2e3, (chart.to - chart.from) * factor));
  const share = (center - chart.from) / (chart.to - chart.from);
  chart.from = Math.max(t.first, Math.min(t.last - width, center - share * width));
  chart.to = chart.from + width;
  drawTimeline();
}

function showWhole() {
  chart.from = Math.min(0, chart.t.first * 0.02);
  chart.to = chart.t.period * 1.01;
  drawTimeline();
}

function bringIntoView(i) {
  const t = chart.t, width = chart.to - chart.from;
  if (t.start[i] >= chart.from && t.end[i] <= chart.to) return;
  chart.from = Math.max(t.first, (t.start[i] + t.end[i]) / 2 - width / 2);
  chart.to = chart.from + width;
}

function select(i) {
  state.event = i;
  chart.gap = null;
  bringIntoView(i);
  chart.lane = laneOf(chart.t, i);
  drawTimeline();
  fillDetails();
  const t = chart.t;
  say(`${nameOf(t, i)}, ${t.stream[i]}, from ${ms(t.start[i])}, takes ${ms(t.end[i] - t.start[i])}`);
}

function hit(event) {
  const {canvas, t} = chart;
  const box = canvas.getBoundingClientRect();
  const l = Math.floor((event.clientY - box.top) / laneHeight);
  if (l < 0 || l >= t.lanes.length) return null;
  const scale = (chart.to - chart.from) / (canvas.clientWidth - labelWidth - 8);
  const time = chart.from + (event.clientX - box.left - labelWidth) * scale;
  const lane = t.lanes[l];
  const host = lane.name === 'host';
  let best = null, distance = 3 * scale;
  for (const shift of host ? [0, t.period] : [0]) {
    for (const i of lane.ids) {
      const a = (host ? t.issue[i] : t.start[i]) + shift, b = host ? a + t.raw.columns.host[i] : t.end[i];
      const away = time < a ? a - time : time > b ? time - b : 0;
      if (away < distance) { best = i; distance = away; }
    }
  }
  if (lane.name === 'compute' && distance > 0) {
    const gap = t.raw.gaps.findIndex(g => time >= g[0] && time <= g[0] + g[1]);
    if (gap >= 0) return {gap, time};
  }
  return best == null ? {time} : {event: best, time};
}

function gapWords(t, gap) {
  const behind = gap[4] >= 0 ? `; it held up ${nameOf(t, gap[4])}` : '; until the step’s end';
  if (gap[2] >= 0) return `${nameOf(t, gap[2])} is exposed${behind}`;
  return (gap[3] ? 'the host had not issued the next kernel yet' : 'a row of another stream had to end first') + behind;
}

function eventTip(t, i) {
  return `${nameOf(t, i)}\n${ms(t.end[i] - t.arrive[i])} from ${ms(t.arrive[i])}` +
      (t.arrive[i] > t.start[i] ? `\nwaited ${ms(t.arrive[i] - t.start[i])} before` : '');
}

// What is known of the chosen event or bubble, and its chain of causes.
function fillDetails() {
  const {t, box} = chart;
  box.replaceChildren();
  if (chart.gap != null) {
    const gap = t.raw.gaps[chart.gap];
    box.append(el('h3', {}, `Bubble of ${ms(gap[1])} from ${ms(gap[0])}`), el('p', {}, `No kernel computes: ${gapWords(t, gap)}.`));
    for (const i of [gap[2], gap[4]]) if (i >= 0) box.append(el('p', {}, eventLink(t, i)));
    return;
  }
  if (state.event == null) {
    box.append(el('p', {class: 'small'}, 'Choose an event: click it, or focus the chart and use the arrow keys (left and right along a stream, ' +
        'up and down between streams, + and − to zoom, 0 for the whole step, Escape to let go).'));
    return;
  }
  const i = state.event, c = t.raw.columns, sort = t.raw.sorts[c.sort[i]];
  const seconds = (t.end[i] - t.arrive[i]) / 1e9;
  const facts = [`event ${i}`, `${phaseOf(t, i)}, stream ${sort.stream}`, `starts ${ms(t.start[i])}`];
  if (t.arrive[i] > t.start[i]) facts.push(`moves data from ${ms(t.arrive[i])}`);
  facts.push(`ends ${ms(t.end[i])}`, `takes ${ms(t.end[i] - t.arrive[i])}`, `issued ${ms(t.issue[i])}`);
  if (sort.bytes > 0) facts.push(`${textOf(sort.bytes, 'B')}${isCollective(sort.kind) && seconds > 0 ? ` at ${textOf(sort.bytes / seconds, 'rate')} (algbw)` : ''}`);
  if (sort.flops > 0) facts.push(`${textOf(sort.flops, 'flop')} at ${textOf(sort.flops / seconds, 'flops')}`);
  if (sort.group) facts.push(`${sort.communicator}, ${sort.group} ranks`);
  const chain = chainOf(t, i);
  const shown = 12;
  const list = el('ol', {id: 'chain'});
  const add = links => links.forEach(link => list.append(el('li', {'data-event': link.event},
      eventLink(t, link.event), ` ${link.event === i ? 'began' : 'began'} at ${ms(link.cause === 'communicator' ? t.arrive[link.event] : t.start[link.event])}: ${link.words}`)));
  add(chain.slice(0, shown));
  box.append(el('h3', {id: 'event-name'}, nameOf(t, i)), el('p', {class: 'small'}, facts.join(' · ')),
      el('strong', {}, 'Why it began when it did'), list);
  if (chain.length > shown) {
    const more = el('button', {type: 'button', onclick: () => { add(chain.slice(shown)); more.remove(); }}, `${chain.length - shown} further back`);
    box.append(more);
  }
}

function eventLink(t, i) { return el('button', {type: 'button', class: 'link', onclick: () => select(i)}, nameOf(t, i)); }

function onKey(event) {
  const t = chart.t;
  const lane = t.lanes[Math.max(0, Math.min(chart.lane, t.lanes.length - 1))];
  const step = by => {
    const ids = lane.ids;
    const k = state.event == null ? -1 : ids.indexOf(state.event);
    select(ids[Math.max(0, Math.min(ids.length - 1, k < 0 ? 0 : k + by))]);
  };
  const across = by => {
    chart.lane = Math.max(0, Math.min(t.lanes.length - 1, chart.lane + by));
    const next = t.lanes[chart.lane];
    if (next.name === 'host') { chart.lane = Math.max(chart.lane, 1); return; }
    const when = state.event == null ? 0 : t.start[state.event];
    select(next.ids[Math.min(next.ids.length - 1, d3.bisector(i => t.start[i]).left(next.ids, when))]);
  };
  const center = state.event == null ? (chart.from + chart.to) / 2 : t.start[state.event];
  const keys = {ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => across(1), ArrowUp: () => across(-1),
    '+': () => zoom(0.5, center), '=': () => zoom(0.5, center), '-': () => zoom(2, center), '0': showWhole,
    Home: () => select(lane.ids[0]), End: () => select(lane.ids[lane.ids.length - 1]),
    Escape: () => { state.event = null; chart.gap = null; highlightOnly(null); fillDetails(); }};
  const action = keys[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

// {test(t, i), gap(t, gap)} for what stays bright; null for everything.
function highlightOnly(what) {
  state.highlight = what;
  drawTimeline();
}

function drawTimelineBlock(body) {
  chart.t = timelineOf(state.view);
  if (chart.t && state.event != null && state.event >= chart.t.n) state.event = null;
  chart.gap = null;
  state.highlight = null;
  if (!chart.t) {
    chart.canvas = null;
    body.append(el('p', {class: 'note'}, view().timeline_left_out && state.view === 0 ?
        'The step has too many events to keep the file below 2 MB. With fewer micro-batches (--accumulation) they are shown; foreshard predict --trace writes them all.' :
        'The events of this plan are left out to keep the file below 2 MB. Copy its plan and run foreshard predict --plan plan.yaml --html report.html.'));
    return;
  }
  const t = chart.t;
  const kinds = [...new Set(t.raw.sorts.map(s => s.kind))];
  const byColour = new Map();
  for (const kind of kinds) byColour.set(colourOf(kind), [...(byColour.get(colourOf(kind)) || []), kind]);
  const names = {'c-copy': 'copies and casts', 'c-optimizer': 'clipping and optimizer', 'c-gather': 'all_gather', 'c-reduce': 'reduce_scatter'};
  body.append(legend([...byColour].map(([key, list]) => [names[key] || list.join(', '), `var(--${key})`])),
      el('p', {class: 'note'}, 'Hatched: a bubble, no kernel computes. Underlined: the critical path. A third as high: a collective waits for its communicator or its peers. ' +
          'Dashed: the step’s begin and end.'));
  const canvas = el('canvas', {id: 'timeline', tabindex: 0, role: 'application',
    'aria-label': `Timeline of ${t.n} events on ${t.lanes.length} lanes; arrow keys move between events`});
  body.append(el('div', {class: 'tools'},
      el('button', {type: 'button', onclick: () => zoom(0.5, (chart.from + chart.to) / 2)}, 'Zoom in'),
      el('button', {type: 'button', onclick: () => zoom(2, (chart.from + chart.to) / 2)}, 'Zoom out'),
      el('button', {type: 'button', onclick: showWhole}, 'Whole step'),
      el('button', {type: 'button', id: 'longest-bubble', onclick: longestBubble}, 'Longest bubble'),
      el('button', {type: 'button', onclick: lastOfPath}, 'End of the critical path')),
  el('div', {id: 'timeline-box'}, canvas));
  chart.canvas = canvas;
  chart.box = el('div', {class: 'details', id: 'event-details'});
  body.append(chart.box);
  let drag = null;
  canvas.addEventListener('mousemove', event => {
    if (drag) {
      const shift = (drag.x - event.clientX) * (chart.to - chart.from) / (canvas.clientWidth - labelWidth - 8);
      drag.moved = drag.moved || Math.abs(drag.x - event.clientX) > 3;
      const width = drag.to - drag.from;
      chart.from = Math.max(t.first, Math.min(t.last - width, drag.from + shift));
      chart.to = chart.from + width;
      drawTimeline();
      return;
    }
    const found = hit(event);
    if (found && found.event != null) showTip(event, eventTip(t, found.event));
    else if (found && found.gap != null) showTip(event, `bubble of ${ms(t.raw.gaps[found.gap][1])}\n${gapWords(t, t.raw.gaps[found.gap])}`);
    else hideTip();
  });
  canvas.addEventListener('mouseleave', () => { hideTip(); drag = null; });
  canvas.addEventListener('mousedown', event => { drag = {x: event.clientX, from: chart.from, to: chart.to, moved: false}; });
  canvas.addEventListener('mouseup', event => {
    const moved = drag && drag.moved;
    drag = null;
    const found = moved ? null : hit(event);
    if (!found) return;
    if (found.event != null) select(found.event);
    else if (found.gap != null) { state.event = null; chart.gap = found.gap; drawTimeline(); fillDetails(); }
  });
  canvas.addEventListener('wheel', event => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;  // a page that scrolls must go on scrolling
    event.preventDefault();
    const found = hit(event);
    zoom(event.deltaY > 0 ? 1.25 : 0.8, found ? found.time : (chart.from + chart.to) / 2);
  }, {passive: false});
  canvas.addEventListener('keydown', onKey);
  showWhole();
  fillDetails();
}

function longestBubble() {
  const gaps = chart.t.raw.gaps;
  if (!gaps.length) return;
  chart.gap = gaps.reduce((best, gap, i) => gap[1] > gaps[best][1] ? i : best, 0);
  state.event = null;
  const gap = gaps[chart.gap];
  chart.from = Math.max(chart.t.first, gap[0] - 3 * gap[1]);
  chart.to = Math.min(chart.t.last, gap[0] + 4 * gap[1]);
  drawTimeline();
  fillDetails();
}

function lastOfPath() {
  const path = chart.t.raw.critical_path;
  if (path.length) select(path[path.length - 1]);
}
