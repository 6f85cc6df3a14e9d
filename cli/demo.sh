#!/usr/bin/env bash
# The tour that ./x demo gives: forecasts of Llama-3.1-8B, where its time and memory go, the best plan; then
# the loop is closed on this machine: measure, calibrate, forecast, run for real, compare.
# Every command is printed before it runs, as one would type it.
#
# demo.sh forecast   what the planner alone answers
# demo.sh engine     the loop; without an engine, FORESHARD_NO_ENGINE says why
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bold='' plain=''
if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  bold=$'\e[1m' plain=$'\e[0m'
fi

heading() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }

# show <command line>: prints it and runs it; its exit status is the command's.
show() {
  printf '%s$ %s%s\n' "$bold" "$1" "$plain"
  bash -c "$1"
}

forecast() {
  heading "Llama-3.1-8B on 8 H100: how long is a step, and does it fit?"
  show "build/bin/foreshard predict --model llama-3.1-8b --cluster 8xh100 | head -n 30"

  heading "On 64 H100"
  show "build/bin/foreshard predict --model llama-3.1-8b --cluster 64xh100 | head -n 9"

  heading "Where the step's time goes, and why its communication is exposed"
  show "build/bin/foreshard explain --model llama-3.1-8b --cluster 64xh100 | head -n 22"

  heading "The best shard group and prefetch depth for 1,048,576 tokens per step"
  local best=build/llama-3.1-8b-64xh100.yaml
  show "build/bin/foreshard search --model llama-3.1-8b --cluster 64xh100 --global-batch 128 --out $best | head -n 28"

  heading "The same training on a tighter plan: what does it cost?"
  show "build/bin/foreshard compare --plan $best --with recompute=full | head -n 11"
  printf '\nThe best plan is in %s; build/bin/foreshard --help lists the verbs.\n' "$best"
}

# The loop, closed on this machine.
engine() {
  [[ -x build/bin/foreshard-exec ]] || : "${FORESHARD_NO_ENGINE:=build/bin/foreshard-exec is not there}"
  if [[ ${FORESHARD_NO_ENGINE:-} ]]; then
    printf '\nThe engine is not built (%s): what a run here would measure against its forecast is not shown.\n' \
      "$FORESHARD_NO_ENGINE"
    return
  fi

  local plan=models/examples/demo.yaml
  local profile=build/profile.json

  heading "This machine: what its products, memory and collectives cost (about a minute)"
  show "build/bin/foreshard-exec measure --model models/examples/llama-5m.json --tokens 256x4 --out build/measured.json"
  show "build/bin/foreshard calibrate build/measured.json --out $profile"

  heading "A small Llama on two ranks of this machine: the forecast, before it ever ran"
  show "build/bin/foreshard predict --plan $plan --profile $profile | head -n 12"

  heading "The same plan for real, on the text of Foreshard's own sources"
  show "build/bin/foreshard-exec run --plan $plan --profile $profile --spawn 2 --data sim --steps 20 --out build/demo-run"

  heading "Forecast against measurement, event by event"
  local status=0
  show "build/bin/foreshard validate --plan $plan --profile $profile --run build/demo-run" || status=$?
  case $status in
    0) printf '\nThe forecast is within its stated tolerances.\n' ;;
    5)
      printf '\nExit status 5: what says OUTSIDE above is off by more than its tolerance. Other work on the machine while it\n'
      printf 'measured or ran is the usual cause: both took the times they found.\n'
      ;;
    *) return "$status" ;;
  esac
}

"${1:-forecast}"
