#!/bin/sh
# Everything about looks that needs a card, in nine minutes on one; results in $OUT (at most 8 files).
#   bench/look/card.sh            on one card, or on two: then DDP has two ranks
# GPUSCOPE_LOOKS: how many looks go into each training of the soak (200).
# Last it prints the bars beside what was measured.
cd "$(dirname "$0")/../.." || exit 1
: "${OUT:=.}"
python=${PYTHON:-python3}
cards=$($python -c 'import torch; print(max(1, min(2, torch.cuda.device_count())))')
own=$(mktemp -d) && trap 'rm -rf "$own"' EXIT
status=0
# Alone on the card: what a look costs, how true its rows are. Ranks of
# stragglers mostly sleep.
CUDA_VISIBLE_DEVICES= timeout 240 "$python" -m bench.stragglers --at-once > "$OUT/stragglers.txt" 2>&1 & ranks=$!
timeout 285 "$python" -m bench.look.cost --looks 4 --cold --json "$OUT/cost.json" > "$OUT/cost.txt" 2>&1 || status=1
wait "$ranks" || status=1
# Together: nothing is timed here. The tests of looks in two halves: what has not ended in time does
# not say what failed.
half="rows_add_up or costs_is_told or twenty or losses or profiler or second_card"
timeout 175 "$python" -m bench.look.soak --at-once --looks "${GPUSCOPE_LOOKS:-200}" --ranks "$cards" \
  --json "$OUT/soak.json" > "$OUT/soak.txt" 2>&1 & soak=$!
run() { timeout 175 "$python" -m pytest -q -p no:cacheprovider -m gpu --tb=short "$@"; }
run tests/probe/test_look_gpu.py -k "$half" > "$own/look-1" 2>&1 & first=$!
run tests/probe/test_look_gpu.py -k "not ($half)" > "$own/look-2" 2>&1 & second=$!
run tests/probe/test_work_gpu.py > "$own/work" 2>&1 & work=$!
for job in $soak $first $second $work; do wait "$job" || status=1; done
tail -n 60 "$own/look-1" "$own/look-2" "$own/work" > "$OUT/tests.txt"
cat "$OUT/cost.txt" "$OUT/tests.txt"
echo "=== bars"
sed -n '/^bar /,$p' "$OUT/cost.txt"
cat "$OUT/soak.txt" "$OUT/stragglers.txt"
tail -q -n 1 "$own/look-1" "$own/look-2" "$own/work"
exit $status
