"""Makes sure that torch can name the frames of an allocation history without importing anything.

To name them, torch asks ``torch._inductor``, and imports it at the first time: a second of imports
in whichever thread asks. If that is the probe's thread, and the trainer is importing
``torch._dynamo`` itself, the two threads wait for each other's modules, and Python gives one of
them a module that is only half executed. On an H200 this caused an ``ImportError`` in the trainer's
optimizer. So we do not let torch name frames before these modules are imported.
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
"""In practice every import of :data:`MODULE` begins with this module. A second thread then waits at
its import lock, without holding another.
"""


def loaded() -> bool:
    """Whether torch can name frames without importing anything."""
    torch: Any = sys.modules.get("torch")
    module = sys.modules.get(MODULE)
    unfinished = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return module is not None and not unfinished and "_inductor" in vars(torch)


def load_in_trainers_thread() -> None:
    """Load the symbols in a thread of the trainer, which waits for it.

    This takes about a second, unless an optimizer has caused it already. Never raises.
    """
    if not loaded():
        try:
            _load()
        except Exception as error:
            debug("frames of the history will be named later", error)


def load() -> None:
    """Load the symbols in the probe's thread.

    Raises :class:`Refusal` while another thread imports anything, and if loading fails.
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
