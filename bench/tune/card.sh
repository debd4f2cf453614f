#!/bin/sh
# The bars of gpuscope tune on a card, one model at a time; results in $OUT. Repeat it to continue: give it the files
# of $OUT back in $BARS.
#   bench/tune/card.sh MODEL...     as much as GPUSCOPE_SECONDS (540) allow
# pytorch-autotune runs beside it where it can be imported.
cd "$(dirname "$0")/../.." || exit 1
: "${OUT:=.}"
python=${PYTHON:-python3}
left=${GPUSCOPE_SECONDS:-540}
more=
"$python" -c 'import pytorch_autotune' 2>/dev/null && more=--autotune
status=0
for model in "${@:-gpt-small}"; do
  mkdir -p "$OUT/$model"
  [ -d "${BARS:-}/$model" ] && cp -r "$BARS/$model/." "$OUT/$model/"
  began=$(date +%s)
  # shellcheck disable=SC2086  # no word or one
  timeout "$left" "$python" -m bench.tune.bars "$model" --budget 120 --window 1 --out "$OUT/$model" $more \
    > "$OUT/$model/log.txt" 2>&1 || status=1
  left=$((left - $(date +%s) + began))
  [ "$left" -gt 30 ] || break
done
tail -n 60 "$OUT"/*/log.txt
exit $status
