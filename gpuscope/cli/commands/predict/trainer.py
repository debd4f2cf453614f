"""Predict memory from what a running or recorded training has measured, without its model.

This is for ``gpuscope predict PID`` and ``gpuscope predict RECORDING``. The probe knows the exact
bytes of parameters, gradients and optimizer state, and torch knows its own peaks. Together with the
batch size, which no allocator knows (``--batch``), they give the peak as a function of the batch
and the largest batch, as a range.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import UserError
from ....exit_status import ExitStatus
from ....lab.toggles import BY_NAME
from ....model.allocator_account import peak_sizes
from ....predict import gpus
from ....predict.document import EXIT_CODES, FIGURES, PARTS, figure_of
from ....predict.errors import Estimate
from ....process.procfs import descends
from ....store.view import by_id
from ....text.process_name import short_script
from ....text.units import bytes_text
from ....wire.clean import clean
from ... import output

if TYPE_CHECKING:
    from ....predict.calibration import LargestBatch
    from ....predict.trainer_what_if import Freed
    from ....store.view import AllocView, DeviceView, HostView, TrainerView

FINE = 1000
"""Fractions of an unknown batch size; what fits is then reported as a multiple of it."""
WATCH_SECONDS = 6.0
WORDS = {"fits": "fits", "too_close": "is too close to call", "does_not_fit": "does not fit"}


class TrainerNotMeasured(UserError):
    """A trainer, or a recording of one, does not tell what a prediction needs."""


@dataclass(frozen=True, slots=True)
class MeasuredTrainer:
    """The measurements of one trainer on one device, in bytes.

    ``outside_bytes`` is what its process holds outside of torch's allocator, None where the driver
    does not report it. ``device_bytes`` is the card's memory minus the driver's reserve.
    """

    title: str
    pid: int
    torch: str
    gpu: str
    device_bytes: int | None
    driver_bytes: int
    outside_bytes: int | None
    peak_allocated: int
    peak_reserved: int
    parameters: int | None
    gradients: int | None
    optimizer: int | None
    workspaces: int
    steps: int | None
    ranks: int | None

    @property
    def static_bytes(self) -> int | None:
        """Held all through the step; the gradients are not."""
        known = [self.parameters, self.optimizer]
        return (
            None if self.parameters is None else sum(value for value in known if value is not None)
        )


def run(args: argparse.Namespace, target: str) -> int:
    began = time.monotonic()
    try:
        found = live(int(target)) if target.isdigit() else recorded(target)
        document = _document(args, found, began)
    except TrainerNotMeasured as trouble:
        if args.json:
            print(output.dump(_no_answer(trouble, began)))
        raise
    print(output.dump(document) if args.json else _text(document, found))
    return int(document["exit_code"])


def _no_answer(trouble: TrainerNotMeasured, began: float) -> dict[str, Any]:
    """Return the document that says why there is none."""
    keys = [f"{name}_{part}" for name in FIGURES for part in PARTS]
    keys += ["categories", "peak_at", "verdict", "largest_batch", "what_if"]
    why = f"{trouble.what} {trouble.why}"
    return {
        **dict.fromkeys(keys),
        "seconds": round(time.monotonic() - began, 3),
        "error": {
            "code": "not_measured",
            "what": trouble.what,
            "why": trouble.why,
            "next": trouble.next,
        },
        "unknown": [{"path": key, "code": "not_measured", "reason": why} for key in keys],
        "exit_code": trouble.exit_status,
    }


# ── where it comes from ───────────────────────────────────────────────────────────────────────────


def is_recording(word: str) -> bool:
    """A file, or ``FILE:PID``."""
    path, colon, pid = word.rpartition(":")
    return os.path.isfile(word) or bool(colon and pid.isdigit() and os.path.isfile(path))


def live(pid: int) -> MeasuredTrainer:
    """A trainer of this host with a probe in it. Raises :class:`TrainerNotMeasured`."""
    from ..doctor import live as doctor_live

    store, _ = doctor_live.watch(WATCH_SECONDS, pid=pid)
    host = store.view().host
    trainers = [one for one in host.trainers if one.gone is None] if host is not None else []
    chosen = [one for one in trainers if descends(one.definition.pid, pid)]
    if host is None or not chosen:
        raise TrainerNotMeasured(
            f"There is no probe in pid {pid}.",
            "without one its tensors are unknown; it was not touched",
            "gpuscope attach --inject   attaches one; next run: gpuscope run train.py",
        )
    return _largest([(host, one) for one in chosen], f"pid {pid}")


def recorded(target: str) -> MeasuredTrainer:
    """A training in a recording; ``FILE:PID`` says which. Raises :class:`TrainerNotMeasured`."""
    path, pid = (
        (target, None)
        if os.path.isfile(target)
        else (target.rpartition(":")[0], int(target.rpartition(":")[2]))
    )
    name = clean(Path(path).name, 80)
    pairs = [(host, trainer) for host in _hosts(path) for trainer in host.trainers]
    chosen = [pair for pair in pairs if pid is None or pair[1].definition.pid == pid]
    jobs = {trainer.definition.job or trainer.key for _, trainer in chosen if _allocators(trainer)}
    if not chosen:
        raise TrainerNotMeasured(
            f"{name} contains no such training.",
            "it has no trainer with a probe, or not this pid",
            f"gpuscope replay {path}   shows what is in it",
        )
    if len(jobs) > 1:
        each = "   ".join(
            f"{clean(path)}:{one.definition.pid}" for _, one in chosen if _allocators(one)
        )
        raise TrainerNotMeasured(
            f"{name} contains {len(jobs)} trainings.",
            "the target does not name one of them",
            f"one of: {each}",
        )
    return _largest(chosen, name)


def _hosts(path: str) -> Iterator[HostView]:
    from ....store import past_file

    reader, name = past_file.reader_of(path), clean(Path(path).name, 80)
    if not reader.header:
        why = reader.problem.text if reader.problem else "its first line is not a recording's"
        raise TrainerNotMeasured(
            f"{name} is not a recording.",
            why,
            "gpuscope record FILE   makes one",
        )
    yield from past_file.store_of(reader.lines(), name).view().hosts


def _allocators(trainer: TrainerView) -> list[AllocView]:
    return [
        one
        for one in trainer.allocators
        if one.definition.ordinal >= 0 and one.number("peak_reserved_bytes")
    ]


def _largest(pairs: list[tuple[HostView, TrainerView]], name: str) -> MeasuredTrainer:
    """Return the rank and the device with the highest peak: it runs out of memory first."""
    every = [(host, trainer, one) for host, trainer in pairs for one in _allocators(trainer)]
    if not every:
        cpu = all(not trainer.definition.cuda for _, trainer in pairs)
        why = (
            "it trains on a CPU, where torch keeps no such statistics"
            if cpu
            else "its probe has reported none yet"
        )
        raise TrainerNotMeasured(
            f"The peaks of {name} are unknown.",
            why,
            "gpuscope predict MODULE:FACTORY   needs no run",
        )
    host, trainer, best = max(every, key=lambda one: one[2].number("peak_reserved_bytes") or 0)
    device = by_id(host.devices, best.gpu)
    definition = trainer.definition
    total = device.definition.total_bytes if device is not None else None
    driver = device.number("driver_reserved_bytes") if device is not None else None
    peak, parameters, gradients, optimizer, workspaces = peak_sizes(best)
    step = trainer.number("step")
    return MeasuredTrainer(
        clean(short_script(definition.script)) if definition.script else f"pid {definition.pid}",
        definition.pid,
        clean(definition.torch_version or "?"),
        clean((device and device.definition.name) or "its GPU", 60),
        None if total is None else total - int(driver or 0),
        int(driver or 0),
        _outside(device, trainer, best),
        peak or 0,
        int(best.number("peak_reserved_bytes") or 0),
        parameters,
        gradients,
        optimizer,
        workspaces,
        None if step is None else int(step),
        definition.world_size,
    )


def _outside(device: DeviceView | None, trainer: TrainerView, allocator: AllocView) -> int | None:
    """Return what the process held of the card outside torch's reserve, at the last reading."""
    uses = device.uses if device is not None else ()
    own = next((one for one in uses if one.process == trainer.process), None)
    used, reserved = own.number("used_bytes") if own else None, allocator.number("reserved_bytes")
    return None if used is None or reserved is None or used < reserved else int(used - reserved)


