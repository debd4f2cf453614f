"""Every claim with its figures, thresholds and configurations, written down before any of them is measured.

The statements are those of common tutorials on GPU training. A threshold is the statement's own number where it has
one; where it has a word, the word is given a number here: dramatically faster is ≥ 1.3 ×, faster ≥ 1.05 ×, minimal loss
of accuracy ≤ 1 % of the loss, half the memory ≤ 0.55 ×, near-linear ≥ 95 % efficiency.
"""

from __future__ import annotations

from .claims import Claim, Figure

_NO_MEMORY = "torch counts no memory on a CPU: it has no caching allocator there"
_GPU_ONLY = "needs a CUDA device"
_TWO_GPUS = "needs 2 CUDA devices: DataParallel passes everything through on a CPU"
CUDA = ("cuda",)

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "amp-memory", "mixed precision halves memory", "reduces memory by 50 %", "precision",
        (
            Figure("conv", "conv: peak allocated, bf16 / fp32", at_most=0.55),
            Figure("gpt", "gpt: peak allocated, bf16 / fp32", at_most=0.55),
        ),
        {"cuda": "conv-large and gpt-small at their own batch, AdamW; highest allocated bytes of 3 steps from nothing"},
        {"cuda": 5}, {"cpu": _NO_MEMORY},
    ),
    Claim(
        "amp-speed", "mixed precision is faster", "20–30 % faster; elsewhere about 2 ×", "precision",
        (
            Figure("conv", "conv: step time, fp32 / bf16", at_least=1.2),
            Figure("gpt", "gpt: step time, fp32 / bf16", at_least=1.2),
            Figure("conv_20", "conv: 20–30 % faster", at_least=1.2, at_most=1.3, counts=False, of="conv"),
            Figure("gpt_20", "gpt: 20–30 % faster", at_least=1.2, at_most=1.3, counts=False, of="gpt"),
            Figure("conv_2", "conv: about 2 × faster", at_least=1.7, at_most=2.3, counts=False, of="conv"),
            Figure("gpt_2", "gpt: about 2 × faster", at_least=1.7, at_most=2.3, counts=False, of="gpt"),
        ),
        {
            "cuda": "conv-large and gpt-small at their own batch, AdamW, float32 as torch ships it; windows in turn",
            "cpu": "conv-small and gpt-tiny at their own batch, AdamW; windows in turn",
        },
        {"cuda": 10, "cpu": 10},
    ),
    Claim(
        "amp-accuracy", "mixed precision costs minimal accuracy", "minimal loss of accuracy", "precision",
        (
            Figure("bf16", "loss at equal samples, bf16 / fp32", at_most=1.01),
            Figure("fp16", "loss at equal samples, fp16 + GradScaler / fp32", at_most=1.01, devices=CUDA),
        ),
        {
            "cuda": "gpt-tiny, batch 8, 150 steps with the same samples, mean of the last 15; a seed for each repeat",
            "cpu": "gpt-tiny, batch 8, 60 steps with the same samples, mean of the last 6; a seed for each repeat",
        },
        {"cuda": 12, "cpu": 12},
    ),
    Claim(
        "lower-precision-memory", "a model wholly in float16 takes half the memory", "50 % less memory", "precision",
        (
            Figure("conv", "conv: peak allocated, float16 / float32", at_most=0.55),
            Figure("gpt", "gpt: peak allocated, float16 / float32", at_most=0.55),
        ),
        {"cuda": "conv-large and gpt-small, .half() on model and inputs, AdamW; highest allocated bytes of 3 steps"},
        {"cuda": 5}, {"cpu": _NO_MEMORY},
    ),
    Claim(
        "gradscaler-underflow", "GradScaler prevents float16 gradients from underflowing to zero",
        "GradScaler prevents underflow", "precision",
        (
            Figure("with", "lost with GradScaler", "value", at_most=0.01, unit="%"),
            Figure("remaining", "lost with it, as a share of lost without", "value", at_most=0.1, unit="%"),
            Figure("without", "lost without GradScaler", "value", unit="%"),
        ),
        {
            "cuda": "gpt-small after 10 float32 steps: gradient elements that are not 0 in float32, but 0 in fp16",
            "cpu": "gpt-tiny, batch 2, after 10 float32 steps: gradient elements not 0 in float32, but 0 in fp16",
        },
        {"cuda": 8, "cpu": 8},
    ),
    Claim(
        "accumulation-equivalence", "gradient accumulation simulates a larger batch", "same gradients, less memory",
        "memory",
        (
            Figure("gradients", "difference of the gradients, of their norm", "value", at_most=1e-4, unit=""),
            Figure("memory", "peak allocated, 4 micro-batches / one batch", at_most=0.95, devices=CUDA),
        ),
        {
            "cuda": "gpt-small float32, 4 × batch 4 against batch 16; a seed for each repeat",
            "cpu": "gpt-tiny float32, 4 × batch 2 against batch 8; a seed for each repeat",
        },
        {"cuda": 6, "cpu": 4},
    ),
    Claim(
        "checkpointing-tradeoff", "gradient checkpointing trades compute for memory", "memory down, time up", "memory",
        (
            Figure("memory", "peak allocated, checkpointed / not", at_most=0.95, devices=CUDA),
            Figure("time", "step time, checkpointed / not", at_least=1.05),
        ),
        {"cuda": "gpt-small bf16, batch 8, every block checkpointed; windows in turn",
         "cpu": "gpt-tiny, batch 8, every block checkpointed; windows in turn"},
        {"cuda": 6, "cpu": 6},
    ),
    Claim(
        "empty-cache-scope", "empty_cache gives cached blocks back to the driver and frees nothing in use",
        "returns cached blocks only", "memory",
        (
            Figure("allocated", "change of the allocated bytes", "value", at_least=0, at_most=0, unit="B"),
            Figure("returned", "given back, of what was cached", "value", at_least=0.5, at_most=1, unit="%"),
            Figure("driver", "free at the driver, of what was given back", "value", at_least=0.95, at_most=1.05,
                   unit="%"),
        ),
        {"cuda": "gpt-small, model and optimizer state in use, after a step; allocator and driver before and after"},
        {"cuda": 3}, {"cpu": _GPU_ONLY},
    ),
    Claim(
        "gpu-vs-cpu", "training on a GPU is 10 to 50 times faster than on a CPU", "10–50 ×, by architecture", "devices",
        (
            Figure("mlp", "mlp: step time, CPU / GPU", at_least=10, at_most=50),
            Figure("conv", "conv: step time, CPU / GPU", at_least=10, at_most=50),
            Figure("gpt", "gpt: step time, CPU / GPU", at_least=10, at_most=50),
        ),
        {"cuda": "mlp-large batch 512, conv-large batch 16, gpt-small batch 4; float32 as torch ships it, AdamW"},
        {"cuda": 22}, {"cpu": _GPU_ONLY},
    ),
    Claim(
        "tiny-model", "a tiny model trains faster on the CPU", "the CPU beats CUDA on tiny models", "devices",
        (
            Figure("tiny", "width 16: step time, CPU / GPU", at_most=1.0),
            Figure("crossing", "width from which the GPU is faster", unit=""),
        ),
        {"cuda": "3 linear layers, batch 32, AdamW, float32, widths 16 to 4,096; windows in turn"},
        {"cuda": 8}, {"cpu": _GPU_ONLY},
    ),
    Claim(
        "sync-timing", "timing GPU work without synchronize is wrong", "measures the launch, not the work", "devices",
        (
            Figure("product", "matrix product: true time / time without", at_least=1.5),
            Figure("step", "training step: true time / time without", at_least=1.5),
        ),
        {"cuda": "8192 × 8192 float32 product, and one step of gpt-small, from an idle GPU; perf_counter either way"},
        {"cuda": 4}, {"cpu": "nothing on a CPU runs behind the caller's back: there is nothing to synchronize"},
    ),
    Claim(
        "pin-memory", "pinned memory makes host-to-device copies faster", "faster copies", "inputs",
        (
            Figure("bandwidth", "copy bandwidth, pinned / pageable", at_least=1.2),
            Figure("step", "step time, pageable / pinned and non_blocking"),
        ),
        {"cuda": "copies of 256 MiB; steps of conv-large bf16 with each batch copied from the host"},
        {"cuda": 6}, {"cpu": _GPU_ONLY},
    ),
    Claim(
        "workers", "more DataLoader workers cure an idle GPU", "raise num_workers when the GPU idles", "inputs",
        (
            Figure("idle", "idle share of a step with workers", "value", at_most=0.1, unit="%"),
            Figure("idle_without", "idle share of a step without workers", "value", unit="%"),
            Figure("step", "step time, none / workers"),
        ),
        {
            "cuda": "conv-large bf16, batch 64, loading costs one core two steps; no workers against one a core, ≤ 8",
            "cpu": "conv-small, batch 32, loading costs one core two steps; no workers against one a core, ≤ 8",
        },
        {"cuda": 12, "cpu": 12},
    ),
    Claim(
        "cudnn-benchmark", "cudnn.benchmark speeds up convolutions", "faster at fixed shapes", "cudnn",
        (
            Figure("fixed", "fixed shapes: step time, off / on", at_least=1.05),
            Figure("changing", "new shapes all the time: step time, off / on"),
        ),
        {"cuda": "conv-large float32, a process each; batch 256 at 64 pixels, then batch 32 at sizes not seen before"},
        {"cuda": 14}, {"cpu": "needs a CUDA device: cuDNN runs on NVIDIA GPUs only"},
    ),
    Claim(
        "cudnn-deterministic", "deterministic algorithms give exact reproducibility", "exactly the same results",
        "cudnn",
        (
            Figure("equal", "runs with the same bits in every loss", "value", at_least=1, at_most=1, unit="%"),
            Figure("equal_without", "the same with the switch off", "value", unit="%"),
            Figure("cost", "step time, on / off"),
        ),
        {
            "cuda": "conv-large float32, batch 64: two runs of 10 steps from one seed, use_deterministic_algorithms",
            "cpu": "conv-small, batch 16: two runs of 10 steps from one seed, use_deterministic_algorithms",
        },
        {"cuda": 10, "cpu": 8},
    ),
    Claim(
        "dp-cpu", "DataParallel on a CPU-only machine does not speed up", "no speed-up", "parallel_cpu",
        (Figure("ratio", "step time, without / with DataParallel", at_least=0.95, at_most=1.05),),
        {"cpu": "mlp-small at its own batch, every GPU hidden; windows in turn"},
        {"cpu": 8}, only="cpu",
    ),
    Claim(
        "dp-vs-ddp", "DistributedDataParallel is faster than DataParallel", "DDP is faster", "parallel",
        (Figure("ratio", "step time, DataParallel / DDP", at_least=1.05),),
        {"cuda": "gpt-small bf16, 8 samples a GPU, the same global batch on all of up to 4 GPUs, AdamW"},
        {"cuda": 15}, {"cpu": _TWO_GPUS}, gpus=2,
    ),
    Claim(
        "dp-bottleneck", "DataParallel gathers on the first GPU and is bound by the GIL", "GPU 0 and the GIL",
        "parallel",
        (
            Figure("memory", "peak allocated, GPU 0 / mean of the others", at_least=1.1),
            Figure("gil", "what each further thread adds to launching a forward, in launches alone", "value",
                   at_least=0.5, unit="×"),
            Figure("overhead", "share of a step that is not one GPU's own work", "value", unit="%"),
        ),
        {"cuda": "gpt-small bf16, 8 samples a GPU on up to 4 GPUs; the GIL with 1 sample each, where launching counts"},
        {"cuda": 12}, {"cpu": _TWO_GPUS}, gpus=2,
    ),
    Claim(
        "ddp-scaling", "DDP scales near-linearly", "near-linear scaling", "parallel",
        (
            Figure("2", "efficiency of 2 processes", at_least=0.95, unit="%"),
            Figure("4", "efficiency of 4 processes", at_least=0.95, unit="%", devices=CUDA, gpus=4),
        ),
        {
            "cuda": "gpt-1.3b bf16 (smaller where it does not fit), weak scaling: one micro-batch on each GPU, AdamW",
            "cpu": "mlp-small, weak scaling over gloo: 2 processes of half the cores each against one of them alone",
        },
        {"cuda": 65, "cpu": 12}, gpus=2,
    ),
    Claim(
        "compile-warmup", "the first compiled step is slow, later ones are fast", "warm up before timing", "compiling",
        (
            Figure("first", "first compiled step / later ones", at_least=10),
            Figure("seconds", "first compiled step", unit="s"),
            Figure("gain", "step time, eager / compiled", unit="×"),
        ),
        {
            "cuda": "gpt-small cut to 4 blocks, bf16, batch 8, torch.compile(model) with empty caches",
            "cpu": "gpt-tiny, batch 8, torch.compile(model) with empty caches",
        },
        {"cuda": 30, "cpu": 40},
    ),
    Claim(
        "compile-speed", "torch.compile makes training dramatically faster", "dramatically faster", "compiling",
        (
            Figure("default", "default: step time, eager / compiled", at_least=1.3),
            Figure("reduce-overhead", "reduce-overhead: step time, eager / compiled", at_least=1.3, devices=CUDA),
            Figure("max-autotune", "max-autotune: step time, eager / compiled", at_least=1.3, devices=CUDA),
        ),
        {
            "cuda": "gpt-small cut to 4 blocks, bf16, batch 8, torch.compile(model); steady steps, windows in turn",
            "cpu": "gpt-tiny, batch 8, torch.compile(model); steady steps, windows in turn",
        },
        {"cuda": 50, "cpu": 10},
    ),
    Claim(
        "compile-fullgraph", "fullgraph forbids graph breaks for the best speed", "for best performance", "compiling",
        (
            Figure("refuses", "a graph break is an error", "value", at_least=1, at_most=1, unit="%"),
            Figure("speed", "step time, default / fullgraph", at_least=1.05),
        ),
        {
            "cuda": "gpt-small cut to 4 blocks, bf16, batch 8, which has no breaks; steady steps, windows in turn",
            "cpu": "gpt-tiny, batch 8, which has no breaks; steady steps, windows in turn",
        },
        {"cuda": 15, "cpu": 15},
    ),
)  # fmt: skip
BY_ID = {claim.id: claim for claim in CLAIMS}
