#!/bin/sh
# The models that nobody has predicted (families_blind*.py), on one GPU with nothing else on it: their trainings, limits
# around their peaks, largest batches. At most nine minutes; each step leaves what it has when its time is over.
#   sh bench/predict/measure_unseen.sh OUT
# Unpack what came, and predict before anything else is read: python -m bench.predict.score ROWS --traces TRACES …
set -eu
out=${1:?where results go: a folder}
work=$(mktemp -d)
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
python=${PYTHON:-python3}

step() {  # seconds, name, command …: its output goes to a file, its end is told; what there is so far is kept
    seconds=$1 name=$2; shift 2
    code=0; timeout -k 5 "$seconds" "$@" >"$work/$name.txt" 2>&1 || code=$?
    echo "$name: exit $code"; tail -n 3 "$work/$name.txt"
    tar czf "$out/rows.tgz" -C "$work" --exclude traces .
}

mkdir -p "$out"
step 190 truth "$python" -m bench.predict.truth --blind --out "$work" --parallel 8 --seconds 175
if [ -d "$work/traces" ]; then tar cf - -C "$work" traces | split -b 14m -d -a 2 - "$out/traces.tar."; fi
step 225 capped "$python" -m bench.predict.truth_capped "$work/rows.jsonl" --out "$work" \
    --shares 0.95 0.98 1.02 --parallel 12 --seconds 210
step 105 bisect "$python" -m bench.predict.truth --blind --bisect --only '*' --out "$work" --seconds 95
rm -rf "$work"