# ── the answer ────────────────────────────────────────────────────────────────────────────────────


def _document(args: argparse.Namespace, found: MeasuredTrainer, began: float) -> dict[str, Any]:
    from ....predict.calibration import calibrate

    given = BY_NAME["batch"].parse(args.batch)
    batch = given if isinstance(given, int) else None
    outside, guessed = _context_bytes(found)
    device, total, name = _capacity(args, found)
    limit = None if device is None else max(0, device - outside)
    largest = calibrate(
        found.static_bytes,
        [(batch or FINE, found.peak_allocated)],
        limit,
        gradient_bytes=found.gradients,
        reserved_bytes=found.peak_reserved,
    )
    unknown = [
        _row(
            "categories",
            "not_recorded",
            "what was live at the peak was not recorded: take a snapshot",
        ),
        _row("peak_at", "not_recorded", "where in the step the peak was is not recorded"),
    ]
    what_if = None
    if args.what_if:
        what_if = [_freed(found, one) for one in _fixes(args, found)]
    else:
        unknown.append(_row("what_if", "not_asked", "not asked for: --what-if"))
    verdict = _verdict(found, limit)
    if verdict is None:
        unknown.append(
            _row("verdict", "no_capacity", "its GPU is unknown: --gpu NAME or --capacity SIZE")
        )
    factor = None
    if largest.batch is None:
        unknown.append(_row("largest_batch", "not_measured", largest.why))
    elif batch is None:
        factor = _factor(largest)
        why = (
            "torch does not know the batch size: give it with --batch N; largest_batch_factor "
            "is for any batch"
        )
        unknown.append(_row("largest_batch", "no_batch", why))
    if batch is None:
        unknown.append(_row("batch", "no_batch", "torch does not know it: --batch N"))
    if found.steps is None:
        unknown.append(_row("steps", "not_recorded", "the probe has counted none"))
    if device is None:
        unknown.append(
            _row("capacity", "no_capacity", "its GPU is unknown: --gpu NAME or --capacity SIZE")
        )
    known = largest if batch is not None and largest.batch is not None else None
    for word in ("low", "high") if known is None else ():
        unknown.append(_row(f"largest_batch_{word}", "no_batch", "as largest_batch"))
    peak = found.peak_reserved + outside + found.driver_bytes
    return {
        "model": found.title,
        "pid": found.pid,
        "torch": found.torch,
        "batch": batch,
        "source": "measured",
        "steps": found.steps,
        **figure_of("peak_allocated", Estimate(found.peak_allocated, 0)),
        **figure_of("peak_reserved", Estimate(found.peak_reserved, 0)),
        **figure_of("device_peak", Estimate(peak, guessed)),
        "static": {
            "parameter_bytes": found.parameters,
            "gradient_bytes": found.gradients,
            "optimizer_state_bytes": found.optimizer,
        },
        "capacity": None
        if device is None
        else {"name": name, "total_bytes": total, "limit_bytes": limit},
        "categories": None,
        "peak_at": None,
        "verdict": verdict,
        "largest_batch": known.batch if known else None,
        "largest_batch_low": known.low if known else None,
        "largest_batch_high": known.high if known else None,
        **({"largest_batch_factor": factor} if factor else {}),
        **({"law": asdict(known.law)} if known is not None and known.law is not None else {}),
        "assumed": largest.law.assumed.replace(f" ({FINE})", "") if largest.law else "",
        "what_if": what_if,
        "seconds": round(time.monotonic() - began, 3),
        "error": None,
        "unknown": unknown,
        "exit_code": EXIT_CODES[verdict] if verdict else ExitStatus.OK,
    }


