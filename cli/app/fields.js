// What each tab asks: its fields as data. A field's name is the verb's option (micro_batch:
// --micro-batch); a slider's `steps` are the values it stops at, written as the command line takes them;
// `said` is where an answer has the value that was taken where none was given; `more` fields are folded.

const powers = (from, to) => Array.from({length: Math.log2(to / from) + 1}, (_, i) => String(from * 2 ** i));
const ladder = (decades, suffix) => decades.flatMap(d => [1, 1.5, 2, 3, 5, 7].map(m => m * d)).map(v => suffix(v));
const short = value => amount(value).replace(/\.?0+(?= |$)/, '').replace(' ', '');

const plan = '/views/0/report/plan';
const model = {name: 'model', label: 'Model', example: 'llama-3.1-8b', file: '.json,.yaml,.yml', pick: 'config.json …'};
const job = [
  model,
  {name: 'cluster', label: 'Cluster', example: '64xh100', file: '.yaml,.yml', pick: 'cluster.yaml …'},
  {name: 'sequence', label: 'Tokens per sequence', steps: powers(512, 131072), said: `${plan}/batch/sequence`},
  {name: 'micro_batch', label: 'Micro-batch: sequences per GPU at once', steps: powers(1, 64), said: `${plan}/batch/micro_batch`},
  {name: 'accumulation', label: 'Accumulation: micro-batches per step', steps: powers(1, 256), said: `${plan}/batch/accumulation`},
  {name: 'runtime', label: 'Runtime', example: 'fsdp2', said: `${plan}/runtime`, more: true},
  {name: 'set', label: 'Any key of the plan', example: 'recompute=full', many: true, more: true},
  {name: 'plan', label: 'Plan file', file: '.yaml,.yml,.json', pick: 'plan.yaml …', only_file: true, more: true},
];

export const tabs = {
  buy: {
    label: 'Buy', verb: 'recommend', wait_ms: 350,
    purpose: 'Which machines, how many, and what the run costs: every candidate with its own best plan.',
    needs: ['model', 'tokens'],
    fields: [
      model,
      {name: 'tokens', label: 'Tokens to train on', example: '1T', steps: ladder([1e9, 1e10, 1e11, 1e12, 1e13], short)},
      {name: 'deadline', label: 'Deadline', example: '30d', steps: ['1d', '2d', '3d', '5d', '7d', '10d', '14d', '21d', '30d', '45d', '60d', '90d', '120d', '180d', '365d']},
      {name: 'budget', label: 'Budget, USD', example: '2M', steps: ladder([1e4, 1e5, 1e6, 1e7, 1e8], short)},
      {name: 'confidence', label: 'Confidence that it holds', example: '0.95', steps: ['0.5', '0.8', '0.9', '0.95', '0.98', '0.99']},
      {name: 'cluster', key: 'candidates', label: 'Candidates: machines or clusters', example: 'the whole catalogue', many: true},
      {name: 'gpus', label: 'Sizes to look at', example: '64,128,256', more: true},
      {name: 'batch_tokens', label: 'Tokens per step, at most', example: '4M', more: true},
      {name: 'sequence', label: 'Tokens per sequence', steps: powers(512, 131072), more: true},
      {name: 'set', label: 'Any key of the plan', example: 'recompute=full', many: true, more: true},
    ],
    examples: [
      ['8B, 1T tokens, 30 days', {model: ['llama-3.1-8b'], tokens: ['1T'], deadline: ['30d'], budget: ['2M'], candidates: ['h100']}],
      ['70B, 2T tokens, 60 days', {model: ['llama-3.1-70b'], tokens: ['2T'], deadline: ['60d'], candidates: ['h100', 'b200']}],
    ],
  },
  plan: {
    label: 'Plan', verb: 'predict', then: 'report', wait_ms: 60,
    purpose: 'Whether it fits, how long a step takes, where the time goes; then the search for better plans.',
    needs: ['model', 'cluster'], or_file: 'plan',
    fields: job,
    examples: [
      ['8B on 64 H100', {model: ['llama-3.1-8b'], cluster: ['64xh100']}],
      ['70B on 256 H100', {model: ['llama-3.1-70b'], cluster: ['256xh100'], set: ['recompute=full']}],
      ['Mixtral on 64 B200', {model: ['mixtral-8x7b'], cluster: ['64xb200']}],
    ],
  },
  debug: {
    label: 'Debug', verb: 'validate', text: 'explain', wait_ms: 200,
    purpose: 'Why a run is slower than it should be: a trace of torch.profiler, or a run folder’s files, against the forecast.',
    needs_file: 'run', needs: ['model', 'cluster'], or_file: 'plan',
    fields: [{name: 'run', label: 'Trace or run folder', file: '.json,.gz,.yaml,.csv,.jsonl', pick: 'trace.json.gz …', only_file: true, several: true}, ...job],
    examples: [],
  },
};
