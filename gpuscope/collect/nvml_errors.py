"""Turn NVML's errors into :class:`~gpuscope.wire.frames.Unknown` with plain words.

The numbers are those of nvml.h (nvmlReturn_t), so nothing here needs pynvml. The driver is never
called: ``str(NVMLError)`` may do that, and ``NVMLError.__eq__`` and ``hash()`` raise, so only
``.value`` of an error is read.
"""

from __future__ import annotations

from ..wire.frames import (
    DRIVER_ERROR,
    LOST,
    NO_PERMISSION,
    NOT_INITIALISED,
    NOT_SUPPORTED,
    TIMEOUT,
    Unknown,
)
from .container import container

UNINITIALIZED = 1
NOT_SUPPORTED_RETURN = 3
NO_PERMISSION_RETURN = 4
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT_RETURN = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN_RETURN = 999

_ANSWERS = {
    UNINITIALIZED: (NOT_INITIALISED, "NVML is not initialised"),
    2: (DRIVER_ERROR, "invalid argument"),
    NOT_SUPPORTED_RETURN: (NOT_SUPPORTED, "not supported by this GPU"),
    NO_PERMISSION_RETURN: (NO_PERMISSION, "no permission"),
    6: (DRIVER_ERROR, "not found"),
    INSUFFICIENT_SIZE: (DRIVER_ERROR, "the answer kept outgrowing its buffer"),
    8: (DRIVER_ERROR, "a power cable of the GPU is not connected"),
    DRIVER_NOT_LOADED: (DRIVER_ERROR, "the NVIDIA kernel module is not loaded"),
    TIMEOUT_RETURN: (TIMEOUT, "the driver gave up waiting for the GPU"),
    11: (DRIVER_ERROR, "the GPU's interrupts do not arrive"),
    LIBRARY_NOT_FOUND: (NOT_SUPPORTED, "libnvidia-ml.so.1 was not found"),
    FUNCTION_NOT_FOUND: (NOT_SUPPORTED, "this driver's NVML does not have it"),
    14: (DRIVER_ERROR, "the GPU's infoROM is corrupted"),
    15: (LOST, "the GPU has fallen off the bus; dmesg says why, a reboot may bring it back"),
    16: (
        LOST,
        "the GPU must be reset before it can be used again (nvidia-smi --gpu-reset, as root)",
    ),
    17: (DRIVER_ERROR, "the operating system blocked the request"),
    LIB_RM_VERSION_MISMATCH: (
        DRIVER_ERROR,
        "driver and library versions differ: reboot or reload the kernel module",
    ),
    19: (DRIVER_ERROR, "another process uses the GPU exclusively"),
    20: (DRIVER_ERROR, "the driver ran out of memory"),
    21: (DRIVER_ERROR, "no data"),
    22: (NOT_SUPPORTED, "ECC is not supported by this vGPU"),
    23: (DRIVER_ERROR, "the driver ran out of resources"),
    ARGUMENT_VERSION_MISMATCH: (
        NOT_SUPPORTED,
        "this driver does not know this version of the call",
    ),
    26: (NOT_SUPPORTED, "no longer part of this driver"),
    27: (DRIVER_ERROR, "not ready"),
    28: (LOST, "the GPU is gone"),
    UNKNOWN_RETURN: (DRIVER_ERROR, "the driver answered Unknown Error"),
}

_AT_INIT = {
    LIBRARY_NOT_FOUND: (
        NOT_SUPPORTED,
        "no NVIDIA driver here: libnvidia-ml.so.1 was not found",
    ),
    DRIVER_NOT_LOADED: (
        DRIVER_ERROR,
        "the NVIDIA library is here but its kernel module is not loaded. Next: sudo modprobe "
        "nvidia; if that fails, dmesg says why",
    ),
    LIB_RM_VERSION_MISMATCH: (
        DRIVER_ERROR,
        "driver and library versions differ (a driver update without a reboot): reboot or reload "
        "the kernel module",
    ),
    NO_PERMISSION_RETURN: (
        NO_PERMISSION,
        "no permission to open the NVIDIA devices. Next: ls -l /dev/nvidia*",
    ),
    UNKNOWN_RETURN: (
        DRIVER_ERROR,
        "NVML could not start: the driver answered Unknown Error. Next: dmesg says why",
    ),
}
_IN_CONTAINER = {
    LIBRARY_NOT_FOUND: "no NVIDIA driver here: libnvidia-ml.so.1 was not found. This container has "
    "to be started with the GPUs (docker run --gpus all …)",
    UNKNOWN_RETURN: "NVML could not start: the driver answered Unknown Error. If this container "
    "lost its GPUs (after systemctl daemon-reload on the host), a restart of the container helps; "
    "else dmesg says why",
}
"""What is said instead within a container, where the cause and the next step are other ones."""


class NvmlUnavailable(Exception):
    """NVML cannot be used on this host at all; ``unknown`` says why and what to do next."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__(unknown.text)
        self.unknown = unknown


class MissingWrapper(Exception):
    """The installed pynvml has no such function."""


class NvmlCallRefused(Exception):
    """A call that bypasses pynvml's wrapper failed with ``value``, an nvmlReturn_t."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def return_code(error: BaseException) -> int:
    """Return the nvmlReturn_t in a pynvml error, or -1 if it has none."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else -1


def from_return(call: str, code: int) -> Unknown:
    """Return a failed ``nvmlReturn_t`` of ``call`` as an Unknown."""
    kind, words = _ANSWERS.get(code, (DRIVER_ERROR, f"driver error {code}"))
    return Unknown(kind, f"{call}: {words}")


def explain(call: str, error: BaseException) -> Unknown:
    """Return any exception that pynvml raised in ``call`` as an Unknown.

    It never raises and never calls the driver.
    """
    code = return_code(error)
    if code >= 0:
        return from_return(call, code)
    if isinstance(error, MissingWrapper):
        return Unknown(NOT_SUPPORTED, f"{call}: the installed nvidia-ml-py is too old to have it")
    # This is not an NVMLError: the driver lacks this symbol.
    if type(error).__name__ == "NVMLLibraryMismatchError":
        return from_return(call, FUNCTION_NOT_FOUND)
    if isinstance(error, UnicodeDecodeError):
        return Unknown(DRIVER_ERROR, f"{call}: the driver answered text that is not UTF-8")
    return Unknown(DRIVER_ERROR, f"{call}: {type(error).__name__} in pynvml: {str(error)[:200]}")


def explain_start(call: str, error: BaseException) -> Unknown:
    """Say why NVML could not be started (``call`` is part of starting it), and the next step."""
    code = return_code(error)
    found = _AT_INIT.get(code)
    if found is None:
        return explain(call, error)
    there = _IN_CONTAINER.get(code)
    return Unknown(found[0], there if there is not None and container() else found[1])
