#!/bin/sh
# How the recordings of this folder were made, on one and on two H200. Usage: make.sh named|one|ddp|stall OUT.gsr
# Each is a real training watched by a real agent; --redact hides users, hosts, paths and command lines, but not in
# `named`, which was recorded by the user ada on a host that was called gpu-1 for it.
set -eu
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")/.." && pwd)
kind=$1 out=$2
redact=--redact
[ "$kind" = named ] && redact=

# shellcheck disable=SC2086  # no word or one
"$python" -m gpuscope record "$out" $redact --force --duration "${SECONDS_TO_RECORD:-100}" & recorder=$!
sleep 4
case $kind in
named)  # a script that trains well for half a minute, then one whose input is too slow
  "$python" -m gpuscope run "$here/plain_train.py" --amp --steps 100000 & trainer=$!
  sleep "${FIRST_SECONDS:-35}"
  kill $trainer
  sleep 2
  "$python" -m gpuscope run "$here/pitfalls/slow_input.py" --seconds 90 & trainer=$!
  ;;
one)  # the lab's trainer for half a minute, then a user's own script that knows nothing of gpuscope
  "$python" -m gpuscope lab --headless --device cuda --model gpt --amp bf16 --steps "${LAB_STEPS:-1800}"
  "$python" -m gpuscope run "$here/plain_train.py" --amp & trainer=$!
  ;;
ddp)  # two ranks under torchrun, watched from the outside by `run`
  "$python" -m gpuscope run -- torchrun --standalone --nproc-per-node 2 "$here/ddp_train.py" & trainer=$!
  ;;
stall)  # the same for half a minute, then rank 1 sleeps after 50 steps and rank 0 waits for it
  "$python" -m gpuscope run -- torchrun --standalone --nproc-per-node 2 "$here/ddp_train.py" & trainer=$!
  sleep 33
  kill $trainer
  "$python" -m gpuscope run -- torchrun --standalone --nproc-per-node 2 "$here/stall_train.py" --after 50 --seconds 90 \
    --steps 200 & trainer=$!
  ;;
*) echo "usage: $0 named|one|ddp|stall OUT.gsr" >&2; exit 64 ;;
esac
wait $recorder
kill $trainer
