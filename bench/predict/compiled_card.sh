#!/bin/sh
# The truth of compiled trainings that no rule was made with, from one GPU with nothing else on it, in at most 480 seconds.
#   sh bench/predict/compiled_card.sh OUT
# Meanwhile they are predicted on the CPU with this machine's torch. OUT gets rows and predictions as they come, and
# compiled.tgz with the logs at the end. With TRACES=8, traces.tar has the allocator's histories, up to so many MiB.
# Then: python -m bench.predict.truth_compiled score --out OUT
set -u
out=${1:?where results go: a folder}
work=$(mktemp -d)
mkdir -p "$out" "$work/compiled"
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 TORCH_SYMBOLIZE_MODE=dladdr PYTORCH_NVML_BASED_CUDA_CHECK=1 HF_HUB_OFFLINE=1
export OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=${COMPILE_THREADS:-4} TORCHINDUCTOR_CACHE_DIR="$work-inductor"
new=${ONLY:-$("$python" -c "from bench.predict.truth_compiled import NEW; print(NEW)")}
total=${SECONDS_IN_ALL:-480}

keep() {  # what there is so far
    cp "$work/compiled/rows.jsonl" "$out/truth_compiled.measured.jsonl" 2>/dev/null
    cp "$work/truth_compiled.predicted.jsonl" "$work"/*.txt "$out" 2>/dev/null
}
finish() {
    trap - TERM INT
    # shellcheck disable=SC2046  # process ids
    kill $(jobs -p) 2>/dev/null
    keep
    tar czf "$out/compiled.tgz" -C "$work" --exclude traces --exclude rows.jsonl --exclude '*.predicted.jsonl' .
    [ -z "${TRACES:-}" ] || tar cf - -C "$work" compiled/traces | head -c "${TRACES}m" >"$out/traces.tar"
    tail -n 4 "$work"/*.txt
    exit 0
}
trap finish TERM INT
timeout -k 5 $((total - 20)) "$python" -m bench.predict.truth --compiled --only "$new" --out "$work/compiled" \
    --device "${DEVICE:-cuda}" --parallel "${PARALLEL:-6}" --seconds $((total - 50)) >"$work/measure.txt" 2>&1 &
measure=$!
CUDA_VISIBLE_DEVICES='' timeout -k 5 $((total - 20)) "$python" -m bench.predict.truth_compiled predict --only "$new" \
    --out "$work" --parallel "${PREDICTIONS:-4}" --seconds $((total - 50)) >"$work/predict.txt" 2>&1 &
predict=$!
while kill -0 $measure 2>/dev/null || kill -0 $predict 2>/dev/null; do
    sleep 5
    keep
done
finish
