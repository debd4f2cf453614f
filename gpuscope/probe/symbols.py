"""Before torch names the frames of an allocation history.

To name them it looks whether ``torch._inductor`` knows better, and ``torch`` imports that at the
first look: a second of imports in whichever thread asks. In the probe's thread, beside a trainer
that is importing ``torch._dynamo`` itself, two threads then wait for each other's modules and
Python hands one of them a half-made module: seen on an H200 as an ``ImportError`` in the trainer's
optimizer. So nothing of ours lets torch name frames before its modules are there.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any

from .long_requests import Refusal
from .on_import import debug
from .thread_frames import current_frames

MODULE = "torch._inductor"
TOP = "torch._dynamo"
"""Whatever imports :data:`MODULE` in practice begins here: a thread that comes second waits at its
door, holding nothing.
"""


def loaded() -> bool:
    """Whether torch names frames without importing anything."""
    torch: Any = sys.modules.get("torch")
    module = sys.modules.get(MODULE)
    unfinished = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return module is not None and not unfinished and "_inductor" in vars(torch)


def load_in_trainers_thread() -> None:
    """Load the symbols in a thread of the trainer, which waits for it.

    That takes about a second, unless an optimizer has done it already. Never raises.
    """
    if not loaded():
        try:
            _load()
        except Exception as error:
            debug("frames of the history will be named later", error)


def load() -> None:
    """In the probe's thread.

    Raises :class:`Refusal` while another thread imports anything, and where it cannot be.
    """
    if loaded():
        return
    if others_import():
        raise Refusal("busy", "the training is importing modules: try again when it is done")
    try:
        _load()
    except Exception as error:
        raise Refusal(
            "unsupported", f"this torch cannot name the frames of its history: {error}"
        ) from None


def _load() -> None:
    importlib.import_module(TOP)
    importlib.import_module(MODULE)


def others_import() -> bool:
    """Whether any other thread is inside an import now."""
    own = threading.get_ident()
    for ident, frame in current_frames().items():
        here: Any = frame if ident != own else None
        while here is not None:
            if here.f_code.co_filename.startswith("<frozen importlib"):
                return True
            here = here.f_back
    return False
