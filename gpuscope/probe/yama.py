"""Let other processes of this user trace this one where Yama forbids it.

That is the case with ``ptrace_scope`` 1, as on Ubuntu.

The user must ask for it, because it gives rights away: while it holds, any process of the same user
may attach a debugger to this one and read or change its memory. It holds for this process alone; a
forked child starts without it (prctl(2), PR_SET_PTRACER).
"""

from __future__ import annotations

from .on_import import debug

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = -1


def allow(anyone: bool) -> None:
    """Let any process of this user trace this one, or only its ancestors again.

    Never raises. A kernel without Yama refuses the call and does not need it.
    """
    try:
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        zero = ctypes.c_ulong(0)
        if library.prctl(
            PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY if anyone else 0), zero, zero, zero
        ):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PTRACER)")
    except Exception as error:
        debug("who may trace this process is unchanged", error)
