#!/bin/sh
# The bars of gpuscope tune on the cards of CUDA_VISIBLE_DEVICES (all), within GPUSCOPE_SECONDS (540): as many models as fit, each
# on one card, then grids. Results are in $OUT as they come; give them back in $BARS to continue.
#   bench/tune/card.sh [MODEL…]     the models of bench/tune/lanes.py, by default all in their order
# GPUSCOPE_BUDGET (110) is the budget of tune in seconds, GRIDS (gpt-small,conv-small) the models with a grid. pytorch-autotune
# tunes four of them too where it can be imported; it can be given as a wheel in AUTOTUNE_WHEEL.
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3}
cards=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd, -)}
[ -n "${AUTOTUNE_WHEEL:-}" ] && export PYTHONPATH="$(realpath "$AUTOTUNE_WHEEL")${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m bench.tune.lanes "$@" --out "${OUT:-.}" --cards "$cards" --seconds "${GPUSCOPE_SECONDS:-540}" \
  --budget "${GPUSCOPE_BUDGET:-110}" --grids "${GRIDS-gpt-small,conv-small}" ${BARS:+--bars "$BARS"}
