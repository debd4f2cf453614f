"""What the arithmetic of a step needs: FLOPs, model FLOPs utilization, and the roofline floor.

A probe has counted one step (``probe/work.py``), :mod:`.operator_work` knows what each operator
comes to, :mod:`.card_peaks` what the card can do. The floor is the sum over the operators of the
longer of two times: its FLOPs at the peak of its type, its bytes at the memory's bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..store.view import HostView, TrainerView
from ..text.numbers import amount
from ..text.units import duration_text, percent_text
from ..wire.clean import clean
from .card_peaks import TYPES, CardPeaks, card_named
from .operator_work import NoFormula, bytes_of, flops_of, kind_of

MAX_ROWS = 8192
CONVENTION = "PaLM"
"""Model FLOPs / (step time × dense peak of the type in use); Chowdhery et al. 2022, appendix B."""
KINDS: Mapping[str, str] = {
    "products": "matmuls",
    "convolutions": "convolutions",
    "attention": "attention",
    "recurrent": "recurrent layers",
    "optimizer": "optimizer (foreach)",
    "memory": "elementwise, norms, copies",
    "unknown": "operators of unknown FLOPs",
}
ON_THE_CPU = "the training runs on the CPU, whose peak is not known here"
NO_GPU = "the GPU on which it runs is not known"
SEVERAL = "the process runs on several GPUs, and MFU is defined for one"
MIG = "the GPU is split by MIG, and no data sheet has the peak of an instance"


@dataclass(frozen=True, slots=True)
class WorkRow:
    """Operators of one class and type in a step.

    ``peak`` is FLOPs per second, None where there are no FLOPs or no peak; ``floor_seconds`` is
    None where the card or the peak is not known.
    """

    kind: str
    type: str
    count: int
    hardware_flops: float
    model_flops: float
    bytes: float
    peak: float | None
    floor_seconds: float | None

    @property
    def words(self) -> str:
        return f"{KINDS[self.kind]}, {self.type}" if self.type else KINDS[self.kind]


@dataclass(frozen=True, slots=True)
class UsefulWork:
    """What one step computes.

    ``unknown`` are operators whose FLOPs nobody knows, with how often they ran: with some, all
    FLOPs are lower bounds. ``recomputed_flops`` are those of checkpointing, which hardware FLOPs
    contain and model FLOPs do not. ``problem`` says why there is no card, or no floor.
    """

    rows: tuple[WorkRow, ...]
    unknown: tuple[tuple[str, int], ...]
    recomputed_flops: float
    operators: int
    left_out: int
    card: CardPeaks | None
    problem: str
    lost_seconds: float | None
    counted_seconds: float
    usual_seconds: float | None

    @property
    def model_flops(self) -> float:
        return sum(row.model_flops for row in self.rows)

    @property
    def hardware_flops(self) -> float:
        return sum(row.hardware_flops for row in self.rows)

    @property
    def complete(self) -> bool:
        """Whether the FLOPs of all operators are known."""
        return not self.unknown and not self.left_out

    @property
    def type(self) -> str:
        """The type in which most FLOPs are computed, "" where there are none."""
        spent: dict[str, float] = {}
        for row in self.rows:
            spent[row.type] = spent.get(row.type, 0.0) + row.hardware_flops
        best = max(spent, key=lambda name: spent[name], default="")
        return best if spent.get(best) else ""

    @property
    def peak(self) -> float | None:
        """FLOPs per second of the type in use."""
        return self.card.peak(self.type) if self.card is not None else None

    @property
    def floor_seconds(self) -> float | None:
        """The shortest time for these operators one after the other, None where not known."""
        times = [row.floor_seconds for row in self.rows]
        known = [time for time in times if time is not None]
        return sum(known) if known and len(known) == len(times) else None

    def mfu(self, step_seconds: float) -> float | None:
        """Return model FLOPs / (step time × dense peak of the type in use), None if not known."""
        return self._utilization(self.model_flops, step_seconds)

    def hfu(self, step_seconds: float) -> float | None:
        """Return the same of hardware FLOPs."""
        return self._utilization(self.hardware_flops, step_seconds)

    def _utilization(self, flops: float, step_seconds: float) -> float | None:
        if not self.peak or step_seconds <= 0 or not flops:
            return None
        return flops / (step_seconds * self.peak)


@dataclass
class _Sum:
    count: int = 0
    hardware: float = 0.0
    model: float = 0.0
    bytes: float = 0.0
    floor: float | None = 0.0
    peak: float | None = field(default=None)


def read(answer: Mapping[str, Any], card: CardPeaks | None, problem: str) -> UsefulWork | None:
    """Return what a probe's answer to ``work`` comes to on a card, None where it holds nothing.

    ``problem`` says why ``card`` is None. What a probe sends is not trusted: rows that are none
    are left out and counted.
    """
    rows = answer.get("operators")
    if not isinstance(rows, list) or not rows:
        return None
    tf32 = answer.get("tf32")
    may = tf32 if isinstance(tf32, list) and len(tf32) == 2 else [None, None]
    sums: dict[tuple[str, str], _Sum] = {}
    unknown: dict[str, int] = {}
    recomputed, operators = 0.0, 0
    left_out = int(amount(answer.get("left_out")) or 0)
    for row in rows[:MAX_ROWS]:
        parts = _row(row)
        if parts is None:
            left_out += 1
            continue
        name, again, count, moved, dtype, text = parts
        operators += count
        try:
            flops = flops_of(name, text)
        except NoFormula:
            unknown[name] = unknown.get(name, 0) + count
            kind, flops = "unknown", None
        else:
            kind = flops.kind if flops is not None else kind_of(name)
        computed = ""
        if flops is not None:
            fast = may[1] if kind in ("convolutions", "recurrent") else may[0]
            known = TYPES.get(dtype, dtype)
            tensor = card is None or "tf32" in card.peaks
            computed = "tf32" if known == "fp32" and fast is True and tensor else known
        one = sums.setdefault((kind, computed), _Sum())
        one.count += count
        one.bytes += moved
        seconds = moved / (card.bandwidth * 1e9) if card is not None else None
        if flops is not None:
            one.hardware += count * flops.hardware
            one.model += 0.0 if again else count * flops.model
            recomputed += count * flops.hardware if again else 0.0
            one.peak = card.peak(computed) if card is not None else None
            if flops.least and one.peak is None:
                seconds = None
            elif seconds is not None and one.peak is not None:
                seconds = max(seconds, count * flops.least / one.peak)
        one.floor = one.floor + seconds if one.floor is not None and seconds is not None else None
    if not sums:
        return None
    work = [
        WorkRow(kind, dtype, one.count, one.hardware, one.model, one.bytes, one.peak, one.floor)
        for (kind, dtype), one in sums.items()
    ]
    if card is not None and not problem:
        without = {row.type for row in work if row.hardware_flops and row.peak is None}
        problem = f"no data sheet has a peak of {card.id} for {', '.join(sorted(without))}"
        problem = problem if without else ""
    return UsefulWork(
        tuple(sorted(work, key=lambda row: (-(row.floor_seconds or 0.0), -row.hardware_flops))),
        tuple(sorted(unknown.items(), key=lambda item: -item[1])),
        recomputed,
        operators,
        left_out,
        card,
        problem,
        amount(answer.get("lost_seconds")),
        amount(answer.get("seconds")) or 0.0,
        amount(answer.get("usual_seconds")),
    )


def of_trainer(
    answer: Mapping[str, Any], trainer: TrainerView, host: HostView
) -> UsefulWork | None:
    """Return what a trainer's answer comes to on the GPU that it computes on."""
    return read(answer, *card_of(answer, trainer, host))


