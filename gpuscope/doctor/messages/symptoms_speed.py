"""Descriptions and printed readings of slow, wrong or hanging runs."""

from __future__ import annotations

from .symptom import Symptom

_LOW = (
    r"(?:util\w*|usage|load)\b[^.;]{0,50}?(?:\b(?:very )?low\b|only|around|about|stays|under|below|drops?|[~<]"
    r"|at)\s?[^.;%]{0,15}?\b[0-5]?\d\s?%|low gpu[- ]util|gpu (?:util\w* |usage )?(?:is )?(?:very )?low|gpu\w* (?:are "
    r"|is |sits? )?(?:mostly )?idle|underutili[sz]"
    r"|util\w*\b[^.;]{0,40}\b(?:low|poor|fluctuat\w*|swing\w*|zero|unstable)\b"
    r"|\b(?:low|poor|fluctuating|unstable)\b[^.;]{0,25}\b(?:gpu|util\w*)"
)

SYMPTOMS = (
    Symptom(
        "slow.loader",
        r"data ?load(?:er|ing)\b[^.;]{0,80}(?:slow|bottleneck|most of|\d+ ?%|time|wait)|(?:slow|bottleneck|wait"
        r"|\d+ ?%)[^.;]{0,60}data ?load",
        (
            ("num-workers", "The step waits for the loader", 0.80),
            ("pin-memory", "Batches are copied from memory that is not pinned", 0.45),
        ),
    ),
    Symptom(
        "slow.idle",
        _LOW,
        (
            ("num-workers", "The step waits for the loader", 0.60),
            ("too-small-workload", "Launching kernels takes longer than running them", 0.45),
            ("pin-memory", "Batches are copied from memory that is not pinned", 0.40),
            ("ddp-instead-of-dp", "One process cannot feed several devices", 0.25),
        ),
    ),
    Symptom(
        "slow.idle-dp",
        r"(?<!distributed)(?<!distributed )\bdata ?parallel\b|\bnn\.dp\b|multi-?gpus?\b[^.;]{0,40}(?:slow|util)"
        r"|\b(?:two|four|eight|several|multiple|all|[2-8]) gpus?\b[^.;]{0,60}(?:slow|util)"
        r"|(?:slow|util)\w*[^.;]{0,60}\b(?:two|four|eight|several|multiple|all|[2-8]) gpus?\b",
        (
            ("ddp-instead-of-dp", "One process cannot feed several devices", 0.70),
            ("dp-imbalance-gpu0", "DataParallel gathers on its first device", 0.55),
        ),
    ),
    Symptom(
        "slow.workers",
        r"num_workers|more workers|cpu (?:usage|load)?[^.;]{0,20}(?:100 ?%|full|overload|bottleneck)|preprocess"
        r"|augment|disk|decode",
        (("num-workers", "The step waits for the loader", 0.62),),
    ),
    Symptom(
        "slow.pinned",
        r"pin_?memory|pinned|non_blocking|memcpy|host ?(?:to|2) ?device|cpu ?(?:to|->|2) ?gpu (?:copy|transfer)",
        (("pin-memory", "Batches are copied from memory that is not pinned, or too much is pinned", 0.66),),
    ),
    Symptom(
        "slow.benchmark",
        r"cudnn\.?benchmark|benchmark\s?=\s?true|benchmark mode",
        (("cudnn-benchmark-off", "Every new input size is searched again", 0.85),),
    ),
    Symptom(
        "slow.shapes",
        r"(?:variable|varying|different|changing|dynamic|random) (?:input |image |sequence |batch )?(?:size|shape"
        r"|length|resolution)|(?:size|shape|length|resolution)s?\b[^.;]{0,20}\b(?:vary|varies|varying|change|differ)",
        (
            ("cudnn-benchmark-off", "Every new input size is searched again", 0.45),
            ("dynamic-shapes-recompile", "Every new shape is compiled again", 0.45),
        ),
    ),
    Symptom(
        "slow.recompile",
        r"^(?=.*(?:compil|inductor|dynamo)).*(?:(?:variable|varying|different|changing|dynamic|new) [^.;]{0,12}(?:size"
        r"|shape|length)|(?:size|shape|length)s?\b[^.;]{0,20}\b(?:vary|varies|varying|change|differ))",
        (("dynamic-shapes-recompile", "Shapes change, so it compiles again", 0.76),),
    ),
    Symptom(
        "slow.timing",
        r"(?:time|timing|speed|latency|\bfps|measure\w*)\b[^.;]{0,60}\b(?:(?:not |in)consistent"
        r"|too (?:fast|good|short|small)"
        r"|wrong|unrealistic|implausib\w+)|without (?:the )?synchroni[sz]",
        (("synchronize-timing", "What is timed is the launch, not the work", 0.74),),
    ),
    Symptom(
        "slow.timing",
        r"synchroni[sz]e|time\.time\(\)|perf_counter|whatever (?:its|the) size|time (?:shows|appears|is spent)"
        r"[^.;]{0,40}(?:print|copied|read)|\bfps\b|async(?:hronous)?\w* (?:execution|launch)|timing",
        (("synchronize-timing", "What is timed is the launch, not the work", 0.75),),
    ),
    Symptom(
        "slow.item",
        r"\.item\(\)|\bcpu\(\)[^.;]{0,60}(?:slow|second|\bms\b|take|time)|tolist\(\)",
        (("synchronize-timing", "The first call that waits gets the time of all that was launched", 0.6),),
    ),
    Symptom(
        "slow.than-cpu",
        r"(?:slower|faster|slow)[^.;]{0,60}\b(?:than|on)\b[^.;]{0,40}\b(?:cpu|gpu|mps)|cpu[^.;]{0,40}(?:faster"
        r"|slower)|(?:gpu|mps|cuda)[^.;]{0,40}slower",
        (
            ("too-small-workload", "The work is too small for a device", 0.72),
            ("synchronize-timing", "What is timed may not be the work", 0.35),
            ("num-workers", "The step waits for the loader", 0.25),
        ),
    ),
    Symptom(
        "slow.tiny",
        r"\b(?:tiny|small|toy) (?:mlp|model|net|network|batch|workload|tensor)|\bmlp\b|kernel launch|launch overhead"
        r"|overhead dominates|\brl\b|cartpole|mnist",
        (("too-small-workload", "Launching kernels takes longer than running them", 0.70),),
    ),
    Symptom(
        "slow.compile",
        r"(?:torch\.)?compile\w*[^.;]{0,80}(?:slow|slower|no speed|not faster|minutes|long)|slow[^.;]{0,60}compil",
        (
            ("compile-graph-break", "Graph breaks leave little to compile", 0.60),
            ("dynamic-shapes-recompile", "Shapes change, so it compiles again", 0.58),
            ("compile-mode", "Another mode, or none, fits this program", 0.40),
        ),
    ),
    Symptom(
        "slow.recompile",
        r"recompil",
        (("dynamic-shapes-recompile", "Shapes or values change, so it compiles again", 0.75),),
    ),
    Symptom("slow.break", r"graph break", (("compile-graph-break", "Graph breaks leave little to compile", 0.80),)),
    Symptom(
        "loss.nan",
        r"\bnans?\b|\binf\b",
        (
            ("bf16-instead-of-fp16", "fp16 overflows where bf16 does not", 0.62),
            ("grad-scaler-unscale-order", "fp16 without, or with misused, grad scaler", 0.35),
            ("mixed-precision", "A part of the model needs fp32", 0.3),
        ),
    ),
    Symptom(
        "loss.fp16",
        r"(?:fp16|float16|half)[^.;]{0,80}(?:\bnan|\binf\b|diverg|black image|wrong|worse|underflow|overflow)|(?:nan"
        r"|diverg|underflow|overflow|black image)[^.;]{0,80}(?:fp16|float16|half)",
        (("bf16-instead-of-fp16", "fp16 over- or underflows where bf16 does not", 0.80),),
    ),
    Symptom(
        "loss.autocast",
        r"(?:backward|training loop|whole loop|entire)[^.;]{0,80}autocast|autocast[^.;]{0,100}(?:backward|worse"
        r"|whole|entire)",
        (("autocast-forward-only", "Backward runs inside autocast", 0.78),),
    ),
    Symptom(
        "loss.same-data",
        r"(?:same|identical|duplicate\w*) (?:data|batch\w*|samples?)|distributedsampler|set_epoch|uneven|last batch"
        r"|epoch end|end of (?:the )?epoch",
        (("distributed-sampler", "Ranks see the same, or different amounts of, data", 0.62),),
    ),
    Symptom(
        "hang.ranks",
        r"\b(?:hang(?:s|ing)?|stuck|freez(?:e|es|ing)|dead ?lock\w*|never (?:returns|ends))\b",
        (
            ("hang-in-collective", "The ranks wait for one that does not come", 0.45),
            ("hang-in-loader", "The training waits for data that do not come", 0.40),
            ("hang-alone", "Something by itself stands still", 0.35),
        ),
    ),
)

