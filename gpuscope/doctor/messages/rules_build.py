"""Messages about driver, CUDA, the torch build and which devices are visible."""

from __future__ import annotations

from .rule import Option as O
from .rule import Rule

DRIVER = "Driver and CUDA runtime do not fit together"
HIDDEN = "The device is hidden or named wrongly"
ARCH = "This torch was not built for this device's architecture"

RULES = (
    Rule(
        "build.cpu-only",
        (
            "not compiled with cuda enabled",
            "not linked with support for cuda",
            "torch.cuda.floattensor is not enabled",
            "cannot initialize cuda without aten_cuda",
        ),
        (O("wrong-torch-build-cpu-only", "This torch is a CPU build", 0.97, "definite"),),
    ),
    Rule(
        "build.arch",
        (
            "no kernel image is available",
            "is not compatible with the current pytorch installation",
            "no longer supports this gpu",
            "not compiled for the architecture",
            "nokernelimagefordevice",
            "value for --gpu-architecture",
            "unsupported gpu architecture",
        ),
        (
            O("wrong-torch-build-arch", ARCH, 0.95, "definite"),
            O("driver-cuda-mismatch", DRIVER, 0.3),
        ),
    ),
    Rule(
        "build.cpu-only",
        ("not compiled with gpu support", "fp16 mixed precision training with amp", "can only be used on cuda devices"),
        (
            O("wrong-torch-build-cpu-only", "torch, or an extension of it, was built without CUDA", 0.75, "likely"),
            O("driver-cuda-mismatch", DRIVER, 0.50),
            O("visible-devices", HIDDEN, 0.40),
        ),
        pattern=r"not compiled with gpu support|(?:fp16|half precision)[^~]{0,160}can only be used on cuda devices",
    ),
    Rule(
        "driver.old",
        (
            "driver on your system is too old",
            "driver version is insufficient",
            "cuda runtime error (35)",
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
            "is only supported with gpus, no gpus found",
            "torch is not able to use gpu",
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
            "cuda runtime error (30)",
            "cuda runtime error (999)",
            "cuda error (3): initialization error",
            "cuda error: operation not supported",
            "cuda error: invalid resource handle",
            "cuda error: api call is not supported",
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
        ("device kernel image is invalid", "cuda_home environment variable is not set"),
        (
            O("driver-cuda-mismatch", "The compiler's CUDA and the driver do not fit together", 0.62, "likely"),
            O("upgrade-library", "Another version of the compiler may fit the driver", 0.5),
            O("wrong-torch-build-arch", ARCH, 0.35),
        ),
    ),
    Rule(
        "driver.library",
        ("undefined symbol", "cannot open shared object file", "libcudart", "symbol lookup error", "dll load failed"),
        (
            O("driver-cuda-mismatch", "CUDA libraries of different versions are mixed", 0.7, "likely"),
            O(
                "upgrade-library",
                "An extension was built against another torch",
                0.74,
                "likely",
                words=r"undefined symbol: \w*(?:c10|at\d|torch|pybind)",
            ),
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
        "driver.launch",
        ("cuda error: invalid argument",),
        (
            O("upgrade-library", "A kernel or copy gets what it cannot take: a fault of a library's version", 0.45),
            O("pin-memory", "More host memory was to be pinned than the driver pins", 0.42),
            O("driver-cuda-mismatch", DRIVER, 0.38),
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
        "build.version-cpu",
        ("+cpu",),
        (O("wrong-torch-build-cpu-only", "This torch is a CPU build", 0.85, "likely"),),
        pattern=r"(?:torch|version|__version__)[^~]{0,40}\d\.\d+\.\d+\+cpu",
        severity="info",
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
