'use strict';
// The events of one step: their columns decoded, their names, and why each began when it did.

// Columns as reports/page/page_timeline.cpp writes them, made into arrays of nanoseconds. Once per timeline.
const decoded = new Map();
function timelineOf(viewIndex) {
  const index = doc.views[viewIndex].timeline;
  if (index == null) return null;
  if (decoded.has(index)) return decoded.get(index);
  const raw = doc.timelines[index];
  const c = raw.columns;
  const n = raw.events;
  const t = {raw, n, period: raw.period_ns, issue: new Float64Array(n), start: new Float64Array(n), arrive: new Float64Array(n),
    end: new Float64Array(n), stream: new Array(n), lanes: [], inPath: new Uint8Array(n)};
  const streamEnd = {};
  let issue = 0;
  for (let i = 0; i < n; ++i) {
    const stream = raw.sorts[c.sort[i]].stream;
    issue += c.issue[i];
    t.issue[i] = issue;
    t.start[i] = (streamEnd[stream] || 0) + c.start[i];
    t.arrive[i] = t.start[i] + c.arrive[i];
    t.end[i] = t.arrive[i] + c.length[i];
    streamEnd[stream] = t.end[i];
    t.stream[i] = stream;
  }
  for (const i of raw.critical_path) t.inPath[i] = 1;
  const hasHost = c.host.some(h => h > 0);
  if (hasHost) t.lanes.push({name: 'host', ids: d3.range(n)});
  for (const name of raw.streams) {
    const ids = d3.range(n).filter(i => t.stream[i] === name);
    if (ids.length) t.lanes.push({name, ids});
  }
  t.first = Math.min(0, d3.min(t.start), hasHost ? d3.min(t.issue) : 0);
  t.last = Math.max(t.period, d3.max(t.end));
  decoded.set(index, t);
  return t;
}

const kindOf = (t, i) => t.raw.sorts[t.raw.columns.sort[i]].kind;
const phaseOf = (t, i) => t.raw.phases[t.raw.columns.phase[i]];
function nameOf(t, i) {
  const c = t.raw.columns;
  const place = t.raw.places[c.place[i]];
  return kindOf(t, i) + (place ? ` ${place}` : '') + t.raw.tails[c.tail[i]];
}
function isCollective(kind) { return /^(all_gather|reduce_scatter|all_reduce|broadcast|reduce)$/.test(kind); }
function colourOf(kind) {
  if (kind === 'forward') return 'c-forward';
  if (kind === 'backward') return 'c-backward';
  if (kind === 'loss') return 'c-loss';
  if (kind === 'recompute') return 'c-recompute';
  if (kind === 'all_gather' || kind === 'broadcast') return 'c-gather';
  if (kind === 'reduce_scatter' || kind === 'reduce') return 'c-reduce';
  if (kind === 'all_reduce') return 'c-all';
  if (/optimizer|grad_/.test(kind)) return 'c-optimizer';
  return 'c-copy';
}

const causeWords = {
  step_begin: () => 'ready when the step began', host: () => 'the host issued it only then',
  stream: by => `behind ${by} on its stream`, wait: by => `waited for ${by}`,
  communicator: by => `its communicator was busy with ${by}`,
};
// Why event i began when it did: itself and what bound it, back to the step's begin or the host.
function chainOf(t, i) {
  const c = t.raw.columns;
  const chain = [];
  for (let e = i; ;) {
    const by = c.by[e] ? e - c.by[e] : null;
    const cause = t.raw.causes[c.cause[e]];
    chain.push({event: e, cause, by, words: (causeWords[cause.replace(/ /g, '_')] || (b => `${cause} ${b}`))(by == null ? '' : nameOf(t, by))});
    if (by == null) return chain;
    e = by;
  }
}

const ms = ns => textOf(ns / 1e9, 's');