def _fixes(args: argparse.Namespace, found: MeasuredTrainer) -> list[Freed]:
    from ....predict.trainer_what_if import freed_by
    from . import card as predict_card

    ranks = predict_card.ranks(args, found.ranks)
    model = (found.parameters, found.gradients, found.optimizer)
    return freed_by(found.peak_allocated, *model, ranks, found.workspaces)


def _freed(found: MeasuredTrainer, one: Freed) -> dict[str, Any]:
    return {
        "fix": one.key,
        "title": one.title,
        "peak_allocated_bytes": found.peak_allocated - one.middle,
        "freed_bytes": one.middle,
        "freed_low_bytes": one.low,
        "freed_high_bytes": one.high,
        "change": one.change,
        "assumed": one.why,
    }


def _context_bytes(found: MeasuredTrainer) -> tuple[int, int]:
    """Return the bytes of the process outside of torch's allocator, and their error.

    They are measured, or typical values for such a card where they were not.
    """
    if found.outside_bytes is not None:
        return found.outside_bytes, 0
    from ....predict.context_memory import outside

    known = gpus.find_gpu(found.gpu)
    usual = outside(
        found.gpu, known.architecture if known else "", found.device_bytes or 0, found.torch
    )
    return usual.context_bytes, usual.error_bytes


