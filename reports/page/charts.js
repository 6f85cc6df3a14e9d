'use strict';
// What charts are made of: frames, axes, rows of bars, and labels that give way to one another.
//
// Charts are drawn as wide as their parent is, and drawn again when that changes. Every text is measured where it
// stands: a label takes the first of its places where it covers no other text and does not leave the frame.

const narrow = 560;  // below, names of rows stand above their bars

// An SVG as wide as its parent with margins; `label` says what it shows.
function frame(parent, height, margin, label) {
  const width = Math.max(240, parent.clientWidth || 1100);
  const svg = d3.select(parent).append('div').attr('class', 'chart').append('svg').attr('viewBox', `0 0 ${width} ${height}`)
      .attr('role', 'group').attr('aria-label', label);
  const inner = svg.append('g').attr('transform', `translate(${margin.left},${margin.top})`);
  return {svg, inner, margin, width: Math.max(1, width - margin.left - margin.right), height: height - margin.top - margin.bottom};
}

// --- texts that give way ---

const boxOf = node => node.getBoundingClientRect();
function touch(a, b, gap = 0) {
  return a.left < b.right + gap && b.left < a.right + gap && a.top < b.bottom && b.top < a.bottom;
}
function within(box, outer) {
  return box.left >= outer.left - 0.5 && box.right <= outer.right + 0.5 && box.top >= outer.top - 0.5 && box.bottom <= outer.bottom + 0.5;
}

// Cuts a text to a width; the whole of it becomes its title.
function fit(node, width) {
  const whole = node.textContent;
  if (!whole || node.getComputedTextLength() <= width) return;
  let letters = whole.length;
  do node.textContent = `${whole.slice(0, --letters).trimEnd()}…`; while (letters > 1 && node.getComputedTextLength() > width);
  d3.select(node).append('title').text(whole);
}

// [dx, dy, anchor]: right above, left above, right below, left below of a point, then further away.
const beside = [[9, -8, 'start'], [-9, -8, 'end'], [9, 18, 'start'], [-9, 18, 'end'], [0, -14, 'middle'], [0, 24, 'middle'],
  [12, -26, 'start'], [-12, -26, 'end'], [12, 36, 'start'], [-12, 36, 'end']];
// At the end of a line, in the margin to its right: there, or a little higher or lower.
const behind = [[8, 4, 'start'], [8, -4, 'start'], [8, 12, 'start'], [8, -12, 'start'], [8, 20, 'start'],
  [8, -20, 'start'], [8, 28, 'start'], [8, -28, 'start']];

// Writes labels ({x, y, text, places, kind, id, tone: colour of a dot before it}) beside their points, the most important first. Of a
// label's free places it takes the one that covers the fewest marks; without a free place it is left out.
function place(f, items) {
  const outer = boxOf(f.svg.node());
  const taken = [...f.svg.node().querySelectorAll('text')].filter(t => t.textContent).map(boxOf);
  const marks = [...f.svg.node().querySelectorAll('circle')].map(boxOf);
  for (const item of items) {
    const text = f.inner.append('text').attr('class', item.kind || null).attr('id', item.id || null);
    text.append('tspan').text(item.text);
    if (item.tone) text.insert('tspan', ':first-child').text('● ').style('fill', item.tone);
    const stand = ([dx, dy, anchor]) => text.attr('x', item.x + dx).attr('y', item.y + dy).attr('text-anchor', anchor);
    let best = null;
    for (const offset of item.places || beside) {
      stand(offset);
      const box = boxOf(text.node());
      if (!within(box, outer) || taken.some(t => touch(t, box, 3))) continue;
      const hidden = marks.filter(m => touch(m, box)).length;
      if (!best || hidden < best.hidden) best = {offset, box, hidden};
      if (!hidden) break;
    }
    if (!best) {
      text.remove();
      continue;
    }
    stand(best.offset);
    taken.push(best.box);
  }
}

// Leaves out the words of ticks that would run into one another or out of the frame.
function thin(axis, svg) {
  const outer = boxOf(svg.node());
  let last = null;
  axis.selectAll('.tick text').each(function() {
    const box = boxOf(this);
    if (!box.width) return;
    if ((last && touch(last, box, 7)) || box.left < outer.left - 0.5 || box.right > outer.right + 0.5) this.remove();
    else last = box;
  });
}

// --- axes ---

