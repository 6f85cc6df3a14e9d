// The state of the form: words and files by field, for each tab; drawn as fields, kept in the link.
//
// asked = {tab, words: {key: [text]}, files: {key: [{name, text | blob}]}}; tabs share the fields of one key
// (the name, unless a field says another), so that a model that was chosen for buying is there for planning. Whoever wants to know of
// changes listens to the document's event "asked".

import {tabs} from './fields.js';

export const asked = {tab: 'plan', words: {}, files: {}};
const mostLinkBytes = 16000;  // of a link: servers and chats cut longer ones
export const known = {};      // of /api/words: {verb: {word: {help, words}}}

const changed = () => document.dispatchEvent(new Event('asked'));
export const tabOf = () => tabs[asked.tab];
const verbOptions = () => known[tabOf().verb] || {};
// A field that the verb does not have is not shown: an older or newer server.
const fieldsOf = tab => tabs[tab].fields.filter(f => !known[tabs[tab].verb] || known[tabs[tab].verb][f.name] || f.name === 'run');

const keyOf = field => field.key || field.name;
const wordsOf = field => (asked.words[keyOf(field)] || []).filter(v => v).slice(0, field.many ? undefined : 1);
const filesOf = field => asked.files[keyOf(field)] || [];

// --- the link ---

export function link() {
  const words = new URLSearchParams();
  for (const field of fieldsOf(asked.tab)) {
    for (const value of wordsOf(field)) words.append(field.name, value);
    for (const file of filesOf(field)) {
      if (file.text != null) words.append(`file.${field.name}`, `${file.name}\n${file.text}`);
    }
  }
  const text = `#${asked.tab}?${words}`;
  if (text.length <= mostLinkBytes) return text;
  for (const key of [...words.keys()]) if (key.startsWith('file.')) words.delete(key);
  return `#${asked.tab}?${words}`;
}

// Whether the link alone says everything.
export function linkIsWhole() {
  const files = fieldsOf(asked.tab).flatMap(filesOf);
  return !files.length || (files.every(f => f.text != null) && link().includes('file.'));
}

