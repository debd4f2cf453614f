"""Explain XID errors: the numbers that the driver logs and reports as events.

The facts are from NVIDIA's public XID catalogue; the sentences and the advice are gpuscope's own.
This module does not need pynvml, so that a viewer can explain a remote host's errors.
"""

from __future__ import annotations

from typing import Dict, NamedTuple


class Xid(NamedTuple):
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
_REPORT = "reset the GPU or reboot; if it happens again, have the card checked"
_WATCH = "nothing now; if it keeps happening, have the card checked"

XIDS: Dict[int, Xid] = {
    8: Xid("the GPU stopped processing", OTHER, _RESTART),
    11: Xid("an invalid or corrupted push buffer stream", PROGRAM, _RUN),
    12: Xid("the driver could not handle an exception of the GPU", OTHER, _REPORT),
    13: Xid("a kernel failed: out-of-bounds access or illegal instruction", PROGRAM, _RUN),
    31: Xid("a kernel accessed an address that is not mapped (MMU fault)", PROGRAM, _RUN),
    32: Xid("an invalid or corrupted push buffer stream, often a bad PCIe link", HARDWARE, _REPORT),
    38: Xid("the driver's firmware reported an error", OTHER, _REPORT),
    43: Xid("the GPU stopped one process's work; others continue", PROGRAM, _RUN),
    45: Xid(
        "work was removed early: another error, or the process ended",
        PROGRAM,
        "nothing by itself",
    ),
    48: Xid("an uncorrectable memory error (double-bit ECC)", HARDWARE, _RESET),
    61: Xid("the GPU's internal microcontroller stopped", HARDWARE, _RESET),
    62: Xid("the GPU's internal microcontroller halted", HARDWARE, _RESET),
    63: Xid(
        "a row of memory was marked to be replaced, or a page retired",
        OTHER,
        "reset the GPU when it is idle",
    ),
    64: Xid("a memory row could not be remapped, or a page not retired", HARDWARE, _REPORT),
    66: Xid("an illegal access by the driver", OTHER, _REPORT),
    68: Xid("the video processor failed", OTHER, _REPORT),
    69: Xid("the graphics or compute engine reported an error of its class", PROGRAM, _RUN),
    74: Xid(
        "an NVLink failed",
        HARDWARE,
        "check nvidia-smi nvlink --errorcounters, then reset the GPUs or reboot",
    ),
    79: Xid(
        "the GPU has fallen off the bus",
        HARDWARE,
        "reboot; if it happens again, check the card's power, seating and cooling",
    ),
    92: Xid("many correctable memory errors", OTHER, _WATCH),
    94: Xid(
        "a memory error that ECC could not correct, held within one process",
        HARDWARE,
        "restart that process",
    ),
    95: Xid("an uncorrectable memory error, not contained in one process", HARDWARE, _RESET),
    109: Xid("a context switch timed out", OTHER, _RESET),
    110: Xid("a security fault", HARDWARE, _REPORT),
    119: Xid("the GPU's system processor (GSP) did not answer the driver", HARDWARE, _RESET),
    120: Xid("the GPU's system processor (GSP) failed", HARDWARE, _RESET),
    121: Xid("an error on the link to the CPU (C2C), corrected", OTHER, _WATCH),
    136: Xid("an NVLink could not be brought up", HARDWARE, _RESET),
    140: Xid("uncorrectable memory errors in more than one place", HARDWARE, _RESET),
    143: Xid("the GPU could not be initialised", HARDWARE, _REPORT),
    149: Xid("an NVLink failed (NETIR)", HARDWARE, _REPORT),
    154: Xid(
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
