"""Descriptions of memory that grows, is not given back or does not suffice."""

from __future__ import annotations

from .symptom import Symptom

# What a device that is full is cured by where the description says no more.
OUT = r"\boom\w*\b|out of (?:\w+ )?memory|(?:memory|vram|ram) (?:runs|ran|running) out|runs? out of (?:\w+ )?memory"
_AFTER_END = (
    r"(?:(?:after|when|once)\b[^.;]{0,30}\b|(?:process|program|script|job|run|training)(?:es|s)? (?:has |is |was )?)"
    r"(?:kill|stop|terminat|interrupt|abort|crash|ctrl|finish|end(?:s|ed)?\b|exit)\w*"
    r"[^.;]{0,90}\b(?:memory|vram|occup|hold|released|freed)"
    r"|(?:memory|vram)\b[^.;]{0,40}(?:not|never) (?:be )?(?:released|freed|deallocated)[^.;]{0,20}\b(?:after|when|on)\b"
    r"[^.;]{0,30}\b(?:kill|stop|terminat|interrupt|abort|crash|ctrl|finish|end|exit)"
)
_FIRST = r"(?:first|one) (?:gpu|card|device)|gpu ?0|cuda:0|device 0"
_PROCESSES = r"\bddp\b|distributed ?data ?parallel|torchrun|\branks?\b|each process|every process|all processes"
_RAM = (
    r"\b(?:ram|cpu memory|host memory|system memory|main memory|cpu ram|(?:memory|ram) (?:of|on) the (?:host|machine)"
    r"|swap(?:s|ping|ped)?)\b"
)

