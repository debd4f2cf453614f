#!/bin/sh
# The truth of compiled trainings that no rule was made with, from one GPU with nothing else on it, in at most 480 seconds.
#   sh bench/predict/compiled_card.sh OUT
# OUT/compiled.tgz has the rows, and the predictions made meanwhile on the CPU; OUT/traces.tar.?? the allocator's histories.
# Then: python -m bench.predict.truth_compiled score --out FOLDER
set -u
out=${1:?where results go: a folder}
work=$(mktemp -d)
mkdir -p "$out"
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 TORCH_SYMBOLIZE_MODE=dladdr PYTORCH_NVML_BASED_CUDA_CHECK=1
export OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=${COMPILE_THREADS:-4} TORCHINDUCTOR_CACHE_DIR="$work-inductor"
fresh=${ONLY:-$("$python" -c "from bench.predict.truth_compiled import FRESH; print(FRESH)")}
total=${SECONDS_IN_ALL:-480}

finish() {
    trap - TERM INT
    # shellcheck disable=SC2046  # process ids
    kill $(jobs -p) 2>/dev/null
    cp "$work/compiled/rows.jsonl" "$work/truth_compiled.measured.jsonl" 2>/dev/null
    tar czf "$out/compiled.tgz" -C "$work" --exclude traces . 2>/dev/null
    [ ! -d "$work/compiled/traces" ] ||
        tar cf - -C "$work" compiled/traces | head -c "${TRACES:-28}m" | split -b 14m -d -a 2 - "$out/traces.tar."
    tail -n 3 "$work"/*.txt
    exit 0
}
trap finish TERM INT
timeout -k 5 $((total - 20)) "$python" -m bench.predict.truth --compiled --only "$fresh" --out "$work/compiled" \
    --device "${DEVICE:-cuda}" --parallel "${PARALLEL:-6}" --seconds $((total - 50)) >"$work/measure.txt" 2>&1 &
measure=$!
CUDA_VISIBLE_DEVICES='' timeout -k 5 $((total - 20)) "$python" -m bench.predict.truth_compiled predict --only "$fresh" \
    --out "$work" --parallel 4 --seconds $((total - 50)) >"$work/predict.txt" 2>&1 &
wait $measure; wait
finish