def _capacity(
    args: argparse.Namespace, found: MeasuredTrainer
) -> tuple[int | None, int | None, str]:
    """Return what the driver of the card leaves, the card's total, and its name."""
    if args.gpu is None and args.capacity is None:
        total = None if found.device_bytes is None else found.device_bytes + found.driver_bytes
        return found.device_bytes, total, found.gpu
    from ....predict.context_memory import outside
    from . import card as predict_card

    card = predict_card.card(args)
    if card is None:
        return None, None, ""
    kept = card.driver_bytes
    if kept is None:
        kept = outside(card.gpu, card.architecture, card.total_bytes, found.torch).driver_bytes
    return card.total_bytes - kept, card.total_bytes, card.name


def _verdict(found: MeasuredTrainer, limit: int | None) -> str | None:
    """Say whether the training fits, judged by how it ran.

    It fits if its reserved bytes fit, and it does not fit if its allocated bytes do not. Between
    the two nothing was measured, so the answer is open.
    """
    if limit is None:
        return None
    if found.peak_reserved <= limit:
        return "fits"
    return "does_not_fit" if found.peak_allocated > limit else "too_close"


def _factor(largest: LargestBatch) -> dict[str, float]:
    values = {"best": largest.batch, "low": largest.low, "high": largest.high}
    return {name: round(value / FINE, 3) for name, value in values.items() if value is not None}


def _row(path: str, code: str, reason: str) -> dict[str, str]:
    return {"path": path, "code": code, "reason": reason}


def _text(document: dict[str, Any], found: MeasuredTrainer) -> str:
    error = document["device_peak_error_percent"]
    peak = bytes_text(document["device_peak_bytes"]) + (f" ± {error:.1f} %" if error else "")
    room, verdict = document["capacity"], document["verdict"]
    if room is None:
        lines = [f"{found.title} (pid {found.pid}) needs {peak} of its GPU."]
    else:
        held = "at its peak it held" if verdict == "fits" else "it needs"
        lines = [
            f"{found.title} (pid {found.pid}) {WORDS[verdict]} on {room['name']}: {held} {peak} "
            f"of {bytes_text(room['total_bytes'])}"
        ]
    steps = f" over {found.steps:,} steps" if found.steps else ""
    lines += [
        _batches(document),
        f"Measured{steps}: {bytes_text(found.peak_allocated)} allocated, "
        f"{bytes_text(found.peak_reserved)} reserved",
        *([_static(found)] if found.parameters is not None else []),
    ]
    for one in document["what_if"] or ():
        low, high = bytes_text(one["freed_low_bytes"]), bytes_text(one["freed_high_bytes"])
        span = low if low == high else f"{low} to {high}"
        title = one["title"][:1].upper() + one["title"][1:]
        lines.append(f"{title}: frees {span}, by {one['change']}")
    if document["assumed"]:
        lines.append(f"± {document['assumed']}")
    return "\n".join(part for line in lines for part in output.on_terminal(line))


def _static(found: MeasuredTrainer) -> str:
    parts = [
        (found.parameters, "parameters"),
        (found.gradients, "gradients"),
        (found.optimizer, "optimizer state"),
    ]
    sizes = [f"{bytes_text(size)} {word}" for size, word in parts if size is not None]
    return "Of it: " + ", ".join(sizes)


def _batches(document: dict[str, Any]) -> str:
    factor = document.get("largest_batch_factor")
    if document["largest_batch"] is not None:
        span = f"{document['largest_batch_low']} to {document['largest_batch_high']}"
        return f"Largest batch: {document['largest_batch']} (from {span}); now {document['batch']}"
    if factor:
        span = f"{factor['low']:.3g} to {factor['high']:.3g}"
        return (
            f"Largest batch: {factor['best']:.3g} times the one it trains with ({span}); "
            "--batch N says it in samples"
        )
    why = next(str(row["reason"]) for row in document["unknown"] if row["path"] == "largest_batch")
    return f"Largest batch: unknown, {why}"
