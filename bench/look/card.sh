#!/bin/sh
# Everything about looks that needs a card, in nine minutes on one; results in $OUT (at most 8 files).
#   bench/look/card.sh            on one card, or on two: then DDP has two ranks
# GPUSCOPE_LOOKS: how many looks go into each training of the soak (200).
cd "$(dirname "$0")/../.." || exit 1
: "${OUT:=.}"
python=${PYTHON:-python3}
cards=$($python -c 'import torch; print(max(1, min(2, torch.cuda.device_count())))')
status=0
# Alone on the card: what a look costs, and how true its rows are. Ranks of stragglers mostly sleep.
CUDA_VISIBLE_DEVICES= timeout 240 "$python" -m bench.stragglers --at-once > "$OUT/stragglers.txt" 2>&1 & ranks=$!
timeout 250 "$python" -m bench.look.cost --looks 5 --json "$OUT/cost.json" > "$OUT/cost.txt" 2>&1 || status=1
wait "$ranks" || status=1
# Together: nothing is timed here.
timeout 275 "$python" -m bench.look.soak --at-once --looks "${GPUSCOPE_LOOKS:-200}" --ranks "$cards" \
  --json "$OUT/soak.json" > "$OUT/soak.txt" 2>&1 & soak=$!
timeout 275 "$python" -m pytest -q -p no:cacheprovider -m gpu tests/probe/test_look_gpu.py \
  > "$OUT/test_look_gpu.txt" 2>&1 & looks=$!
timeout 275 "$python" -m pytest -q -p no:cacheprovider -m gpu tests/probe/test_work_gpu.py \
  > "$OUT/test_work_gpu.txt" 2>&1 & work=$!
for job in $soak $looks $work; do wait "$job" || status=1; done
cat "$OUT/cost.txt" "$OUT/soak.txt" "$OUT/stragglers.txt"
for name in look work; do tail -n 12 "$OUT/test_${name}_gpu.txt"; done
exit $status
