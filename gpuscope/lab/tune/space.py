"""List the changes of switches that a search tries.

A change is a few switches that are set together, such as a larger micro-batch with less
accumulation. Which ones make sense depends on the configuration that they are applied to, on the
device and on what the user allows. Only the standard library is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..config import LabConfig
from ..run_facts import RunFacts
from ..toggles import Value

Change = Mapping[str, Value]

LARGER, SMALLER = (2.0, 1.5), (0.5,)
"""The factors by which the micro-batch is changed."""
WORKERS = (4, 8, 16)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user allows a search to change.

    ``vary`` restricts some switches to these values; empty: every switch is tried as usual.
    ``free_batch`` allows another effective batch, so that an optimizer step sees more samples.
    """

    vary: Mapping[str, Sequence[Value]]
    free_batch: bool = False

    def allows(self, base: LabConfig, config: LabConfig) -> bool:
        """Say whether ``config`` changes only what the user named, where the user named any."""
        if not self.vary:
            return True
        free = {"batch", "accumulate"} if {"batch", "accumulate"} & set(self.vary) else set()
        for name, value in config.to_mapping().items():
            if value == getattr(base, name) or name == "steps":
                continue
            if name in free and name not in self.vary:
                continue
            if name not in self.vary or value not in self.vary[name]:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Seen:
    """What earlier trials have shown.

    ``tight``: memory has kept something from running. ``no_bf16``: bf16 cannot be used here.
    ``graphs``: replaying CUDA graphs brings so much that the host must have been the slower one.
    ``doubtful``: bf16 was kept together with another micro-batch, and both brought little.
    ``no_convolutions``: the model has none, so nothing that concerns only them changes anything.
    ``casts``: bf16 was no faster, maybe because each of its casts is a kernel that is launched.
    """

    tight: bool = False
    no_bf16: bool = False
    graphs: bool = False
    doubtful: bool = False
    no_convolutions: bool = False
    casts: bool = False


class Start(NamedTuple):
    """The configuration to change, and what is known beside it.

    ``batch`` is the number of samples in its micro-batch.
    """

    config: LabConfig
    batch: int
    facts: RunFacts
    limits: Limits
    seen: Seen


def changes(axis: Axis, start: Start) -> Iterator[Change]:
    """Yield the changes of one kind to try, those that usually bring most first.

    A change that sets nothing new is left out. Those of the user's ``vary`` come instead of the
    usual ones, all of them in place of the first kind.
    """
    if start.limits.vary:
        if axis is AXES[0]:
            yield from _named(start)
        return
    for change in axis(start):
        if any(getattr(start.config, name) != value for name, value in change.items()):
            yield change


def _named(start: Start) -> Iterator[Change]:
    for name, values in start.limits.vary.items():
        for value in values:
            if value == getattr(start.config, name) or (name == "batch" and value == start.batch):
                continue
            if name == "batch" and isinstance(value, int):
                yield from _of_size(start, value)
            else:
                yield {name: value}