def card_of(
    answer: Mapping[str, Any], trainer: TrainerView, host: HostView
) -> tuple[CardPeaks | None, str]:
    """Return the card that a trainer has computed a step on, or None and why it is not known."""
    if answer.get("cuda") is not True:
        return None, ON_THE_CPU
    if (amount(answer.get("devices")) or 0) > 1:
        return None, SEVERAL
    used = {allocator.gpu for allocator in trainer.allocators if allocator.gpu is not None}
    devices = [device for device in host.devices if device.id in used]
    names = {device.definition.name for device in devices}
    if not names or None in names:
        return None, NO_GPU
    if any(device.definition.mig_enabled for device in devices):
        return None, MIG
    if len(names) > 1:
        return None, SEVERAL
    name = next(iter(names)) or ""
    card = card_named(name)
    return card, "" if card is not None else f"the table of peaks does not have {clean(name, 80)}"


# ── in words ──


def sentence(work: UsefulWork, step_seconds: float | None) -> str:
    """Return the step, its floor and its utilization in one line; why not, where not known."""
    least = "" if work.complete else "at least "
    flops = f"{least}{flops_text(work.model_flops)} a step"
    if not work.model_flops:
        known = "of its operators" if work.complete else "whose FLOPs are known"
        return f"no operator {known} multiplies matrices."
    if step_seconds is None:
        return f"{flops}; the step time is not known."
    floor, mfu = work.floor_seconds, work.mfu(step_seconds)
    parts = []
    if floor is not None:
        parts.append(f"{duration_text(step_seconds)} a step")
        what = "it" if work.complete else "the part with known FLOPs"
        parts.append(f"this GPU could do {what} in {duration_text(floor)} (roofline floor)")
    if mfu is not None and work.card is not None and work.peak is not None:
        parts = parts or [f"{duration_text(step_seconds)} a step"]
        peak = f"{work.peak / 1e12:g} TFLOPS, dense {work.type} of {work.card.id}"
        model = f"{flops_text(work.model_flops)} of the model"
        how = f"{CONVENTION} convention: {model} / (step × {peak})"
        parts.append(f"MFU {least}{percent_text(mfu)} ({how})")
    else:
        parts.append(f"{flops}; MFU unknown: {work.problem}")
    return "; ".join(parts) + "."


