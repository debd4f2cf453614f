#!/bin/sh
# The bars of gpuscope tune on one or more cards, one model after the other; results in $OUT. Repeat it to continue:
# give it the files of $OUT back in $BARS.
#   bench/tune/card.sh MODEL...     on the cards of CUDA_VISIBLE_DEVICES (all), within GPUSCOPE_SECONDS (540)
# GPUSCOPE_BUDGET (120) is the budget of tune in seconds. pytorch-autotune runs beside it where it can be imported; it
# can be given as a wheel in AUTOTUNE_WHEEL.
cd "$(dirname "$0")/../.." || exit 1
: "${OUT:=.}"
ends=$(($(date +%s) + ${GPUSCOPE_SECONDS:-540}))
python=${PYTHON:-python3}
cards=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd, -)}
[ -n "${AUTOTUNE_WHEEL:-}" ] && export PYTHONPATH="$(realpath "$AUTOTUNE_WHEEL")${PYTHONPATH:+:$PYTHONPATH}"
more=
"$python" -c 'import pytorch_autotune' 2>/dev/null && more=--autotune
status=0
for model in "${@:-gpt-small}"; do
  left=$((ends - $(date +%s)))
  [ "$left" -gt 30 ] || break
  mkdir -p "$OUT/$model"
  [ -d "${BARS:-}/$model" ] && cp -r "$BARS/$model/." "$OUT/$model/"
  # shellcheck disable=SC2086  # no word or one
  timeout -k 10 "$left" "$python" -m bench.tune.bars "$model" --budget "${GPUSCOPE_BUDGET:-120}" --cards "$cards" \
    --out "$OUT/$model" $more >> "$OUT/$model/log.txt" 2>&1 || status=1
done
for model in "$@"; do tail -n 60 "$OUT/$model/log.txt"; done
exit $status