# What a program itself prints, and what it means.
PRINTED = (
    Symptom(
        "printed.cpu-and-gpu",
        r"\b(?:cpu)\b[^.;]{0,30}[\d.]+ ?(?:s|ms|us|sec\w*)\b[^;]{0,80}\b(?:gpu|cuda|mps)\b[^.;]{0,30}[\d.]+ ?(?:s|ms"
        r"|us|sec\w*)\b|\b(?:gpu|cuda|mps)\b[^.;]{0,30}[\d.]+ ?(?:s|ms|us"
        r"|sec\w*)\b[^;]{0,80}\bcpu\b[^.;]{0,30}[\d.]+ ?(?:s|ms|us|sec\w*)\b",
        (
            ("too-small-workload", "The work may be too small for a device", 0.5),
            ("synchronize-timing", "What is timed may be the launch, not the work", 0.4),
        ),
    ),
    Symptom(
        "printed.available",
        r"is_available\(\)[^a-z]{0,12}false\b",
        (
            ("wrong-torch-build-cpu-only", "This torch may be a CPU build", 0.5),
            ("driver-cuda-mismatch", "Driver and CUDA runtime may not fit together", 0.45),
            ("visible-devices", "The device may be hidden", 0.4),
        ),
    ),
    Symptom(
        "printed.waiting",
        r"\.(?:cpu|item|numpy|tolist)\(\)[^a-z0-9]{0,12}\d+(?:\.\d+)? ?(?:s|ms|sec\w*)\b",
        (("synchronize-timing", "The first call that waits gets the time of all that was launched", 0.6),),
    ),
    Symptom(
        "printed.reserved",
        r"reserved(?: memory)?\s?[:=]\s?[\d.]+ ?[gm]i?b",
        (
            (
                "benign-warning",
                "Reserved is the high-water mark of the allocator: more of it than allocated is normal",
                0.5,
            ),
        ),
    ),
    Symptom(
        "printed.time",
        r"(?:time for|elapsed|took|average)\b[^.;]{0,60}[\d.]+ ?(?:ms|us|µs|s)\b|\d+ ?(?:it/s|fps)\b",
        (
            ("too-small-workload", "The work may be too small for a device", 0.36),
            ("synchronize-timing", "What is timed may be the launch, not the work", 0.35),
            ("num-workers", "The step may wait for the loader", 0.2),
        ),
    ),
)
