"""Backward passes: what steps are counted by where no optimizer of torch steps.

fastai and Keras have optimizers of their own, SciPy calls a function that computes gradients, a
script may change its parameters itself, and a compiled ``optimizer.step`` is not seen. Then each
backward pass is a step; where the thread iterates a DataLoader, the first one after each batch. An
optimizer of torch that steps after all takes over.

Before it is said that no optimizer steps, some time passes: gradients may be accumulated over many
passes first.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any, List, NamedTuple, Optional, Tuple

from .model_finder import at_hand
from .steps import Steps

FIRST = 3
"""Passes after which a process is taken for a trainer."""
SETTLED_PASSES, SETTLED_SECONDS = 4, 5.0
"""After so many and so long without a step of an optimizer, passes are counted; where an optimizer
of torch is at hand it takes :data:`PATIENCE` times as many and as long.
"""
PATIENCE = 16
MAX_FRAMES = 64


class Owner(NamedTuple):
    """What changes the parameters, as far as the objects at hand tell.

    ``of_torch``: whether it is an optimizer of torch.
    """

    words: str
    of_torch: bool


_NOBODY = Owner("no optimizer was found in the training loop", False)


class Passes:
    """:meth:`begins` and :meth:`ended` are for the thread that goes backward, and raise nothing."""

    def __init__(self, steps: Steps) -> None:
        self.count = 0
        self.owner: Optional[Owner] = None
        self._steps = steps
        self._first = 0.0
        self._thread: Optional[int] = None
        self._running = 0
        # end of the last batch that this thread got; None: it has no loader
        self._loads_until: Optional[float] = None

    def begins(self, now: float) -> bool:
        """True when it has just become clear that this process trains."""
        self._running += 1
        if self._running > 1 or self._thread not in (None, get_ident()):
            return False  # inside another one (a checkpoint computes again), or beside the training
        steps = self._steps
        latest = steps.last_load()
        if latest is not None and latest != self._loads_until:
            self._loads_until = latest
        elif self._loads_until is not None:
            return False  # the second one for the same batch
        if self.count == 0:
            self._first, self._thread = now, get_ident()
        self.count += 1
        if self.owner is None and self.count >= FIRST:
            self.owner = find_owner(sys._getframe(1)) or _NOBODY
        patience = PATIENCE if self.owner is not None and self.owner.of_torch else 1
        if (
            self.count > SETTLED_PASSES * patience
            and now - self._first >= SETTLED_SECONDS * patience
        ):
            steps.passed(now, self.words, self.count - 1)
        return self.count == FIRST

    def ended(self) -> None:
        self._running = max(0, self._running - 1)

    @property
    def words(self) -> str:
        """What is counted, and why no optimizer's steps are."""
        owner = self.owner or _NOBODY
        return f"{'batches' if self._loads_until is not None else 'backward passes'}: {owner.words}"


def find_owner(frame: Any) -> Optional[Owner]:
    """Find what is about to use the gradients.

    It looks at what the functions around a backward pass have at hand.
    """
    torch_class = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    found: List[Tuple[str, Any]] = []
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        module = frame.f_globals.get("__name__", "")
        if module.startswith("scipy.optimize"):
            return Owner("scipy.optimize uses the gradients, not a torch optimizer", False)
        if not module.startswith(("torch.", __name__.partition(".")[0] + ".probe")):
            found += at_hand(frame)
        frame = frame.f_back
    foreign = None
    for _, value in found:
        kind = type(value)
        if torch_class is not None and issubclass(kind, torch_class):
            words = (
                f"the step of its optimizer, torch's {kind.__name__}, was not seen (inside "
                f"torch.compile it cannot be)"
            )
            return Owner(words, True)
        if foreign is None and any("optimizer" in base.__name__.lower() for base in kind.__mro__):
            foreign = (
                f"its optimizer is {kind.__module__.partition('.')[0]}'s {kind.__name__}, "
                "not torch's"
            )
    return Owner(foreign, False) if foreign is not None else None
