#!/usr/bin/env bash
# The tour that ./x demo gives: forecasts of Llama-3.1-8B, where its time and memory go, and the best plan.
# Every command is printed before it runs, as one would type it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bold= plain=
if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  bold=$'\e[1m' plain=$'\e[0m'
fi

heading() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }

# show <command line>: prints it and runs it.
show() {
  printf '%s$ %s%s\n' "$bold" "$1" "$plain"
  bash -c "$1"
}

heading "Llama-3.1-8B on 8 H100: how long is a step, and does it fit?"
show "build/bin/foreshard predict --model llama-3.1-8b --cluster 8xh100 | head -n 30"

heading "On 64 H100"
show "build/bin/foreshard predict --model llama-3.1-8b --cluster 64xh100 | head -n 9"

heading "Where the step's time goes, and why its communication is exposed"
show "build/bin/foreshard explain --model llama-3.1-8b --cluster 64xh100 | head -n 26"

heading "The best shard group and prefetch depth for 1,048,576 tokens per step"
plan=build/llama-3.1-8b-64xh100.yaml
show "build/bin/foreshard search --model llama-3.1-8b --cluster 64xh100 --global-batch 128 --out $plan | head -n 28"

heading "The same training on a tighter plan: what does it cost?"
show "build/bin/foreshard compare --plan $plan --with recompute=full | head -n 11"

printf '\nThe best plan is in %s; build/bin/foreshard --help lists the verbs.\n' "$plan"
