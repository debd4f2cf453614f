"""Messages about driver, CUDA, the torch build and which devices are visible, and disguises of a full device."""

from __future__ import annotations

from .rule import Option as O
from .rule import Rule

DRIVER = "Driver and CUDA runtime do not fit together"
HIDDEN = "The device is hidden or named wrongly"
ARCH = "This torch was not built for this device's architecture"
FULL = "The device is full: the library found no room for its handle or workspace"

RULES = (
    Rule(
        "build.cpu-only",
        ("not compiled with cuda enabled", "not linked with support for cuda"),
        (O("wrong-torch-build-cpu-only", "This torch is a CPU build", 0.97, "definite"),),
    ),
    Rule(
        "build.arch",
        (
            "no kernel image is available",
            "is not compatible with the current pytorch installation",
            "no longer supports this gpu",
            "not compiled for the architecture",
        ),
        (
            O("wrong-torch-build-arch", ARCH, 0.95, "definite"),
            O("driver-cuda-mismatch", DRIVER, 0.3),
        ),
    ),
    Rule(
        "driver.old",
        (
            "driver on your system is too old",
            "driver version is insufficient",
            "forward compatibility was attempted",
            "driver/library version mismatch",
            "provided ptx was compiled with an unsupported toolchain",
            "unsupported toolchain",
            "detected cuda version",
            "cuda version mismatch",
        ),
        (
            O("driver-cuda-mismatch", "The driver is older than this torch's CUDA", 0.95, "definite"),
            O("upgrade-library", "Another build of torch may fit the driver", 0.4),
        ),
    ),
    Rule(
        "driver.none",
        ("found no nvidia driver", "no nvidia driver on your system"),
        (
            O("no-gpu-driver", "No NVIDIA driver answers", 0.8, "likely"),
            O("driver-cuda-mismatch", "The driver is missing or does not fit", 0.7, "likely"),
            O("visible-devices", "The container or job was given no device", 0.6, "likely"),
            O("wrong-torch-build-cpu-only", "A machine without a device needs no CUDA build", 0.2),
        ),
    ),
    Rule(
        "driver.no-devices",
        (
            "no cuda gpus are available",
            "no cuda-capable device is detected",
            "no hip gpus are available",
            "cudagetdevicecount() > 0",
        ),
        (
            O("visible-devices", HIDDEN, 0.8, "likely"),
            O("driver-cuda-mismatch", DRIVER, 0.45),
            O("wrong-torch-build-cpu-only", "This torch may be a CPU build", 0.2),
        ),
    ),
    Rule(
        "driver.ordinal",
        ("invalid device ordinal", "invalid device id", "device index must be", "assertionerror: invalid device id"),
        (
            O("visible-devices", "A device is named that this process cannot see", 0.92, "definite"),
            O("set-device-per-rank", "More ranks than visible devices", 0.5),
        ),
    ),
    Rule(
        "driver.unknown",
        (
            "cuda unknown error",
            "error 999",
            "unexpected error from cudagetdevicecount",
            "system not yet initialized",
            "error 802",
            "cuda error: initialization error",
            "cuda initialization:",
            "cuda driver initialization failed",
        ),
        (
            O("driver-cuda-mismatch", DRIVER, 0.65, "likely"),
            O(
                "visible-devices",
                "CUDA_VISIBLE_DEVICES may have been changed after the start",
                0.60,
                "likely",
                words=r"incorrectly set up environment|cuda_visible_devices",
            ),
            O("visible-devices", HIDDEN, 0.4),
            O("kill-zombie-process", "A process may hold the driver in a bad state", 0.2),
        ),
    ),
    Rule(
        "driver.busy",
        ("devices are busy or unavailable", "all cuda-capable devices are busy"),
        (
            O("other-process-holds-gpu", "Another process uses the device exclusively", 0.75, "likely"),
            O("kill-zombie-process", "A left-over process may hold the device", 0.5),
            O("visible-devices", HIDDEN, 0.4),
        ),
    ),
    Rule(
        "driver.library",
        ("undefined symbol", "cannot open shared object file", "libcudart", "symbol lookup error", "dll load failed"),
        (
            O("driver-cuda-mismatch", "CUDA libraries of different versions are mixed", 0.7, "likely"),
            O("upgrade-library", "An extension was built against another torch", 0.6, "likely"),
        ),
        pattern=r"(?:lib(?:cu|nv|nccl|torch|c10)[^~]{0,120}(?:undefined symbol|cannot open shared object|version))"
        r"|symbol lookup error|dll load failed[^~]{0,200}(?:torch|c10|cuda)|undefined symbol: \w*(?:c10|at|torch"
        r"|nccl|cu)\w*",
    ),
    Rule(
        "driver.launch",
        (
            "unspecified launch failure",
            "illegal memory access",
            "misaligned address",
            "cuda error: unknown error",
            "illegal instruction was encountered",
            "hardware stack error",
        ),
        (
            O("upgrade-library", "A kernel reads where it must not: a fault of a library's version", 0.42),
            O("bad-index-or-label", "An index outside its range can end so", 0.40),
            O("driver-cuda-mismatch", DRIVER, 0.35),
            O("reduce-batch-size", "A full device can end so", 0.2),
        ),
    ),
    Rule(
        "driver.check",
        ("thcudacheck fail",),
        (
            O("bad-index-or-label", "An index outside its range is the usual reason of a failed check", 0.40),
            O("driver-cuda-mismatch", DRIVER, 0.35),
            O("reduce-batch-size", "A full device can end so", 0.3),
        ),
    ),
    Rule(
        "load.no-cuda",
        ("attempting to deserialize object on a cuda device", "attempting to deserialize object on cuda device"),
        (
            O("load-checkpoint-map-location-cpu", "The checkpoint names a device that is not here", 0.95, "definite"),
            O("visible-devices", HIDDEN, 0.3, words=r"device_count|torch\.cuda\.device"),
            O(
                "wrong-torch-build-cpu-only",
                "This torch sees no device at all",
                0.3,
                words=r"is_available\(\) is false",
            ),
        ),
    ),
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
            O("visible-devices", HIDDEN, 0.42),
            O("driver-cuda-mismatch", DRIVER, 0.40),
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
        ("nvml_success == r internal assert failed", "nvml_success == dynamicnvml"),
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
        ("invalid buffer size", "mpsndarray"),
        (
            O("reduce-seq-length-or-resolution", "One tensor is larger than MPS can make", 0.7, "likely"),
            O("flash-attention-sdpa", "A score matrix of attention is materialised", 0.5),
            O("reduce-batch-size", "The batch makes one tensor too large", 0.45),
        ),
        pattern=r"invalid buffer size|total bytes of ndarray >|mpsndarray[^~]{0,100}(?:exceed|too large|2\*\*3[12])",
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
        "build.version-cpu",
        ("+cpu",),
        (O("wrong-torch-build-cpu-only", "This torch is a CPU build", 0.85, "likely"),),
        pattern=r"(?:torch|version|__version__)[^~]{0,40}\d\.\d+\.\d+\+cpu",
        severity="info",
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
        "driver.smi",
        ("couldn't communicate with the nvidia driver", "failed to initialize nvml", "nvidia-smi has failed"),
        (
            O("driver-cuda-mismatch", DRIVER, 0.75, "likely"),
            O("no-gpu-driver", "No NVIDIA driver answers", 0.6, "likely"),
            O("visible-devices", "The container was given no device", 0.4),
        ),
    ),
    Rule(
        "device.broken",
        ("uncorrectable ecc error", "fallen off the bus", "gpu is lost", "nvrm: xid"),
        (
            O("gpu-health", "The device itself failed", 0.9, "likely"),
            O("driver-cuda-mismatch", DRIVER, 0.3),
        ),
    ),
    Rule(
        "driver.cudnn-version",
        ("cudnn version incompatibility", "cudnn_status_version_mismatch", "cudnn_status_sublibrary_version_mismatch"),
        (
            O("driver-cuda-mismatch", "Another cuDNN than torch's own is loaded", 0.85, "likely"),
            O("upgrade-library", "Another build of torch may fit", 0.4),
        ),
    ),
)