def _of_size(start: Start, size: int) -> Iterator[Change]:
    """Yield the change to a micro-batch; the effective batch stays unless it is free."""
    total = start.batch * start.config.accumulate
    if start.limits.free_batch:
        yield {"batch": size}
    elif total % size == 0:
        yield {"batch": size, "accumulate": total // size}


def _precision(start: Start) -> Iterator[Change]:
    if start.config.amp == "bf16":
        if start.seen.doubtful or start.seen.graphs:  # or it was chosen while the host was slower
            yield {"amp": "off", "tf32": True}
        return  # its products run at least as fast as in fp16 or TF32
    yield {"amp": "bf16"}
    if start.facts.device_type == "cuda" and start.seen.no_bf16:
        yield {"amp": "fp16"}  # else it is no faster, and its scaler takes time


def _tf32(start: Start) -> Iterator[Change]:
    """Yield TF32 after the micro-batch: a small one waits for the host, which it does not help."""
    if start.facts.device_type == "cuda" and start.config.amp == "off":
        yield {"tf32": True}


def _compile(start: Start) -> Iterator[Change]:
    beside: Change = {}
    if not start.config.factory and start.config.fused is None:
        beside = {"fused": True, "foreach": None}  # no trial of its own: compiling takes long
    cuda = start.facts.device_type == "cuda"
    modes = ("reduce-overhead", "default") if cuda else ("default",)
    if cuda and start.seen.casts and start.config.amp == start.config.compile == "off":
        yield {"amp": "bf16", "compile": modes[0], **beside}  # the compiler fuses the casts
    for mode in modes:  # the first also saves the time of the host, and rarely loses by much
        if start.config.compile != mode and not (mode == "default" and start.seen.graphs):
            yield {"compile": mode, **beside}
            yield {"compile": mode}


def _autotune(start: Start) -> Iterator[Change]:
    if start.config.compile != "off":  # it takes minutes: only where compiling has already won
        yield {"compile": "max-autotune"}


def _batch(start: Start) -> Iterator[Change]:
    total = start.batch * start.config.accumulate
    if start.config.accumulate > 1 and not start.limits.free_batch:
        yield {"batch": total, "accumulate": 1}
    yield from _sizes(start, LARGER)


def _smaller_batch(start: Start) -> Iterator[Change]:
    if start.config.compile == "off":  # else it must be compiled anew, and hardly ever pays
        yield from _sizes(start, SMALLER)


def _sizes(start: Start, factors: Sequence[float]) -> Iterator[Change]:
    for factor in factors:
        size = int(start.batch * factor)
        if size >= 1 and size != start.batch:
            yield from _of_size(start, size)


def _recompute(start: Start) -> Iterator[Change]:
    if start.config.checkpoint:
        yield {"checkpoint": False}
        return
    if not start.seen.tight and not start.limits.free_batch:
        return  # it pays only with what its memory is used for, and there is enough of it
    for size in (2 * start.batch, 4 * start.batch):
        for change in _of_size(start, size):
            yield {"checkpoint": True, **change}


def _optimizer(start: Start) -> Iterator[Change]:
    if start.config.factory:
        return  # it brings its own optimizer
    yield {"fused": True, "foreach": None}
    if start.config.foreach is False:
        yield {"foreach": None}
    if not start.config.set_to_none:
        yield {"set_to_none": True}


def _input(start: Start) -> Iterator[Change]:
    if start.config.factory or start.config.loader == "synthetic":
        return
    if start.facts.device_type == "cuda":
        yield {"pin_memory": True, "non_blocking": True}
    for workers in WORKERS:
        if workers <= max(2, start.facts.cores):
            yield {"workers": workers}
    if start.config.workers != 0:
        yield {"prefetch": 4}


def _allocator(start: Start) -> Iterator[Change]:
    if start.facts.device_type != "cuda":
        return
    if start.config.empty_cache:
        yield {"empty_cache": False}
    if start.config.has_convolutions and not start.seen.no_convolutions:
        yield {"cudnn_benchmark": True}
    if start.seen.tight and not start.config.expandable_segments:
        yield {"expandable_segments": True}


def _layout(start: Start) -> Iterator[Change]:
    if start.config.has_convolutions and not start.seen.no_convolutions:
        yield {"channels_last": True}
        if start.config.compile != "off":  # what it brings without the compiler says little
            yield {"channels_last": False}


Axis = Callable[[Start], Iterator[Change]]
_MOST: tuple[Axis, ...] = (_precision, _batch, _tf32)
EXTRAS: tuple[Axis, ...] = (_layout, _input, _allocator)
"""The kinds of changes that bring something to some models, in a short trial each."""
_LAST: tuple[Axis, ...] = (_optimizer, _smaller_batch, _recompute, _autotune)
AXES: tuple[Axis, ...] = (*_MOST, *EXTRAS, _compile, *_LAST)
"""The kinds of changes, in the order in which they are tried: what can bring much for a short trial
comes before what must be compiled first, and what brings little comes last.
"""
COMPILE_FIRST: tuple[Axis, ...] = (*_MOST, _compile, *EXTRAS, *_LAST)
"""The order where the time is short: compiling brings more than all that comes after it."""
HOST_FIRST: tuple[Axis, ...] = (_batch, _compile, _precision, _tf32, *EXTRAS, *_LAST)
"""The order where the time is short and the host is the slower one: what makes products faster does
nothing before CUDA graphs have made the host faster.
"""


def jump(config: LabConfig, batch: int, facts: RunFacts, limits: Limits) -> Change | None:
    """Return what usually brings most, in one change, where there is no time to try each alone."""
    if limits.vary or limits.free_batch or facts.device_type != "cuda":
        return None
    if config.amp != "off" or config.accumulate == 1:
        return None
    return {"amp": "bf16", "batch": batch * config.accumulate, "accumulate": 1}
