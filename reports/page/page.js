'use strict';
// Which blocks there are, in the order of a reader's questions; theme, plan chooser, navigation.

function drawBlocks() {
  const has = key => doc[key] != null;
  const first = doc.views[0];
  if (has('validation')) block('validation', doc.title, null, drawValidation);
  if (first) {
    block('verdict', has('validation') ? 'The forecast' : doc.title, null, drawVerdict, drawers);
    block('plan', 'Plan', null, drawPlan, drawers);
    block('memory', 'Memory over the step', 'Of one GPU, by category. The line above the areas is the highest within each event.', drawMemory, drawers);
    if (first.timeline != null || first.timeline_left_out) block('timeline-block', 'Timeline', 'One step of one rank, all others do the same: its streams and the host that issues.', drawTimelineBlock, drawers);
    if (first.waterfall) block('waterfall', 'Where the time goes', 'Bars add up to the step exactly, in nanoseconds. Choose one to see it in the timeline.', body => { if (view().waterfall) drawWaterfall(body); }, drawers);
  }
  if (has('recommend')) drawBuyBlocks();
  if (has('scale')) drawScaleBlocks();
  if (has('search')) {
    if (!first) block('verdict', doc.title, null, drawNoPlan);
    block('search', 'Shard group and prefetch', null, drawHeatmap, drawers);
    if (doc.search.meshes) block('axes', 'Axes', 'The best step with two of the axes, whatever the others are.', drawAxes);
    if (doc.search.pareto.length) block('pareto', 'Speed against memory', null, drawPareto, drawers);
    if (doc.search.neighbours.length) block('why', 'Why the best plan won', null, drawNeighbours);
  }
  if (has('scaling') && doc.scaling.points.some(p => p.refused == null)) block('scaling', 'More and fewer GPUs', null, drawScaling);
  if (has('operations')) block('roofline', 'Operations against the roofs', null, drawRoofline);
  if (has('network')) block('network', 'The network', 'What the slowest group of each communicator gets while all of them run, and how full that makes the wires.', drawNetwork);
  if (has('sensitivity')) block('sensitivity', `What moves the step${sensitivityOf()}`, null, drawTornado);
  if (has('accuracy')) block('accuracy', doc.title, null, drawAccuracy);
  if (has('recommend')) block('terms', 'What it rests on', null, drawTerms);
  if (first) block('assumptions', 'What it rests on', null, drawAssumptions);
  block('reproduce', 'Reproduce', null, drawReproduce);
}

// Whose step it is, where the page shows several.
function sensitivityOf() {
  if (doc.recommend) return ` of ${doc.recommend.choices[0].cluster}`;
  return doc.scale ? ` on ${doc.sensitivity.gpus} GPUs` : '';
}

function jobWords(report) {
  const plan = report.plan, cluster = report.cluster;
  if (!plan || !cluster) return null;
  return `${textOf(report.parameters / 1e9, 'text').slice(0, 5)} B parameters on ${cluster.gpus} × ${cluster.gpu_name}, ${plan.runtime}, sequence ${plan.batch.sequence}`;
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  const button = document.getElementById('theme');
  button.setAttribute('aria-pressed', String(dark));
  button.textContent = dark ? 'Light' : 'Dark';
  drawTimeline();
}

// Links to the blocks, and the chooser of the plan that is shown.
function drawNavigation() {
  document.getElementById('bar-title').textContent = doc.title;
  document.getElementById('nav').replaceChildren(...blocks.map(b => el('a', {href: `#${b.id}`}, b.title !== doc.title ? b.title : 'Verdict')));
  const select = document.getElementById('view');
  select.replaceChildren(...doc.views.map((v, i) => el('option', {value: i}, v.label)));
  select.value = String(state.view);
  document.getElementById('view-label').hidden = doc.views.length < 2;
}

function start() {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  theme(dark.matches);
  dark.addEventListener('change', event => theme(event.matches));
  document.getElementById('theme').addEventListener('click', () => theme(document.documentElement.dataset.theme !== 'dark'));
  drawBlocks();
  drawNavigation();
  document.getElementById('view').addEventListener('change', event => show(Number(event.target.value)));
  let pending = null;
  let width = innerWidth;
  addEventListener('resize', () => {
    clearTimeout(pending);
    pending = setTimeout(() => {
      if (innerWidth === width) return;
      width = innerWidth;
      for (const b of blocks) if (b.body.querySelector('svg, canvas')) b.draw();
    }, 150);
  });
  // Paper is white, and has no hover.
  let shown = null, opened = [];
  addEventListener('beforeprint', () => {
    shown = document.documentElement.dataset.theme;
    theme(false);
    opened = [...document.querySelectorAll('details:not([open])')];
    for (const details of opened) details.open = true;
  });
  addEventListener('afterprint', () => {
    theme(shown === 'dark');
    for (const details of opened) details.open = false;
  });
  document.documentElement.dataset.ready = 'yes';
  requestAnimationFrame(() => requestAnimationFrame(() => performance.mark('drawn')));  // it is on the screen
}

start();
