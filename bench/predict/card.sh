#!/bin/sh
# What predictions of compiled, sharded and served models lack: their truth, from real GPUs with nothing else on them.
# At most 530 seconds. Each part leaves what it has when its time is over, or when this is stopped.
#   sh bench/predict/card.sh OUT
# It uses the GPUs of CUDA_VISIBLE_DEVICES, by default all. With four, the first two share DDP and FSDP, the third has the
# compiled trainings, the fourth generation and then kernels. With fewer, lanes share a GPU, and with one there is no DDP.
# OUT/cards.tgz has the rows, OUT/traces.tar.?? the allocator's histories (at most TRACES=28 MiB); predictions are made
# meanwhile, on the CPU. After `cat traces.tar.?? | tar xf -`: python -m bench.predict.fsdp_cards score --out FOLDER
set -u
out=${1:?where results go: a folder}
total=${SECONDS_IN_ALL:-530}
begin=$(date +%s)
work=$(mktemp -d)
mkdir -p "$out" "$work/logs"
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TORCH_SYMBOLIZE_MODE=dladdr PYTORCH_NVML_BASED_CUDA_CHECK=1
export OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=${COMPILE_THREADS:-6} NCCL_NVLS_ENABLE=0
export TORCHINDUCTOR_CACHE_DIR="$work-inductor" TOKENIZERS_PARALLELISM=false

cards=${CUDA_VISIBLE_DEVICES:-$("$python" -c "import torch
print(*range(torch.cuda.device_count()), sep=',')")}
card() { echo "$cards" | tr , '\n' | sed -n "$(($1 > count ? count : $1))p"; }
count=$(echo "$cards" | tr , '\n' | grep -c .)
pair=$(echo "$cards" | cut -d, -f1,2)

left() { echo $((total - 25 - ($(date +%s) - begin))); }
part() {  # seconds, name, command …: its output goes to a file; it ends within its time, and within that of all
    seconds=$1 name=$2; shift 2
    rest=$(left); [ "$seconds" -lt "$rest" ] || seconds=$rest
    [ "$seconds" -gt 15 ] || { echo "$name: no time left"; return 0; }
    timeout -k 5 "$seconds" "$@" >"$work/logs/$name.txt" 2>&1 &
    echo $! >>"$work-running"
    code=0; wait $! || code=$?
    echo "$name: exit $code after $(($(date +%s) - begin)) s"; tail -n 3 "$work/logs/$name.txt"
}
module() { name=$1; shift; part "$seconds_of_part" "$name-$1" "$python" -m "bench.predict.$name" "$@" --out "$work"; }

sharded() {
    [ "$count" -gt 1 ] || { echo "DDP and FSDP need two GPUs"; return 0; }
    (seconds_of_part=500; CUDA_VISIBLE_DEVICES=$pair module fsdp_cards measure --parallel 2 --seconds 470) &
    (seconds_of_part=500; CUDA_VISIBLE_DEVICES=$pair module ddp_cards measure --parallel 2 --seconds 470) &
    wait
}
compiled() {
    CUDA_VISIBLE_DEVICES=$(card 3) part 500 truth_compiled-measure "$python" -m bench.predict.truth --compiled \
        --out "$work/compiled" --parallel 6 --seconds 460
}
served() {
    export CUDA_VISIBLE_DEVICES; CUDA_VISIBLE_DEVICES=$(card 4)
    seconds_of_part=330; module serve_cards measure --parallel 3 --seconds 300
    rest=$(left)
    for kind in conv rnn; do
        part $((rest / 2)) "kernels-$kind" "$python" -m bench.predict.truth_kernels --out "$work/kernels-$kind.jsonl" \
            --kind "$kind" --seconds $((rest / 2 - 10))
    done
}
predicted() {  # from the declarations alone, on this machine's torch and transformers
    export CUDA_VISIBLE_DEVICES=
    for name in truth_compiled serve_cards fsdp_cards ddp_cards; do
        (seconds_of_part=500; module $name predict --parallel 4 --seconds 460) &
    done
    wait
}
keep() {  # what there is so far
    cp "$work/compiled/rows.jsonl" "$work/truth_compiled.measured.jsonl" 2>/dev/null
    tar czf "$out/cards.tgz.part" -C "$work" --exclude traces --exclude histories . 2>/dev/null
    mv "$out/cards.tgz.part" "$out/cards.tgz"
}
finish() {
    trap - TERM INT
    # shellcheck disable=SC2046,SC2086  # process ids
    kill $lanes $(cat "$work-running") 2>/dev/null
    keep
    found=$(cd "$work" && ls -d histories compiled/traces 2>/dev/null)
    # shellcheck disable=SC2086  # names of folders
    [ -z "$found" ] || tar cf - -C "$work" $found | head -c "${TRACES:-28}m" | split -b 14m -d -a 2 - "$out/traces.tar."
    echo "ends after $(($(date +%s) - begin)) s"
    exit 0
}
lanes=
trap finish TERM INT
for lane in sharded compiled served predicted; do
    $lane & lanes="$lanes $!"
done
while [ "$(left)" -gt 0 ]; do
    alive=
    # shellcheck disable=SC2086  # process ids
    for lane in $lanes; do kill -0 "$lane" 2>/dev/null && alive=yes; done
    [ -n "$alive" ] || break
    sleep 5; number=$((${number:-0} + 1))
    [ $((number % 6)) -ne 0 ] || keep
done
finish
