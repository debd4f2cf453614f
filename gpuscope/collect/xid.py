"""Explain XID errors: the numbers that the driver logs and reports as events.

The facts are from NVIDIA's public XID catalogue; the sentences and the advice are gpuscope's own.
This module does not need pynvml, so that a viewer can explain a remote host's errors.
"""

from __future__ import annotations

from typing import Dict, NamedTuple


class XidMeaning(NamedTuple):
    """The meaning of one error number of the driver.

    ``words`` says what happened, and ``then`` what to do. ``cause`` is :data:`PROGRAM`,
    :data:`HARDWARE` or :data:`OTHER`.
    """

    words: str
    cause: str
    then: str


PROGRAM, HARDWARE, OTHER = "program", "hardware", "other"
"""The probable cause of an error.

PROGRAM: the catalogue suggests the training program first. HARDWARE: it names the card, its memory,
its links, its bus or its firmware, and the machine must be repaired. OTHER: it names only the
driver, or both a program and the machine; or the error has been corrected and needs no action; or
the number is not listed here.
"""

_RUN = "run the program with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer, to find the kernel"
_RESET = "stop what runs on the GPU and reset it (nvidia-smi --gpu-reset, as root), or reboot"
_RESTART = "restart the program; if it happens again, reset the GPU or reboot"
_REPORT = "reset the GPU or reboot; if it happens again, have the GPU checked"
_WATCH = "nothing now; if it keeps happening, have the GPU checked"

XIDS: Dict[int, XidMeaning] = {
    8: XidMeaning("the GPU stopped processing", OTHER, _RESTART),
    11: XidMeaning("an invalid or corrupted push buffer stream", PROGRAM, _RUN),
    12: XidMeaning("the driver could not handle an exception of the GPU", OTHER, _REPORT),
    13: XidMeaning("a kernel failed: out-of-bounds access or illegal instruction", PROGRAM, _RUN),
    31: XidMeaning("a kernel accessed an address that is not mapped (MMU fault)", PROGRAM, _RUN),
    32: XidMeaning(
        "an invalid or corrupted push buffer stream, often a bad PCIe link", HARDWARE, _REPORT
    ),
    38: XidMeaning("the driver's firmware reported an error", OTHER, _REPORT),
    43: XidMeaning("the GPU stopped one process's work; others continue", PROGRAM, _RUN),
    45: XidMeaning(
        "work was removed early: another error, or the process ended",
        PROGRAM,
        "nothing by itself",
    ),
    48: XidMeaning("an uncorrectable memory error (double-bit ECC)", HARDWARE, _RESET),
    61: XidMeaning("the GPU's internal microcontroller stopped", HARDWARE, _RESET),
    62: XidMeaning("the GPU's internal microcontroller halted", HARDWARE, _RESET),
    63: XidMeaning(
        "a row of memory was marked to be replaced, or a page retired",
        OTHER,
        "reset the GPU when it is idle",
    ),
    64: XidMeaning("a memory row could not be remapped, or a page not retired", HARDWARE, _REPORT),
    66: XidMeaning("an illegal access by the driver", OTHER, _REPORT),
    68: XidMeaning("the video processor failed", OTHER, _REPORT),
    69: XidMeaning("the graphics or compute engine reported an error of its class", PROGRAM, _RUN),
    74: XidMeaning(
        "an NVLink failed",
        HARDWARE,
        "check nvidia-smi nvlink --errorcounters, then reset the GPUs or reboot",
    ),
    79: XidMeaning(
        "the GPU has fallen off the bus",
        HARDWARE,
        "reboot; if it happens again, check the GPU's power, seating and cooling",
    ),
    92: XidMeaning("many correctable memory errors", OTHER, _WATCH),
    94: XidMeaning(
        "a memory error that ECC could not correct, held within one process",
        HARDWARE,
        "restart that process",
    ),
    95: XidMeaning("an uncorrectable memory error, not contained in one process", HARDWARE, _RESET),
    109: XidMeaning("a context switch timed out", OTHER, _RESET),
    110: XidMeaning("a security fault", HARDWARE, _REPORT),
    119: XidMeaning("the GPU's system processor (GSP) did not answer the driver", HARDWARE, _RESET),
    120: XidMeaning("the GPU's system processor (GSP) failed", HARDWARE, _RESET),
    121: XidMeaning("an error on the link to the CPU (C2C), corrected", OTHER, _WATCH),
    136: XidMeaning("an NVLink could not be brought up", HARDWARE, _RESET),
    140: XidMeaning("uncorrectable memory errors in more than one place", HARDWARE, _RESET),
    143: XidMeaning("the GPU could not be initialised", HARDWARE, _REPORT),
    149: XidMeaning("an NVLink failed (NETIR)", HARDWARE, _REPORT),
    154: XidMeaning(
        "the GPU needs recovery", OTHER, "dmesg says which: reset, reboot, or drain and reset"
    ),
}
"""The codes that are likely during a training. Others are shown by their number."""


def xid_words(code: int) -> str:
    """``"XID 79: the GPU has fallen off the bus"``."""
    known = XIDS.get(code)
    words = known.words if known is not None else "not a common one; see NVIDIA's XID catalogue"
    return f"XID {code}: {words}"


def xid_cause(code: int) -> str:
    """:data:`PROGRAM`, :data:`HARDWARE` or :data:`OTHER`, which unknown numbers are too."""
    known = XIDS.get(code)
    return known.cause if known is not None else OTHER


def xid_advice(code: int) -> str:
    """Return what to do about an XID; "" if nothing is known."""
    known = XIDS.get(code)
    if known is None:
        return ""
    return f"likely the program itself: {known.then}" if known.cause == PROGRAM else known.then
