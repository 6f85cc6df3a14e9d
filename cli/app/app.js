// Asks while the form changes, and draws the answer with the blocks of the report's page. A question that
// is outdated is cancelled: the server ends its work when the connection closes.

import {tabs} from './fields.js';
import {asked, bodyHasFiles, bodyOf, drawAsked, known, link, linkIsWhole, open, readLink, showTaken, tabOf, takeFiles} from './form.js';

const shown = {tab: null, asking: null, timer: null};
const part = id => document.getElementById(id);
const tell = (id, content) => { part(id).replaceChildren(...[content].flat()); part(id).hidden = !content || content.length === 0; };

// An answer of the server, or its refusal as an exception in the command line's words.
async function ask(path, verb, signal) {
  const answer = await fetch(path, {method: 'POST', body: bodyOf(verb), signal, credentials: 'same-origin'});
  if (answer.ok) return answer;
  const refusal = await answer.json().catch(() => ({error: `the server answers ${answer.status}`}));
  throw new Error(refusal.error);
}

// --- the answer ---

function present(page, isFuller = false) {
  const content = part('content');
  content.style.minHeight = `${content.offsetHeight}px`;
  for (const key of Object.keys(doc)) delete doc[key];
  Object.assign(doc, page);
  part('document').textContent = JSON.stringify(page);
  state.view = doc.selected || 0;
  state.event = state.highlight = null;
  buy.choice = 0;
  for (const list of [drawers, buyDrawers, blocks]) list.length = 0;
  decoded.clear();
  content.replaceChildren();
  drawBlocks();
  drawNavigation();
  content.style.minHeight = '';
  showTaken();
  tell('headline', headlineOf(page));
  part('said').hidden = false;
  if (!isFuller && page.command) showCommand(page.command);
}

function showCommand(command) {
  tell('command-line', [el('pre', {id: 'command-text', tabindex: 0, 'aria-label': 'The same on the command line'}, command),
    el('div', {class: 'tools'}, copyButton('Copy', () => command),
      tabOf().then && !bodyHasFiles() ? el('a', {class: 'pick', id: 'full-report', target: '_blank', href: `/${tabOf().then}?${bodyOf(tabOf().then)}`}, 'Full report') : null,
      doc.recommend && doc.recommend.choices.length ? el('button', {type: 'button', id: 'plan-it', onclick: () => {
        asked.words.cluster = [doc.recommend.choices[buy.choice].cluster];
        open('plan');
      }}, 'Plan it') : null, copyButton(linkIsWhole() ? 'Copy link' : 'Copy link without files', () => location.href))]);
}

const percent = p => p > 0.99 ? '>99 %' : p < 0.01 ? '<1 %' : `${Math.round(p * 100)} %`;

// The first sentence of an answer.
function headlineOf(page) {
  const r = page.recommend;
  if (r) {
    if (!r.choices.length) return 'No candidate can run it.';
    const c = r.choices[0];
    const odds = c.probability == null ? '' : `, holds with ${percent(c.probability)}`;
    return `${meets(c) ? '' : 'Nothing meets the terms; nearest: '}${c.cluster}: ${textOf(c.days.value, 'd')}, ${textOf(c.dollars.value, 'dollars')}${odds}`;
  }
  const first = page.views[0];
  if (!first) return '';
  const {memory, step} = first.report;
  const rate = `${textOf(step.seconds.value, 's')} per step, ${textOf(step.tokens_per_s_per_gpu.value, 'count')} tokens/s per GPU`;
  if (page.validation) return `Measured ${textOf(page.views[page.validation.view].report.step.seconds.value, 's')}, forecast ${textOf(step.seconds.value, 's')} per step`;
  if (memory.fits === false) return `Does not fit: ${textOf(-memory.margin_bytes, 'B')} more than there is`;
  return `Fits${memory.fit_probability == null ? '' : ` with ${percent(memory.fit_probability)}`}: ${rate}`;
}

// "did you mean X?" as a button that puts X where the wrong word stands.
function problemOf(message) {
  const near = message.match(/did you mean ([^?]+)\?/);
  const parts = [message];
  if (near) {
    for (const input of part('ask').querySelectorAll('input[data-field]')) {
      const [wrong] = input.value.split(/[=]/).slice(-1);
      if (!wrong || !message.includes(wrong) || wrong === near[1]) continue;
      input.setAttribute('aria-invalid', 'true');
      parts.push(' ', el('button', {type: 'button', id: 'take', onclick: () => {
        input.value = input.value.replace(wrong, near[1]);
        input.dispatchEvent(new Event('input', {bubbles: true}));
        input.focus();
      }}, `Take ${near[1]}`));
      break;
    }
  }
  return parts;
}

