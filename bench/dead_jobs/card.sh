#!/bin/sh
# The dead jobs on two cards: NCCL makes them, several at once, gpuscope doctor judges what each left, and all verdicts are scored.
#   bench/dead_jobs/card.sh [JOB ...]     three to four minutes, at most eight; results in $OUT (4 files)
# Each job is small: those that run out of memory ask for more than any card has, so that the others keep theirs.
cd "$(dirname "$0")/../.." || exit 1
: "${OUT:=.}"
python=${PYTHON:-python3}
index=tests/data/dead_jobs/nccl.toml
folder=$(mktemp -d)
# the longest ones first: of these, some end only when the time of a job is over
[ $# -gt 0 ] || set -- nccl-stages-waits-for-data nccl-stages-wide-blocks nccl-stages-wide-tensor nccl-size nccl-sigkill nccl-loop-evaluate nccl-stages-circle \
  nccl-order nccl-uneven nccl-exception nccl-device-assert nccl-out-of-memory
status=0
: > "$OUT/verdicts.txt"
timeout -k 5 "${GPUSCOPE_SECONDS:-450}" "$python" -m bench.dead_jobs.make $index "$@" --backend nccl --ranks 2 --in-place \
  --at-once "${AT_ONCE:-5}" --longest 100 --out "$folder" > "$OUT/make.txt" 2>&1 || status=1
for job; do
  echo "==== $job" >> "$OUT/verdicts.txt"
  if [ -d "$folder/$job" ]; then
    "$python" -m gpuscope doctor "$folder/$job" >> "$OUT/verdicts.txt" 2>&1
  else
    status=1
    echo "could not be made, or the time was over" >> "$OUT/verdicts.txt"
  fi
done
"$python" -m bench.dead_jobs.score $index "$folder" > "$OUT/score.txt" 2>&1 || status=1
tar -czf "$OUT/left.tar.gz" -C "$folder" .
rm -rf "$folder"
cat "$OUT/score.txt"
tail -n 20 "$OUT/make.txt"
exit $status
