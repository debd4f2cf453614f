#!/bin/sh
# The dead jobs on two cards: each is made with NCCL, gpuscope doctor judges what it left, and all verdicts are scored.
#   bench/dead_jobs/card.sh [JOB ...]     at most nine minutes; results in $OUT (4 files)
# A job that does not fit into the time is left out, and named; those whose dumps nobody has seen yet come first.
cd "$(dirname "$0")/../.." || exit 1
: "${OUT:=.}"
python=${PYTHON:-python3}
index=bench/dead_jobs/nccl.toml
end=$(($(date +%s) + ${GPUSCOPE_SECONDS:-510}))
folder=$(mktemp -d)
[ $# -gt 0 ] || set -- nccl-loop-evaluate nccl-stages-circle nccl-order nccl-stages-waits-for-data nccl-size \
  nccl-uneven nccl-stages-wide-tensor nccl-exception nccl-out-of-memory nccl-device-assert nccl-sigkill
status=0
: > "$OUT/verdicts.txt"
: > "$OUT/make.txt"
for job; do
  left=$((end - $(date +%s)))
  if [ $left -lt 60 ]; then
    echo "$job: left out, the time is over" | tee -a "$OUT/verdicts.txt"
    continue
  fi
  timeout -k 5 "$((left - 20))" "$python" -m bench.dead_jobs.make $index "$job" --backend nccl --ranks 2 --in-place \
    --out "$folder" >> "$OUT/make.txt" 2>&1 || { status=1; echo "$job: could not be made" >> "$OUT/verdicts.txt"; }
  echo "==== $job" >> "$OUT/verdicts.txt"
  [ -d "$folder/$job" ] && "$python" -m gpuscope doctor "$folder/$job" >> "$OUT/verdicts.txt" 2>&1
done
"$python" -m bench.dead_jobs.score $index "$folder" > "$OUT/score.txt" 2>&1 || status=1
tar -czf "$OUT/left.tar.gz" -C "$folder" .
rm -rf "$folder"
cat "$OUT/score.txt"
tail -n 20 "$OUT/make.txt"
exit $status
