"""Messages of the training loop: grad scaler, autograd, compile, and warnings that are no problem."""

from __future__ import annotations

from .rule import Option as O
from .rule import Rule

SCALER = "The grad scaler's calls come in the wrong order"

RULES = (
    Rule(
        "scaler.order",
        (
            "no inf checks were recorded",
            "unscale_() has already been called",
            "unscale_() is being called after step",
            "step() has already been called since the last update",
            "gradscaler.step() currently does not support",
        ),
        (
            O("grad-scaler-unscale-order", SCALER, 0.95, "definite"),
            O("find-unused-parameters", "The optimizer's parameters took no gradient", 0.25, words=r"no inf checks"),
        ),
    ),
    Rule(
        "scaler.fp16",
        ("to unscale fp16 gradients",),
        (
            O("cast-to-model-dtype", "The trained weights are fp16; the scaler needs them in fp32", 0.85, "likely"),
            O("upgrade-library", "A library made the trained weights fp16", 0.80, "likely", when=("lora", "llm")),
            O("upgrade-library", "A library made the trained weights fp16", 0.45),
            O("grad-scaler-unscale-order", SCALER, 0.4),
            O("bf16-instead-of-fp16", "bf16 needs no scaler", 0.3),
        ),
    ),
    Rule(
        "scaler.bf16",
        ("not implemented for 'bfloat16'", "_amp_foreach_non_finite_check_and_unscale_cuda"),
        (
            O(
                "grad-scaler-unscale-order",
                "A grad scaler is used with bf16, which needs none",
                0.7,
                "likely",
                words=r"unscale",
            ),
            O("cast-to-model-dtype", "The operation has no bf16 form here", 0.5, "likely"),
            O("upgrade-library", "A newer version has the operation in bf16", 0.4),
        ),
    ),
    Rule(
        "scaler.cuda",
        ("gradscaler is enabled, but cuda is not available", "cuda is not available or torch_xla"),
        (
            O(
                "wrong-torch-build-cpu-only",
                "Mixed precision for CUDA is asked for where torch sees no CUDA",
                0.7,
                "likely",
            ),
            O(
                "deprecated-amp",
                "The old names of amp are for CUDA alone: here they switch mixed precision off",
                0.75,
                "likely",
                words=r"torch\.cuda\.amp\.(?:gradscaler|autocast)\(args\.\.\.\)` is deprecated",
            ),
            O("visible-devices", "The device may be hidden", 0.4),
        ),
        severity="warning",
    ),
    Rule(
        "amp.overflow",
        (
            "gradient overflow",
            "minimum loss scale reached",
            "loss scale already at minimum",
            "current loss scale already at minimum",
        ),
        (
            O(
                "bf16-instead-of-fp16",
                "fp16 over- or underflows again and again",
                0.8,
                "likely",
                unless=("overflow-settled",),
            ),
            O("grad-scaler-unscale-order", SCALER, 0.3, unless=("overflow-settled",)),
            O(
                "benign-warning",
                "A skipped step now and then is how the scaler finds its scale",
                0.35,
                unless=("overflow-settled",),
            ),
        ),
        severity="warning",
    ),
    Rule(
        "amp.overflow",
        ("gradient overflow", "overflow detected", "skipping step"),
        (
            O(
                "benign-warning",
                "Not a problem: the scaler has found its scale",
                0.8,
                "likely",
                when=("overflow-settled",),
            ),
        ),
        severity="info",
    ),
    Rule(
        "amp.nan",
        (
            "loss: nan",
            "loss=nan",
            "loss is nan",
            "nan loss",
            "loss nan",
            "loss': nan",
            "nansexception",
            "probability tensor contains either",
            "nan detected",
            "returned nan values in its",
            "all nan",
        ),
        (
            O(
                "bf16-instead-of-fp16",
                "fp16 overflows where bf16 does not",
                0.7,
                "likely",
                words=r"fp16|float16|half|autocast|amp|mixed|gradscaler",
            ),
            O("bf16-instead-of-fp16", "fp16 overflows where bf16 does not", 0.5),
            O(
                "grad-scaler-unscale-order",
                "fp16 without, or with misused, grad scaler",
                0.4,
                words=r"fp16|float16|half|amp",
            ),
            O("cast-to-model-dtype", "The trained weights are not fp32", 0.25),
        ),
    ),
    Rule(
        "autograd.twice",
        (
            "trying to backward through the graph a second time",
            "saved intermediate values of the graph are freed",
            "buffers have already been freed",
        ),
        (
            O(
                "retain-graph",
                "A graph of an earlier step is used again: state is carried over without detach()",
                0.95,
                "definite",
            ),
            O("detach-loss-accumulation", "A kept loss is used again", 0.35),
        ),
    ),
    Rule(
        "autograd.in-place",
        ("has been modified by an inplace operation",),
        (
            O("retain-graph", "A value that backward needs was changed, often with retain_graph", 0.5),
            O(
                "ddp-static-graph-or-nonreentrant",
                "DDP's buffers change between two forward passes",
                0.4,
                when=("ddp",),
            ),
            O("upgrade-library", "A library's in-place operation", 0.25),
        ),
    ),
    Rule(
        "autograd.no-grad",
        ("does not require grad and does not have a grad_fn", "none of the inputs have requires_grad=true"),
        (
            O(
                "ddp-static-graph-or-nonreentrant",
                "Reentrant checkpointing needs an input with a gradient",
                0.7,
                "likely",
                words=r"none of the inputs",
            ),
            O("no-grad-eval", "The forward pass of training ran without gradients", 0.4),
            O("gradient-checkpointing", "Checkpointed inputs have no gradient", 0.35),
            O("detach-loss-accumulation", "The loss was detached", 0.3),
        ),
    ),
    Rule(
        "checkpoint.metadata",
        (
            "recomputed values for the following tensors have different metadata",
            "a different number of tensors was saved during",
        ),
        (
            O("ddp-static-graph-or-nonreentrant", "The recomputed forward pass differs from the first", 0.5, "likely"),
            O(
                "gradient-checkpointing",
                "What is recomputed is not what was computed, for example outside autocast",
                0.55,
                "likely",
            ),
            O("upgrade-library", "A library's checkpointing does not match its forward pass", 0.35),
        ),
    ),
    Rule(
        "compile.recompile",
        ("recompile_limit", "cache_size_limit", "failonrecompilelimithit"),
        (
            O(
                "dynamic-shapes-recompile",
                "Each new shape or value is compiled again, up to the limit",
                0.95,
                "definite",
            ),
            O("compile-graph-break", "Code that changes between calls breaks the graph", 0.3),
        ),
    ),
    Rule(
        "compile.backend",
        (
            "backendcompilerfailed",
            "cannot find a working triton",
            "tritonmissing",
            "triton not installed",
            "failed to find c compiler",
            "inductorerror",
            "too old to be supported by the triton",
            "loweringexception",
            "no module named 'triton'",
            "not yet supported for torch.compile",
            "dynamo is not supported on",
            "cppcompileerror",
            "passmanager::run failed",
            "compilation error",
            "failed to find cuda",
        ),
        (
            O(
                "upgrade-library",
                "The compiler behind torch.compile is missing or does not fit",
                0.78,
                "likely",
                words=r"triton|c compiler|no module|importerror|filenotfound",
            ),
            O(
                "compile-mode",
                "torch.compile does not support this device",
                0.85,
                "likely",
                words=r"too old to be supported|cuda capability|not yet supported for torch\.compile"
                r"|dynamo is not supported on|passmanager::run failed",
            ),
            O(
                "driver-cuda-mismatch",
                "The compiler's CUDA and the driver do not fit together",
                0.62,
                "likely",
                words=r"kernel image is invalid|unsupported toolchain|ptxas",
            ),
            O("compile-mode", "Without torch.compile the program runs", 0.6, "likely"),
            O("upgrade-library", "A fault of this version's compiler", 0.58, "likely"),
        ),
        pattern=r"backendcompilerfailed|working triton|tritonmissing|triton not installed|failed to find c compiler"
        r"|inductorerror|too old to be supported by the triton|loweringexception"
        r"|not yet supported for torch\.compile|dynamo is not supported on|cppcompileerror|passmanager::run failed"
        r"|no module named '?triton",
    ),
    Rule(
        "compile.break",
        (
            "graph break from",
            "graph break in",
            "graph break:",
            "torch._dynamo.exc.unsupported",
            "unsupported: call_",
            "torch._dynamo hit",
            "userwarning: graph break",
        ),
        (
            O("compile-graph-break", "Code that the compiler cannot take in splits the graph", 0.85, "likely"),
            O("dynamic-shapes-recompile", "Values that change are part of the graph", 0.3),
        ),
        pattern=r"graph break (?:from|in|:)|exc\.unsupported|unsupported: call_",
        severity="warning",
    ),
    Rule(
        "compile.dynamo",
        ("torch._dynamo.exc.", "internaltorchdynamoerror", "torchruntimeerror"),
        (
            O("upgrade-library", "A fault of this version's compiler", 0.55, "likely"),
            O("compile-mode", "Without torch.compile the program runs", 0.5, "likely"),
            O("compile-graph-break", "The compiler cannot take this code in", 0.3),
        ),
        pattern=r"torch\._dynamo\.exc\.(?!failonrecompile|backendcompiler|unsupported)|internaltorchdynamoerror",
    ),
    Rule(
        "compile.graphs",
        (
            "operation not permitted when stream is capturing",
            "capturing cuda graph",
            "cudagraph",
            "overwritten by a subsequent run",
            "accessing tensor output of cudagraphs",
            "cudagraphs dynamic shapes",
        ),
        (
            O("compile-mode", "CUDA graphs forbid what happens in the captured code", 0.75, "likely"),
            O(
                "dynamic-shapes-recompile",
                "Every shape records a graph of its own",
                0.6,
                "likely",
                words=r"distinct sizes|distinct shapes|recorded \d+|dynamic shapes",
            ),
        ),
        pattern=r"not permitted when stream is capturing|overwritten by a subsequent run"
        r"|accessing tensor output of cudagraphs|cudagraphs? (?:dynamic shapes|has observed|support)"
        r"|cuda graph is empty|captures_underway",
    ),
    Rule(
        "benign.scheduler",
        ("lr_scheduler.step()` before `optimizer.step()",),
        (
            O("benign-warning", "With a grad scaler the first step may be skipped: harmless", 0.6, "likely"),
            O("grad-scaler-unscale-order", SCALER, 0.4),
        ),
        severity="info",
    ),
    Rule(
        "benign.strides",
        ("grad strides do not match bucket view strides",),
        (O("benign-warning", "A layout that costs a little speed, no error", 0.7, "likely"),),
        severity="info",
    ),
    Rule(
        "benign.no-unused",
        ("did not find any unused parameters in the forward pass",),
        (
            O("find-unused-parameters", "find_unused_parameters is set and costs a pass for nothing", 0.6, "likely"),
            O("benign-warning", "A hint about speed, no error", 0.55, "likely"),
        ),
        severity="info",
    ),
    Rule(
        "benign.threads",
        ("setting omp_num_threads environment variable for each process",),
        (O("benign-warning", "The launcher's note on threads, no error", 0.6, "likely"),),
        severity="info",
    ),
    Rule(
        "benign.lazy-cuda",
        ("expected to have exactly one context", "attempting to run cublas, but there was no current cuda context"),
        (O("benign-warning", "torch makes the context by itself: harmless", 0.8, "likely"),),
        severity="info",
    ),
    Rule(
        "benign.amp-name",
        ("torch.cuda.amp.gradscaler(args...)` is deprecated", "torch.cuda.amp.autocast(args...)` is deprecated"),
        (
            O("deprecated-amp", "An old name that still works", 0.6, "likely"),
            O("benign-warning", "A note on names, no error", 0.5, "likely"),
        ),
        severity="info",
    ),
    Rule(
        "benign.teardown",
        ("destroy_process_group() was not called", "terminate called without an active exception"),
        (O("benign-warning", "Training ended; only the end of the process group was untidy", 0.5),),
        severity="info",
    ),
    Rule(
        "compile.resource",
        ("out of resource: shared memory", "out of resources: shared memory", "outofresources"),
        (
            O("compile-mode", "A compiled kernel wants more on-chip memory than this device has", 0.75, "likely"),
            O("upgrade-library", "A fault of this version's compiler", 0.5),
        ),
    ),
)