// --- asking ---

const has = key => (asked.words[key] || []).some(v => v) || (asked.files[key] || []).length > 0;
const namesJob = tab => tab.needs.every(has) || (tab.or_file && has(tab.or_file));

function isAskable() {
  const tab = tabOf();
  return tab.needs_file ? has(tab.needs_file) : namesJob(tab);
}

function working(words) {
  part('busy').textContent = words;
  part('answered').setAttribute('aria-busy', String(Boolean(words)));
  document.documentElement.dataset.answer = words ? 'working' : 'ready';
}

async function answer(signal) {
  const tab = tabOf();
  working('…');
  part('said').hidden = false;
  if (tab.text) {
    const text = ask(`/text/${tab.text}`, tab.text, signal).then(async a => ({text: await a.text(), command: JSON.parse(a.headers.get('Foreshard-Command'))}));
    // Without a job, it is the run that says which plan it is of.
    const page = namesJob(tab) ? ask(`/page/${tab.verb}`, tab.verb, signal).then(a => a.json()) : null;
    const [said, drawn] = await Promise.allSettled([text, page]);
    signal.throwIfAborted();
    if (said.status === 'rejected' && drawn.status === 'rejected') throw said.reason;
    tell('text', said.value ? said.value.text : '');
    if (drawn.value) present(drawn.value);
    if (said.value) showCommand(said.value.command);
    part('said').hidden = !drawn.value;
    if (said.status === 'rejected' || drawn.status === 'rejected') tell('problem', problemOf((said.reason || drawn.reason).message));
    return;
  }
  present(await (await ask(`/page/${tab.verb}`, tab.verb, signal)).json());
  if (!tab.then) return;
  working('searching …');
  await new Promise(resolve => setTimeout(resolve, 400));
  signal.throwIfAborted();
  present(await (await ask(`/page/${tab.then}`, tab.then, signal)).json(), true);
}

function changed() {
  if (shown.tab !== asked.tab) clearAnswer();
  shown.tab = asked.tab;
  history.replaceState(null, '', location.pathname + link());
  clearTimeout(shown.timer);
  if (shown.asking) shown.asking.abort();
  tell('problem', '');
  for (const input of part('ask').querySelectorAll('[aria-invalid]')) input.removeAttribute('aria-invalid');
  if (!isAskable()) return working('');
  working('…');
  shown.timer = setTimeout(async () => {
    const asking = shown.asking = new AbortController();
    try {
      tell('text', '');
      await answer(asking.signal);
    } catch (error) {
      if (asking.signal.aborted) return;
      tell('problem', problemOf(error instanceof TypeError ? 'The server does not answer: has it ended?' : error.message));
    }
    if (shown.asking === asking) working('');
  }, tabOf().wait_ms);
}

function clearAnswer() {
  part('content').replaceChildren();
  part('nav').replaceChildren();
  for (const id of ['problem', 'command-line', 'text']) tell(id, '');
  part('said').hidden = true;
  part('view-label').hidden = true;
}

function onTabKey(event) {
  const names = Object.keys(tabs), step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (!step) return;
  open(names[(names.indexOf(asked.tab) + step + names.length) % names.length]);
  part(`tab-${asked.tab}`).focus();
}

async function startApp() {
  document.addEventListener('asked', changed);
  clearAnswer();
  readLink();
  // The token is in a cookie by now; it need not stay in the history.
  history.replaceState(null, '', location.pathname + location.hash);
  const words = await fetch('/api/words', {credentials: 'same-origin'});
  if (words.ok) Object.assign(known, await words.json());
  drawAsked();
  part('tabs').addEventListener('keydown', onTabKey);
  part('ask').addEventListener('submit', event => event.preventDefault());
  // The address's fragment is the question: links within the page scroll without it.
  document.addEventListener('click', event => {
    const target = event.target.closest('a[href^="#"]');
    if (!target) return;
    event.preventDefault();
    const block = part(target.getAttribute('href').slice(1));
    block.scrollIntoView();
    if (block.tabIndex === -1) block.focus({preventScroll: true});
  });
  addEventListener('hashchange', () => {
    readLink();
    shown.tab = null;
    drawAsked();
    changed();
  });
  addEventListener('dragover', event => { event.preventDefault(); document.body.classList.add('dropping'); });
  addEventListener('dragleave', () => document.body.classList.remove('dropping'));
  addEventListener('drop', event => {
    event.preventDefault();
    document.body.classList.remove('dropping');
    takeFiles([...event.dataTransfer.files]);
  });
  changed();
  document.documentElement.dataset.app = 'ready';
}

startApp();