function axes(f, x, y, xTitle, yTitle, options = {}) {
  const bottom = options.bottom || d3.axisBottom(x).ticks(f.width / 80).tickSizeOuter(0);
  const left = options.left || d3.axisLeft(y).ticks(5).tickSizeOuter(0);
  f.inner.append('g').attr('class', 'grid').call(d3.axisLeft(y).tickValues(left.tickValues()).ticks(5).tickSize(-f.width).tickFormat('')).lower();
  thin(f.inner.append('g').attr('class', 'axis').attr('transform', `translate(0,${f.height})`).call(bottom), f.svg);
  thin(f.inner.append('g').attr('class', 'axis').call(left), f.svg);
  const title = (x0, y0, anchor, text) => fit(f.inner.append('text').attr('class', 'axis-title').attr('x', x0).attr('y', y0).attr('text-anchor', anchor).text(text).node(),
      f.width + f.margin.left);
  title(f.width, f.height + 40, 'end', xTitle);
  title(-f.margin.left, -10, 'start', yTitle);
}

// The axis below bars that are `height` tall; 40 pixels with its title.
function axisBelow(f, x, height, title, format) {
  const few = Math.max(2, Math.min(8, f.width / 80));
  f.inner.append('g').attr('class', 'grid').call(d3.axisBottom(x).ticks(few).tickSize(height).tickFormat('')).lower();
  thin(f.inner.append('g').attr('class', 'axis').attr('transform', `translate(0,${height})`).call(d3.axisBottom(x).ticks(few).tickSizeOuter(0).tickFormat(format)), f.svg);
  fit(f.inner.append('text').attr('class', 'axis-title').attr('x', f.width).attr('y', height + 36).attr('text-anchor', 'end').text(title).node(), f.width + f.margin.left);
}

// axisBelow of values in seconds.
function timeAxis(f, x, height, title) {
  const [factor, unit] = x.domain()[1] >= 10 ? [1, 's'] : x.domain()[1] >= 0.01 ? [1e3, 'ms'] : [1e6, 'µs'];
  axisBelow(f, x, height, `${title}, ${unit}`, v => +(v * factor).toPrecision(12));
}

// Decimal ticks of a logarithmic axis: powers of ten, and as many between them as make four.
function logTicks(domain) {
  for (const steps of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]]) {
    const ticks = d3.range(Math.floor(Math.log10(domain[0])), Math.ceil(Math.log10(domain[1])) + 1).flatMap(e => steps.map(s => s * 10 ** e))
        .filter(tick => tick >= domain[0] && tick <= domain[1]);
    if (ticks.length >= 4) return ticks;
  }
  return d3.ticks(domain[0], domain[1], 4);
}

// --- rows of bars ---

// A frame with a row per datum: its name to the left of its bar, its values to the right; both above the
// bar where the frame is narrow. values: [{text(d), path(d), unit, soft}]. Bars go from `top` on, `bar` tall.
function rowFrame(parent, data, name, label, values = []) {
  const wide = parent.clientWidth || 1100;
  const above = wide < narrow;
  const tall = above ? 42 : 26, top = above ? 20 : 4, column = above ? 62 : 70;
  const left = Math.min(above ? 4 : 250, 24 + 7.4 * d3.max(data, d => name(d).length));
  const f = frame(parent, data.length * tall + 48, {top: 4, right: above ? 8 : Math.max(24, values.length * column), bottom: 44, left}, label);
  const g = f.inner.selectAll('g.row').data(data).enter().append('g').attr('class', 'row').attr('transform', (d, i) => `translate(0,${i * tall})`);
  g.append('rect').attr('x', -left).attr('width', f.width + left + f.margin.right).attr('height', tall).attr('fill', 'transparent');
  const line = above ? 11 : tall / 2;
  g.append('text').attr('x', above ? 0 : -12).attr('y', line).attr('dy', '.35em').attr('text-anchor', above ? 'start' : 'end').text(name)
      .each(function() { fit(this, above ? f.width - values.length * column : left - 14); });
  values.forEach((value, k) => g.append('text').attr('x', above ? f.width - (values.length - 1 - k) * column : f.width + (k + 1) * column - 4).attr('y', line).attr('dy', '.35em')
      .attr('text-anchor', 'end').attr('class', value.soft ? 'axis-title' : null).attr('data-path', value.path || null).attr('data-unit', value.path ? value.unit : null).text(value.text));
  // An upright line through the bars, not through what is written above them.
  const rule = x => g.append('line').attr('x1', x).attr('x2', x).attr('y1', above ? top - 3 : 0).attr('y2', tall).attr('stroke', 'var(--ink)');
  return {f, g, rule, top, bar: tall - top - 4, height: data.length * tall};
}
