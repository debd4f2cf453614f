"""Backward passes, by which steps are counted if no optimizer of torch steps.

fastai and Keras have optimizers of their own, SciPy calls a function that computes gradients, a
script may change its parameters itself, and a compiled ``optimizer.step`` is not seen. Then each
backward pass counts as a step; if the thread iterates over a DataLoader, only the first one after
each batch does, unless it trains on one batch again and again. If an optimizer of torch steps
later, its steps are counted instead.

Some time must pass before we conclude that no optimizer steps, because gradients may first be
accumulated over many passes.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any, List, NamedTuple, Optional, Tuple

from .model_finder import at_hand
from .steps import Steps

FIRST = 3
"""After this many passes a process counts as a trainer."""
SETTLED_PASSES, SETTLED_SECONDS = 4, 5.0
"""After this many passes, and this long, without a step of an optimizer, passes are counted. If an
optimizer of torch is at hand, both limits are :data:`PATIENCE` times as large.
"""
PATIENCE = 16
SAME_BATCH = 64
"""After so many more passes for one batch, gradients are not accumulated: each pass is a step."""
MAX_FRAMES = 64


class ParameterOwner(NamedTuple):
    """What changes the parameters, as far as the objects at hand show.

    ``of_torch`` says whether it is an optimizer of torch.
    """

    words: str
    of_torch: bool


_NOBODY = ParameterOwner("no optimizer was found in the training loop", False)


class Passes:
    """Counts backward passes.

    :meth:`begins` and :meth:`ended` are called in the thread of the backward pass, and raise
    nothing.
    """

    def __init__(self, steps: Steps) -> None:
        self.count = 0
        self.owner: Optional[ParameterOwner] = None
        self._steps = steps
        self._first = 0.0
        self._thread: Optional[int] = None
        self._running = 0
        # when this thread got its last batch; None: it has no loader
        self._loads_until: Optional[float] = None
        self._of_batch = 0  # passes since then, without the first

    def begins(self, now: float) -> bool:
        """Note a backward pass; True if it has just become clear that this process trains."""
        self._running += 1
        if self._running > 1 or self._thread not in (None, get_ident()):
            # inside another pass (a checkpoint computes again), or not part of the training
            return False
        steps, before = self._steps, self.count
        latest = steps.last_load()
        if latest is not None and latest != self._loads_until:
            self._loads_until, self._of_batch = latest, 0
        elif self._loads_until is not None:
            self._of_batch += 1
            if self._of_batch < SAME_BATCH:
                return False  # gradients of the same batch
            if self._of_batch == SAME_BATCH:
                self.count += SAME_BATCH - 1
        if before == 0:
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
        return before < FIRST <= self.count

    def ended(self) -> None:
        self._running = max(0, self._running - 1)

    @property
    def words(self) -> str:
        """Return what is counted, and why steps of optimizers are not."""
        owner = self.owner or _NOBODY
        by_batch = self._loads_until is not None and self._of_batch < SAME_BATCH
        return f"{'batches' if by_batch else 'backward passes'}: {owner.words}"


def find_owner(frame: Any) -> Optional[ParameterOwner]:
    """Find the object that is about to use the gradients.

    The search covers what the functions around a backward pass have at hand.
    """
    torch_class = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    found: List[Tuple[str, Any]] = []
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        module = frame.f_globals.get("__name__", "")
        if module.startswith("scipy.optimize"):
            return ParameterOwner("scipy.optimize uses the gradients, not a torch optimizer", False)
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
            return ParameterOwner(words, True)
        if foreign is None and any("optimizer" in base.__name__.lower() for base in kind.__mro__):
            foreign = (
                f"its optimizer is {kind.__module__.partition('.')[0]}'s {kind.__name__}, "
                "not torch's"
            )
    return ParameterOwner(foreign, False) if foreign is not None else None
