"""Messages of the libraries below torch, often a full device in disguise, and of AMD's, Apple's and Intel's stacks."""

from __future__ import annotations

from .rule import Option as O
from .rule import Rule
from .rules_build import ARCH, DRIVER, HIDDEN

FULL = "The device is full: the library found no room for its handle or workspace"
LABEL = "An index or label outside its range, seen late"
FAULT = "A fault of the library's version"

RULES = (
    Rule(
        "disguise.cublas",
        (
            "cublas_status_alloc_failed",
            "cublas_status_not_initialized",
            "cublascreate",
            "hipblas_status_alloc_failed",
            "cublas_status_internal_error",
        ),
        (
            O(
                "bad-index-or-label",
                "An index or label outside its range, seen late",
                0.56,
                words=r"not_initialized|alloc_failed|internal",
            ),
            O("reduce-batch-size", FULL, 0.60),
            O("visible-devices", HIDDEN, 0.46, words=r"alloc_failed"),
            O("driver-cuda-mismatch", DRIVER, 0.45),
            O("visible-devices", HIDDEN, 0.38),
            O(
                "bad-index-or-label",
                "An index or label outside its range, seen late",
                0.75,
                "likely",
                words=r"embedding|cross_?entropy|nll_loss|assert|n_classes",
            ),
            O("other-process-holds-gpu", "Another process holds part of the device", 0.30),
        ),
    ),
    Rule(
        "disguise.cublas-execution",
        (
            "cublas_status_execution_failed",
            "cublas_status_invalid_value",
            "cublas_status_not_supported",
            "cublas_status_arch_mismatch",
        ),
        (
            O("driver-cuda-mismatch", DRIVER, 0.55),
            O("bad-index-or-label", "An index or label outside its range, seen late", 0.5),
            O("upgrade-library", "A fault of the library's version", 0.45),
            O("wrong-torch-build-arch", ARCH, 0.6, words=r"arch_mismatch"),
        ),
    ),
    Rule(
        "disguise.cudnn-plan",
        (
            "unable to find a valid cudnn algorithm",
            "no valid convolution algorithms available in cudnn",
            "cudnn_status_alloc_failed",
            "unable to find an engine to execute",
            "get was unable to find an engine",
            "no valid execution plans",
        ),
        (
            O("reduce-batch-size", FULL, 0.72, "likely"),
            O("cudnn-benchmark-off", "The search for the fastest algorithm needs workspaces", 0.50),
            O("other-process-holds-gpu", "Another process holds part of the device", 0.35),
            O("driver-cuda-mismatch", DRIVER, 0.30),
        ),
    ),
    Rule(
        "disguise.cudnn",
        (
            "cudnn_status_not_initialized",
            "cudnn_status_internal_error",
            "cudnn_status_mapping_error",
            "cudnn_status_execution_failed",
            "cudnn_status_not_supported",
        ),
        (
            O("reduce-batch-size", FULL, 0.60),
            O("driver-cuda-mismatch", DRIVER, 0.50),
            O("cudnn-benchmark-off", "The search for the fastest algorithm fails", 0.45),
            O("other-process-holds-gpu", "Another process holds part of the device", 0.40),
            O("bad-index-or-label", "An index outside its range, seen late", 0.2),
            O("upgrade-library", "A fault of the library's version", 0.2),
        ),
    ),
    Rule(
        "disguise.nvml",
        ("nvml_success ==", "driver_api.cpp"),
        (
            O("reduce-batch-size", "Memory ran out, and the driver could not say how much is left", 0.70, "likely"),
            O("reduce-seq-length-or-resolution", "Memory ran out, and the driver could not say how much is left", 0.5),
            O("driver-cuda-mismatch", "NVML does not answer in this container or on this device", 0.35),
        ),
    ),
    Rule(
        "vllm.no-blocks",
        (
            "no available memory for the cache blocks",
            "maximum number of tokens that can be stored in kv cache",
            "is larger than the available kv cache memory",
            "kv cache is needed",
        ),
        (
            O("reduce-seq-length-or-resolution", "The longest sequence does not fit the KV cache", 0.85, "likely"),
            O("memory-fraction-cap", "gpu_memory_utilization leaves the KV cache no room", 0.75, "likely"),
            O("tensor-parallel", "The weights leave no room on one device", 0.5),
        ),
    ),
    Rule(
        "vllm.startup",
        ("less than desired gpu memory utilization",),
        (
            O("other-process-holds-gpu", "The device is in use before the server starts", 0.85, "likely"),
            O("memory-fraction-cap", "gpu_memory_utilization asks for more than is free", 0.8, "likely"),
        ),
    ),
    Rule(
        "mps.unsupported",
        ("is not currently implemented for the mps device",),
        (O("upgrade-library", "The operation is missing on MPS in this version", 0.7, "likely"),),
    ),
    Rule(
        "mps.buffer",
        ("invalid buffer size", "mpsndarray", "int_max"),
        (
            O("reduce-seq-length-or-resolution", "One tensor is larger than MPS can make", 0.7, "likely"),
            O("flash-attention-sdpa", "A score matrix of attention is materialised", 0.5),
            O("reduce-batch-size", "The batch makes one tensor too large", 0.45),
        ),
        pattern=r"invalid buffer size|(?:mps|ndarray)[^~]{0,80}int_max|total bytes of ndarray >"
        r"|mpsndarray[^~]{0,100}(?:exceed|too large|2\*\*3[12])",
    ),
    Rule(
        "xpu.limit",
        (
            "exceeds 4gb",
            "greater than 4gb",
            "larger than 4gb",
            "over 4gb",
            "4gb limit",
            "4 gib limit",
            "single allocation",
        ),
        (O("single-allocation-limit", "The request is over the limit for one allocation", 0.85, "likely"),),
        pattern=r"(?:alloc|xpu|arc|buffer)[^~]{0,120}(?:4 ?gi?b)|single allocation",
    ),
    Rule(
        "xpu.device",
        (
            "ur_result_error_out_of_resources",
            "ur_result_error_device_lost",
            "native api failed",
            "pi_error_out_of_resources",
        ),
        (
            O("single-allocation-limit", "An allocation may be over the limit for one", 0.5),
            O("driver-cuda-mismatch", DRIVER, 0.45),
            O("reduce-batch-size", FULL, 0.45),
        ),
    ),
    Rule(
        "build.hip-arch",
        ("hiperrornobinaryforgpu", "invalid device function", "unable to find code object for all current devices"),
        (
            O("wrong-torch-build-arch", ARCH, 0.85, "likely"),
            O("driver-cuda-mismatch", DRIVER, 0.4),
        ),
    ),
    Rule(
        "disguise.cublas",
        ("cublas runtime error : library not initialized", "cublas runtime error : resource allocation failed"),
        (
            O("reduce-batch-size", FULL, 0.60),
            O("bad-index-or-label", LABEL, 0.55),
            O("driver-cuda-mismatch", DRIVER, 0.50),
        ),
    ),
    Rule(
        "disguise.cublas-execution",
        (
            "cublas runtime error : the gpu program failed",
            "cublas runtime error : unknown",
            "curand_status",
            "cusolver",
        ),
        (
            O("driver-cuda-mismatch", DRIVER, 0.58),
            O("bad-index-or-label", LABEL, 0.50),
            O("wrong-torch-build-arch", ARCH, 0.45),
        ),
        pattern=r"cublas runtime error"
        r"|(?:curand|cusolver)_?(?:status)?[^~]{0,40}(?:failure|failed|error|not_initialized)",
    ),
    Rule(
        "disguise.cudnn",
        ("cudnn_status_bad_param", "cudnn_status_arch_mismatch"),
        (
            O("driver-cuda-mismatch", DRIVER, 0.50),
            O("upgrade-library", FAULT, 0.45),
            O("cast-to-model-dtype", "Half and full precision meet in one operation", 0.30),
            O("reduce-batch-size", FULL, 0.28),
        ),
    ),
    Rule(
        "hip.libraries",
        (
            "miopen error",
            "miopenstatus",
            "rocblas error",
            "memory access fault by gpu node",
            "hip error:",
            "hsa_status",
        ),
        (
            O("wrong-torch-build-arch", ARCH, 0.72, "likely", words=r"for gpu arch|tensilelibrary"),
            O("driver-cuda-mismatch", "ROCm, its driver and this torch do not fit together", 0.60, "likely"),
            O("upgrade-library", FAULT, 0.50),
            O("reduce-batch-size", FULL, 0.35),
        ),
        pattern=r"miopen ?error|miopenstatus|rocblas error|memory access fault by gpu node|hsa_status_error"
        r"|hip error: (?!out of memory|invalid device function)",
    ),
    Rule(
        "disguise.triton",
        ("triton error [cuda]: out of memory",),
        (
            O("reduce-batch-size", FULL, 0.60, "likely"),
            O("compile-mode", "Compiled kernels need memory of their own", 0.50),
            O("empty-cache", "torch's cache leaves others no room", 0.45),
        ),
    ),
    Rule(
        "build.capability",
        (
            "only supports ampere gpus",
            "expected is_sm80",
            "bfloat16 is only supported on gpus with compute capability",
            "doesn't support bf16/gpu",
            "is_sm80 || is_sm90",
            "requires ampere",
        ),
        (
            O(
                "cast-to-model-dtype",
                "This device is older than the type that is asked for: fp16 or fp32 works",
                0.55,
                "likely",
                words=r"bf16|bfloat16",
            ),
            O(
                "flash-attention-sdpa",
                "This device is older than the attention kernel: another backend works",
                0.60,
                "likely",
                unlike=r"bf16|bfloat16",
            ),
            O("upgrade-library", "A build for this device may exist", 0.50),
            O("wrong-torch-build-arch", ARCH, 0.40),
        ),
    ),
)