SYMPTOMS = (
    Symptom(
        "memory.grows-host",
        rf"^(?=.*(?:data ?loader|worker|data ?set)).*{_RAM}[^.;]{{0,80}}(?:grow|increas|decreas|leak|full|exhaust"
        r"|out of|not freed)",
        (
            ("num-workers", "Each loader worker copies the data set", 0.74),
            ("host-memory-limit", "The host's memory runs out", 0.62),
            ("memory-leak-in-user-list", "A list grows on the host", 0.35),
        ),
    ),
    Symptom(
        "memory.grows-host",
        rf"(?<!gpu )(?<!cuda ){_RAM}[^.;]{{0,60}}(?:grow|increas|decreas|leak|full|exhaust|out of)"
        r"|memory[^.;]{0,40}until[^.;]{0,30}killed",
        (
            ("host-memory-limit", "The host's memory runs out", 0.62),
            ("num-workers", "Each loader worker copies the data set", 0.50),
            ("memory-leak-in-user-list", "A list grows on the host", 0.35),
            ("pin-memory", "Pinned memory is rounded up and not given back", 0.3),
        ),
    ),
    Symptom(
        "memory.not-freed",
        r"(?:not (?:freed|released)|never (?:freed|released)|still (?:occupied|allocated|used)|does(?:n't"
        r"| not) (?:free|release))|empty_cache|after del\b",
        (
            ("benign-warning", "The allocator keeps freed memory for reuse; nvidia-smi counts it", 0.42),
            ("oom-exception-holds-frames", "Something still refers to the tensors", 0.46),
            ("empty-cache", "Cached memory can be returned for others", 0.45),
            ("memory-leak-in-user-list", "A container keeps tensors alive", 0.3),
        ),
    ),
    Symptom(
        "memory.leak",
        r"memory leak|leaks? memory|memory[^.;]{0,40}(?:grow|increas|creep)|(?:grow|increas)\w*[^.;]{0,30}memory",
        (
            ("detach-loss-accumulation", "A kept loss keeps the graph of its step", 0.60),
            ("memory-leak-in-user-list", "A container keeps tensors of earlier steps", 0.55),
            ("upgrade-library", "A library leaks", 0.25),
            ("retain-graph", "A kept graph grows from step to step", 0.25),
        ),
    ),
    Symptom(
        "memory.loss",
        r"loss(?:es)?\b[^.;]{0,60}(?:accumulat|summed|append|returned|stored|kept|collected|as tensors?)"
        r"|(?:accumulat|sum|append|stor|return|keep)\w*[^.;]{0,40}\bloss(?:es)?\b|with (?:its|their) graphs?"
        r"|total_loss|running_loss|loss_sum",
        (("detach-loss-accumulation", "A kept loss keeps the graph of its step", 0.78),),
    ),
    Symptom(
        "memory.collected",
        r"(?:collect|accumulat|concatenat|append|stor|keep|cach|gather)\w*[^.;]{0,60}(?:outputs?|predictions?"
        r"|targets?|features?|results?|tensors|lists?|histor)|(?:outputs?|predictions?|targets?"
        r"|features?)[^.;]{0,40}(?:collected|accumulated|kept|stored|appended|cached)|matplotlib|figures?\b",
        (
            ("memory-leak-in-user-list", "A container keeps tensors of earlier steps", 0.66),
            ("image-validation-full-set-on-gpu", "A whole set is kept on the device", 0.42),
        ),
    ),
    Symptom(
        "memory.whole-set",
        r"(?:whole|entire|full|all of the|large) (?:data ?set|set|validation|test|image|val)|all (?:outputs"
        r"|predictions|targets|test|validation)|full-size|metric",
        (("image-validation-full-set-on-gpu", "A whole set or a full-size image is evaluated at once", 0.60),),
    ),
    Symptom(
        "memory.evaluation",
        r"^(?=.*(?:memory|\boom\b|vram|\bgi?b\b)).*\b(?:validat|evaluat|inference|testing|test phase|predict|eval)\w*",
        (("no-grad-eval", "Evaluation keeps graphs for a backward that never comes", 0.60),),
    ),
    Symptom(
        "memory.evaluation",
        r"no_grad|inference_mode|no grad\b|set_grad_enabled|requires_grad|without gradients?",
        (("no-grad-eval", "Evaluation keeps graphs for a backward that never comes", 0.76),),
    ),
    Symptom(
        "memory.attention",
        r"\battention\b|\bsdpa\b|score matrix|softmax|\bq ?@ ?|query ?@|quadratic",
        (
            ("flash-attention-sdpa", "A score matrix of attention is materialised", 0.66),
            ("reduce-seq-length-or-resolution", "The score matrix grows with the square of the length", 0.55),
        ),
    ),
    Symptom(
        "memory.notebook",
        r"jupyter|notebook|colab|ipython|re-?run|(?:same|second|third) (?:cell|try|time|run)\b"
        r"|except(?:ion)?\b[^.;]{0,60}(?:retry|hold|keep|caught|memory)"
        r"|caught|retry",
        (
            ("oom-exception-holds-frames", "A notebook or a caught exception holds tensors of an earlier try", 0.72),
            ("empty-cache", "Cached memory can be returned after the exception is gone", 0.35),
        ),
    ),
    Symptom(
        "memory.adam",
        r"\badam\w*\b|optimizer state|second step|\bsgd\b|8-?bit",
        (("optimizer-state", "The optimizer's states do not fit beside weights and gradients", 0.72),),
    ),
    Symptom(
        "memory.resume",
        r"\bresum\w*|checkpoint (?:load|restor)|(?:load|restor)\w*[^.;]{0,40}(?:checkpoint|state_dict|weights)"
        r"|torch\.load|map_location",
        (("load-checkpoint-map-location-cpu", "The checkpoint is loaded onto the device", 0.72),),
    ),
    Symptom(
        "memory.ranks",
        r"(?:all|every|each) (?:ranks?|process\w*|workers?)\b[^.;]{0,80}(?:gpu ?0|cuda:0|first gpu|device 0)"
        r"|gpu ?0[^.;]{0,60}(?:all ranks|more memory|every|processes)",
        (
            ("set-device-per-rank", "Ranks share device 0", 0.72),
            ("load-checkpoint-map-location-cpu", "Every rank loads the checkpoint onto device 0", 0.66),
        ),
    ),
    Symptom(
        "memory.ranks",
        rf"^(?=.*(?:{_PROCESSES}))(?!.*(?:\bdp\b|nn\.data ?parallel)).*(?:{_FIRST})",
        (
            ("set-device-per-rank", "Ranks share device 0", 0.71),
            ("load-checkpoint-map-location-cpu", "Every rank loads the checkpoint onto device 0", 0.5),
        ),
    ),
    Symptom(
        "memory.gpu0",
        rf"(?:{_FIRST}|one of (?:them|the gpus))[^.;]{{0,80}}(?:more|most|out of memory|oom|full|imbalance|uses?\b|\d)"
        rf"|(?:{OUT})[^.;]{{0,40}}one of (?:them|the gpus)|imbalance|uneven memory|unbalanced",
        (
            ("dp-imbalance-gpu0", "DataParallel gathers on its first device", 0.55),
            ("ddp-instead-of-dp", "DistributedDataParallel balances the devices", 0.58),
        ),
    ),
    Symptom(
        "memory.zombie",
        rf"zombie|orphan|defunct|left-?over|after (?:kill|ctrl|interrupt|abort)\w*|no process\w* (?:is "
        rf"|are )?(?:shown|found|running|listed)|killing|reboot|{_AFTER_END}",
        (
            ("kill-zombie-process", "A left-over process holds the memory", 0.85),
            ("other-process-holds-gpu", "Another process holds part of the device", 0.4),
        ),
    ),
    Symptom(
        "memory.hidden",
        r"(?:another|other|wrong|different) gpu\b|cuda_visible_devices|free gpu|although (?:it|(?:the )?gpu"
        r"|the card) is (?:free|empty)|context on",
        (
            ("visible-devices", "The job runs on, or touches, another device than intended", 0.66),
            ("set-device-per-rank", "Each process must choose its device", 0.4),
        ),
    ),
    Symptom(
        "memory.fragmentation",
        r"fragment|memory_snapshot|max_split|expandable",
        (
            ("expandable-segments", "The allocator's free memory is in pieces too small", 0.72),
            ("max-split-size", "The allocator's free memory is in pieces too small", 0.71),
        ),
    ),
    Symptom(
        "memory.compile",
        r"torch\.compile|inductor|cuda ?graph|eager mode|reduce-overhead",
        (("compile-mode", "Compiled code or CUDA graphs hold memory of their own", 0.66),),
    ),
    Symptom(
        "memory.large-model",
        r"\b\d{1,3}(?:\.\d)?b\b|\d+ ?billion|falcon|llama|llava|mixtral|mistral|vicuna|qwen|gpt-?j|gpt-?neo|bloom"
        r"|codegen|glm|fine-?tun|\blora\b|language model|\bllms?\b",
        (
            ("lora-or-quantisation", "All weights are trained or held in full precision", 0.50),
            ("fsdp-or-zero", "Weights, gradients and states are too large for one device", 0.52),
            ("gradient-checkpointing", "Activations can be recomputed", 0.42),
            ("offload-cpu", "Weights can wait on the host", 0.35),
            ("optimizer-state", "Optimizer states are large", 0.3),
        ),
    ),
    Symptom(
        "memory.late",
        r"after (?:\d+|several|some|a few|many) (?:epochs?|k? ?iter\w*|steps?|batches|hours?)|(?:second|later"
        r"|next) (?:phase|stage)|multi-?scale|always (?:at|in) (?:the same|epoch)",
        (
            ("late-phase-or-multiscale", "A later phase or a larger scale needs more than the first", 0.52),
            ("detach-loss-accumulation", "Something is kept from each step", 0.35),
            ("memory-leak-in-user-list", "A container keeps tensors of earlier steps", 0.34),
        ),
    ),
    Symptom(
        "memory.length",
        r"\b\d{3,4}, ?\d{3,4}\)|(?:large|big|input|own|custom) (?:image|video|picture)s?|4k (?:image|video)"
        r"|seq\w*[ _]?len\w*|context (?:length|window)|max_?(?:length|model_len|seq\w*)|long(?:er|est)? (?:sequence"
        r"|sample|document|text|prompt|audio)|resolution|image size|\d{3,4} ?[x×] ?\d{3,4}|high-?res"
        r"|\d+k (?:tokens|seq\w*|context)",
        (
            (
                "reduce-seq-length-or-resolution",
                "Sequence length or resolution asks for more than the device has",
                0.64,
            ),
            ("flash-attention-sdpa", "A score matrix is materialised", 0.35),
        ),
    ),
    Symptom(
        "memory.serving",
        r"\bvllm\b|kv ?cache|gpu_memory_utilization|max_model_len",
        (
            ("reduce-seq-length-or-resolution", "The longest sequence does not fit the KV cache", 0.62),
            ("memory-fraction-cap", "The share given to the server is wrong", 0.45),
            ("tensor-parallel", "The weights leave no room on one device", 0.46),
        ),
    ),
    Symptom(
        "memory.upgraded",
        r"(?:after|since) [^.;]{0,30}(?:upgrad|downgrad|updat)"
        r"|after (?:up|down)grad|regress|since (?:version|v?\d)|newer version|older version|works? (?:fine )?(?:with"
        r"|in|on) (?:v?\d|the previous)",
        (
            ("upgrade-library", "A version changed what is kept", 0.58),
            ("gradient-checkpointing", "A default that saved memory changed", 0.5),
        ),
    ),
    Symptom(
        "memory.host",
        r"return code = -9|exit(?:code)?[^.;]{0,12}-9|host ram|oom[- ]killer|sigkill|\bram\b|killed",
        (("host-memory-limit", "The host's memory ran out", 0.82),),
    ),
    Symptom(
        "memory.offload",
        r"offload",
        (
            ("host-memory-limit", "What is offloaded needs room on the host", 0.42),
            ("offload-cpu", "More can wait on the host", 0.42),
        ),
    ),
    Symptom(
        "memory.retain",
        r"retain_graph|hidden state|truncated bptt",
        (("retain-graph", "A kept graph grows from step to step", 0.78),),
    ),
    Symptom(
        "memory.out",
        OUT,
        (
            ("reduce-batch-size", "The batch does not fit: live tensors fill the device", 0.40),
            ("reduce-seq-length-or-resolution", "Sequence length or resolution asks for more than there is", 0.33),
            ("no-grad-eval", "Evaluation keeps graphs for a backward that never comes", 0.22),
            ("gradient-checkpointing", "Activations can be recomputed", 0.20),
        ),
    ),
    Symptom(
        "memory.zero-grad",
        r"zero_grad|set_to_none",
        (("set-to-none", "Gradients keep their memory between steps", 0.5),),
    ),
)
