#!/bin/sh
# How the recordings of this folder were made, on one and on two H200. Usage: make.sh one|ddp|stall OUT.gsr
# Each is a real training watched by a real agent. Nothing in them is redacted: the user ada made them on a host that
# was called gpu-1 for it.
set -eu
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")/.." && pwd)
kind=$1 out=$2

"$python" -m gpuscope record "$out" --force --duration "${SECONDS_TO_RECORD:-100}" & recorder=$!
sleep 4
case $kind in
one)  # the lab's trainer, then a user's own script that knows nothing of gpuscope, then one whose input is too slow
  "$python" -m gpuscope lab --headless --device cuda --model gpt --amp bf16 --steps "${LAB_STEPS:-1800}"
  "$python" -m gpuscope run "$here/plain_train.py" --amp --steps 100000 & trainer=$!
  sleep "${PLAIN_SECONDS:-30}"
  kill $trainer
  sleep 2
  "$python" -m gpuscope run "$here/pitfalls/slow_input.py" --seconds 90 & trainer=$!
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
*) echo "usage: $0 one|ddp|stall OUT.gsr" >&2; exit 64 ;;
esac
wait $recorder
kill $trainer