def unknown_text(work: UsefulWork) -> str:
    """Name the operators whose FLOPs are not known, "" where there are none."""
    names = [f"{clean(name, 60)} ({count})" for name, count in work.unknown[:4]]
    names += [f"{len(work.unknown) - 4} more"] if len(work.unknown) > 4 else []
    names += [f"{work.left_out} calls that are in no row"] if work.left_out else []
    return f"The FLOPs of {', '.join(names)} are not known." if names else ""


def cost(work: UsefulWork) -> str:
    """Say what counting has cost the training."""
    if work.lost_seconds is None:
        usual = f"; usual: {duration_text(work.usual_seconds)}" if work.usual_seconds else ""
        took = duration_text(work.counted_seconds)
        return f"The step whose FLOPs were counted took {took}{usual}."
    return f"Counting the step cost the training {duration_text(work.lost_seconds)}."


def flops_text(flops: float) -> str:
    """Return FLOPs with a prefix: ``3.21 TFLOP``."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if flops < 999.5:
            return f"{flops:.3g} {unit}FLOP"
        flops /= 1000
    return f"{flops:.3g} EFLOP"


def _row(row: Any) -> tuple[str, bool, int, float, str, str] | None:
    """Return name, recomputed, count, bytes moved, type and shapes; None where it is no row."""
    if not isinstance(row, list) or len(row) != 7:
        return None
    name, again, count, read_bytes, written, dtype, text = row
    numbers = [amount(one) for one in (count, read_bytes, written)]
    if not all(isinstance(one, str) for one in (name, dtype, text)) or None in numbers:
        return None
    calls, given, gave = (one or 0.0 for one in numbers)
    if calls < 1:
        return None
    return clean(name, 200), bool(again), int(calls), bytes_of(name, given, gave), dtype, text


def shares(work: UsefulWork) -> Iterable[tuple[WorkRow, float | None]]:
    """Return the rows with their share of the floor, None where that is not known."""
    floor = work.floor_seconds
    for row in work.rows:
        known = floor and row.floor_seconds is not None
        yield row, (row.floor_seconds or 0.0) / floor if known and floor else None