export function readLink() {
  const [, tab, query] = location.hash.match(/^#(\w*)\??(.*)$/s) || [];
  const words = new URLSearchParams(tab in tabs ? query : location.search.slice(1));
  if (tab in tabs) asked.tab = tab;
  words.delete('token');
  if (![...words.keys()].length) return;
  asked.words = {};
  asked.files = {};
  for (const field of tabOf().fields) {
    const key = keyOf(field);
    if (words.has(field.name)) asked.words[key] = words.getAll(field.name);
    const files = words.getAll(`file.${field.name}`).map(text => [text.indexOf('\n'), text]);
    if (files.length) asked.files[key] = files.map(([end, text]) => ({name: text.slice(0, end), text: text.slice(end + 1)}));
  }
}

// --- files ---

const mostTextBytes = 200000;

async function addFile(key, file, several) {
  const text = file.size <= mostTextBytes && !/\.gz$/.test(file.name) ? await file.text() : null;
  const kept = several ? asked.files[key] || [] : [];
  asked.files[key] = [...kept.filter(f => f.name !== file.name), text == null ? {name: file.name, blob: file} : {name: file.name, text}];
  delete asked.words[key];
}

// What a dropped file is, by what stands in it.
async function kindOf(file) {
  const head = await file.slice(0, 65536).text().catch(() => '');
  if (/\.gz$/.test(file.name) || /"traceEvents"/.test(head)) return 'run';
  if (/\.json$/.test(file.name)) return /"mesh"/.test(head) ? 'plan' : /"fingerprint"|"losses"/.test(head) ? 'run' : 'model';
  if (/^(mesh|runtime|batch|reshard_after_forward|prefetch):/m.test(head)) return 'plan';
  if (/^layers:/m.test(head)) return 'model';
  if (/^gpus:/m.test(head)) return 'cluster';
  return /\.ya?ml$/.test(file.name) ? 'plan' : 'run';
}

export async function takeFiles(list) {
  for (const file of list) {
    const kind = await kindOf(file);
    if (kind === 'run') asked.tab = 'debug';
    await addFile(kind, file, kind === 'run');
  }
  drawAsked();
  changed();
}

// --- fields ---

function change(field, values) {
  asked.words[keyOf(field)] = values;
  if (values.some(v => v)) delete asked.files[keyOf(field)];
  changed();
}

function fileLine(field) {
  const several = field.several || false;
  const input = el('input', {type: 'file', id: `file-${field.name}`, accept: field.file, multiple: several, 'aria-label': `${field.label}: a file`});
  input.addEventListener('change', async () => {
    for (const file of input.files) await addFile(keyOf(field), file, several);
    drawAsked();
    changed();
  });
  const chips = filesOf(field).map(file => el('span', {class: 'chip'}, file.name,
      el('button', {type: 'button', 'aria-label': `Without ${file.name}`, onclick: () => {
        asked.files[keyOf(field)] = filesOf(field).filter(f => f !== file);
        drawAsked();
        changed();
      }}, '×')));
  return [...chips, el('span', {class: 'pick'}, chips.length && !several ? 'another …' : field.pick, input)];
}

// The stop of a slider that is nearest to what stands in the text.
function nearest(steps, text) {
  const value = t => Number.parseFloat(t) * ({k: 1e3, M: 1e6, B: 1e9, G: 1e9, T: 1e12}[(t.match(/[kMBGT]/) || [])[0]] || 1);
  const wanted = value(text || '');
  if (!Number.isFinite(wanted)) return 0;
  return d3.leastIndex(steps, (a, b) => Math.abs(Math.log(value(a) / wanted)) - Math.abs(Math.log(value(b) / wanted)));
}

function wordList(field) {
  const words = (verbOptions()[field.name] || {}).words || [];
  return words.length ? el('datalist', {id: `words-${field.name}`}, words.map(w => el('option', {value: w}))) : null;
}

function drawField(field) {
  const id = `ask-${field.name}`;
  const values = wordsOf(field);
  const help = (verbOptions()[field.name] || {}).help;
  const box = el('div', {class: 'field', title: help});
  if (field.only_file) {
    box.append(el('span', {class: 'label'}, field.label), el('div', {class: 'line tools'}, fileLine(field)));
    return box;
  }
  const list = wordList(field);
  const text = (value, i) => el('input', {type: 'text', id: i ? `${id}-${i}` : id, value, placeholder: field.example, spellcheck: 'false',
    list: list && list.id, 'aria-label': i ? `${field.label}, another` : null, 'data-field': field.name});
  const inputs = (field.many ? [...values, ''] : [values[0] || '']).map(text);
  const lines = el('div', {class: 'lines'});
  const listen = input => input.addEventListener('input', () => {
    const all = [...lines.querySelectorAll('input[type=text]')];
    if (field.many && all[all.length - 1].value) {
      const more = text('', all.length);
      listen(more);
      lines.append(el('div', {class: 'line'}, more));
    }
    const range = box.querySelector('input[type=range]');
    if (range) range.value = nearest(field.steps, input.value);
    change(field, all.map(i => i.value.trim()).filter(v => v));
  });
  for (const input of inputs) {
    listen(input);
    lines.append(el('div', {class: 'line'}, input, field.file ? fileLine(field) : null));
  }
  box.append(el('label', {for: id}, field.label), lines);
  if (list) box.append(list);
  if (field.steps) {
    const range = el('input', {type: 'range', min: 0, max: field.steps.length - 1, step: 1, value: nearest(field.steps, inputs[0].value), 'aria-label': `${field.label}, slider`});
    range.addEventListener('input', () => {
      inputs[0].value = field.steps[range.value];
      range.setAttribute('aria-valuetext', inputs[0].value);
      change(field, [inputs[0].value]);
    });
    box.append(range);
  }
  if (field.hint) box.append(el('span', {class: 'hint'}, field.hint));
  return box;
}

export function open(tab) {
  asked.tab = tab;
  drawAsked();
  changed();
}

export function drawAsked() {
  const tab = tabOf();
  document.getElementById('tabs').replaceChildren(...Object.entries(tabs).map(([name, t]) => el('button', {type: 'button', role: 'tab', id: `tab-${name}`,
    'aria-selected': String(name === asked.tab), 'aria-controls': 'asked', tabindex: name === asked.tab ? 0 : -1, onclick: () => open(name)}, t.label)));
  document.getElementById('asked').setAttribute('aria-labelledby', `tab-${asked.tab}`);
  document.getElementById('purpose').textContent = tab.purpose;
  const fields = fieldsOf(asked.tab), folded = fields.filter(f => f.more);
  const isUsed = folded.some(f => wordsOf(f).length || filesOf(f).length);
  document.getElementById('ask').replaceChildren(...fields.filter(f => !f.more).map(drawField),
      el('details', {open: isUsed}, el('summary', {}, 'More'), folded.map(drawField)));
  document.getElementById('examples').replaceChildren(...(tab.examples.length ? [el('span', {class: 'small'}, 'Examples:')] : []),
      ...tab.examples.map(([label, words]) => el('button', {type: 'button', class: 'link', onclick: () => {
        asked.words = structuredClone(words);
        asked.files = {};
        drawAsked();
        changed();
      }}, label)));
}

export const bodyHasFiles = () => fieldsOf(asked.tab).some(f => filesOf(f).length);

// What an answer took where nothing was said stands in the empty fields.
export function showTaken() {
  for (const field of fieldsOf(asked.tab).filter(f => f.said)) {
    const input = document.getElementById(`ask-${field.name}`), value = at(field.said);
    if (value == null || !input) continue;
    input.placeholder = String(value);
    const range = input.closest('.field').querySelector('input[type=range]');
    if (range && !input.value) range.value = nearest(field.steps, String(value));
  }
}

// What is asked, as the server takes it: files make it a multipart body.
export function bodyOf(verb) {
  const body = bodyHasFiles() ? new FormData() : new URLSearchParams();
  const options = known[verb] || {};
  for (const field of fieldsOf(asked.tab)) {
    if (!options[field.name]) continue;
    for (const value of wordsOf(field)) body.append(field.name, value);
    for (const file of filesOf(field)) {
      body.append(field.name, file.blob || new Blob([file.text]), file.name);
    }
  }
  return body;
}
