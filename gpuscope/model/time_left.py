"""Say what a step still has to do when a cause is cured, as shares of a usual step.

A step cannot be shorter than the work of its GPU, nor than what the host needs for it where it
waits for nothing. A look shows both: what ran on the device, and for how long the thread that
launches was held in calls of the runtime.

Pauses are rare, so that the median of the steps is one without a pause. It is sharper than the
samples of the thread. They see few pauses, and where a pause holds the interpreter's lock they come
late, so that its end is booked as what follows.
"""

from __future__ import annotations

from .look import Look

COUNTS = 0.5
"""The median must leave out this share of what the clock has for pauses. Otherwise there is a
pause in most steps, and the median has it too."""


def without_waits(look: Look, usual: float) -> float | None:
    """Return what is left of a step of ``usual`` seconds whose host is never held by the runtime.

    None where the look does not say for how long it was held. A trace makes the host slower,
    and no work of the device: the host's work is scaled to a usual step. What a usual step has
    beyond those of the look, a cure of their waits leaves there.
    """
    if look.held_seconds is None or usual <= 0:
        return None
    looked = look.step_seconds + look.slowed_seconds
    host = max(0.0, looked - look.held_seconds / look.steps) * min(1.0, usual / looked)
    return _share(look, usual, host, look.busy_share * look.step_seconds)


def without_reads(look: Look, usual: float, reading: float = 0.0) -> float | None:
    """Return what is left of a step of ``usual`` seconds whose host reads nothing.

    A read takes the host more than it waits: it lets go of the interpreter, and makes a number of
    what it reads. So it is left with its way from launch to launch. Its GPU is left with its work
    and with what lies between kernels that were launched in time. None where the probe does not say
    what the host needs. A trace makes the host slower, so it needs no more than what the thread did
    in a usual step apart from ``reading``, the share of the clock that was booked for reads.
    """
    if look.host_step_seconds is None or usual <= 0:
        return None
    looked = look.step_seconds + look.slowed_seconds
    between = look.row("idle-queue")
    device = look.busy_share * look.step_seconds
    device += between.seconds / look.steps if between is not None else 0.0
    host = min(look.host_step_seconds * min(1.0, usual / looked), (1 - reading) * usual)
    return _share(look, usual, host, device)


def _share(look: Look, usual: float, host: float, device: float) -> float:
    more = max(0.0, usual - look.step_seconds - look.slowed_seconds)
    return min(1.0, (max(host, device) + more) / usual)


def stalls(median: float | None, usual: float, look: Look) -> float:
    """Return the share of a usual step that lies in steps longer than those of the look and most.

    The device does the same work in all. Without a ``median``, only the look's are compared.
    """
    return max(0.0, 1 - max(median or 0.0, look.step_seconds) / usual) if usual > 0 else 0.0


def pauses(median: float | None, usual: float, look: Look | None = None) -> float | None:
    """Return the share of a usual step that all pauses take together, None where it is unknown.

    ``median`` is that of the steps on the host, which may run ahead of its GPU: what a step without
    a pause has to do there, it cannot be shorter than.
    """
    if median is None or usual <= 0:
        return None
    left = median
    if look is not None:
        if look.paused_seconds is None:
            return None
        busy = look.busy_share * look.seconds - look.paused_seconds
        left = max(left, busy / look.steps)
    return max(0.0, 1 - left / usual)
