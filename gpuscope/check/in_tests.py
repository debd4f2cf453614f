"""Serve the tests of a project: a predicted peak, and the budgets of a marker."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pytest

from ..errors import UserError
from ..predict import from_switches
from ..predict.child import Tracer
from ..predict.errors import Estimate
from ..predict.report import with_error
from ..predict.request import CannotPredict
from ..text.units import bytes_text, parse_size
from ..wire.clean import clean, clean_lines
from ..wire.code_owner import is_own
from .predicted import Predicted, predicted
from .settings import SWITCHES, CheckedTraining, suggestion

SHOWN = 5
"""How many modules and lines a message names."""


class BadMarker(UserError):
    """The marker of a test is wrong."""


class TooClose(UserWarning):
    """A budget lies within the error of a prediction, so that nothing is decided."""


def tracer(root: str) -> Tracer:
    """Return a child that finds modules where the tests do."""
    inside = os.path.join(os.path.realpath(root), "")
    path = [
        name
        for name in map(os.path.realpath, filter(None, sys.path))
        if (folder := os.path.join(name, "")).startswith(inside) and is_own(folder)
    ]
    return Tracer(None, root, path)


@dataclass(frozen=True)
class PeakCheck:
    """Predicts trainings; the fixture ``gpuscope_peak`` is one of these."""

    tracer: Tracer
    strict: bool = False

    def __call__(
        self,
        factory: str | Callable[..., Any],
        max: str | int | None = None,  # noqa: A002
        **switches: Any,
    ) -> Estimate:
        """Return the peak of the tensors of a training, in bytes, with its error.

        ``factory`` is a function that can be imported, or ``"MODULE:FACTORY"``; ``switches`` are
        those of ``gpuscope predict``, such as ``batch=8``. The test fails if the peak is surely
        above ``max``. If ``max`` lies within the error, it warns with :class:`TooClose`.
        """
        name, limit = _name(factory), None if max is None else _size("max", max)
        try:
            found = self._predicted(name, switches)
        except CannotPredict as trouble:
            if trouble.code == "no_torch" and not self.strict:
                pytest.skip(f"gpuscope: {trouble.what}")
            pytest.fail(f"gpuscope: {clean_lines(str(trouble))}", pytrace=False)
        figure = found.answer.prediction.allocated
        if limit is not None and figure.low > limit:
            pytest.fail(_over(name, found, limit), pytrace=False)
        if limit is not None and figure.high > limit:
            text = f"too close to call: {name} needs {with_error(figure)} in tensors at its peak"
            warnings.warn(TooClose(f"{text}, and max is {bytes_text(limit)}"), stacklevel=2)
        return figure

    def _predicted(self, name: str, switches: Mapping[str, Any]) -> Predicted:
        for key in switches:
            if key not in SWITCHES:
                raise TypeError(f"gpuscope_peak has no setting {key!r}.{suggestion(key, SWITCHES)}")
        training = CheckedTraining(
            name, name, switches, None, False, None, None, None, None, None, {"": 1}
        )
        from_switches.request_of(name, switches, "9.0")
        return predicted(training, self.tracer.trace, self.tracer.folder or "")


def _name(factory: str | Callable[..., Any]) -> str:
    if isinstance(factory, str):
        return factory
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if not module or not name or "<" in name or module == "__main__":
        raise TypeError(
            "gpuscope_peak takes a function of a module, or 'MODULE:FACTORY': another process "
            f"imports it, which cannot find {name or factory!r}"
        )
    return f"{module}:{name}"


def _over(name: str, found: Predicted, limit: int) -> str:
    """Return the message for a peak above its limit: the modules and lines that hold most."""
    figure = found.answer.prediction.allocated
    rows = [
        f"gpuscope: {name} needs {with_error(figure)} in tensors at its peak, "
        f"{bytes_text(figure.bytes - limit)} more than {bytes_text(limit)}.",
        "At the peak, by module:",
    ]
    for module, size in _most(found.modules):
        rows.append(f"  {bytes_text(size):>9}  {clean(module) or 'outside modules'}")
    lines: dict[str, int] = {}
    for owner, size in found.owners:
        if owner.stack:
            lines[owner.stack[-1]] = lines.get(owner.stack[-1], 0) + size
    rows.append("By the line that was running when it was allocated:")
    rows += [f"  {bytes_text(size):>9}  {clean(line)}" for line, size in _most(lines)]
    rest = figure.bytes - sum(size for _, size in _most(lines))
    rows.append(f"  {bytes_text(rest):>9}  other lines, the backward pass and the optimizer")
    return "\n".join(rows)


def _most(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(sizes.items(), key=lambda item: -item[1])[:SHOWN]


@dataclass(frozen=True)
class Budgets:
    """The budgets of ``@pytest.mark.gpuscope``; None means that there is no budget."""

    peak: int | None = None
    leak: int | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None
    syncs: int | None = None
    strict: bool = False

    @classmethod
    def of(cls, args: Sequence[Any], given: Mapping[str, Any], strict: bool) -> Budgets:
        """Return the budgets of a marker. Raises :class:`BadMarker`."""
        known = [one.name for one in fields(cls)]
        if args:
            raise BadMarker("@pytest.mark.gpuscope takes keywords only, such as graph_breaks=0")
        values: dict[str, Any] = {"strict": strict}
        for key, value in given.items():
            if key not in known:
                raise BadMarker(f"@pytest.mark.gpuscope has no {key!r}.{suggestion(key, known)}")
            if key in ("peak", "leak"):
                value = _size(key, value)
            elif key == "strict":
                value = bool(value) or strict
            elif type(value) is not int or value < 0:
                raise BadMarker(f"{key} must be a whole number, not {value!r}")
            values[key] = value
        return cls(**values)

    @property
    def on_cuda(self) -> list[str]:
        """The budgets that only a test on CUDA can break."""
        return [name for name in ("peak", "leak", "syncs") if getattr(self, name) is not None]


def _size(key: str, value: str | int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_size(str(value))
    except ValueError:
        raise BadMarker(f"{key} must be a size such as '3 GiB', not {value!r}") from None
