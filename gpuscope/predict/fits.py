"""Predict whether the Lab's configurations fit into the memory of a GPU, for a search."""

from __future__ import annotations

from ..lab.config import LabConfig
from ..lab.tune.findings import PredictedMemory
from ..text.units import bytes_text
from .answer import TracedRequest
from .child import SECONDS, Tracer
from .from_lab_config import request_of, settings_of
from .request import CannotPredict


class Fits:
    """Predicts one configuration after the other, all in one child with torch.

    ``capacity`` is the memory in bytes that a run may reserve; None: nothing can be said.
    ``capability`` is the compute capability of the GPU, None for a CPU.
    """

    def __init__(self, capability: tuple[int, int] | None, capacity: int | None) -> None:
        self._architecture = ".".join(map(str, capability or ()))
        self._capacity = capacity
        self._known: dict[LabConfig, PredictedMemory | None] = {}
        self._child = Tracer()

    def __enter__(self) -> Fits:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()

    def __call__(self, config: LabConfig) -> PredictedMemory | None:
        """Return what is predicted of a configuration; None where it cannot be predicted."""
        if not self._architecture or self._capacity is None:
            return None
        if config not in self._known:
            self._known[config] = self._predict(config, self._capacity)
        return self._known[config]

    def _predict(self, config: LabConfig, capacity: int) -> PredictedMemory | None:
        try:
            answer = TracedRequest(
                request_of(config, self._architecture),
                lambda asked: self._child.trace(asked, SECONDS),
                None,
                settings_of(config),
                SECONDS,
            ).finish()
        except CannotPredict:
            return None
        reserved = answer.prediction.reserved
        low, high = bytes_text(reserved.low), bytes_text(reserved.high)
        text = f"{low} to {high} of {bytes_text(capacity)}"
        if reserved.low > capacity:
            return PredictedMemory("does_not_fit", reserved.bytes, f"predicted: it needs {text}")
        close = reserved.high > capacity
        return PredictedMemory(
            "too_close" if close else "fits", reserved.bytes, f"predicted: {text}"
        )
