"""Recognise from outside what a process without optimizer steps is.

It may be an inference server, a notebook, ComfyUI, or one that spills.

The functions are pure. They take a picture and the recent course of two readings, and return one
finding with its evidence, or None. A rule without enough evidence finds nothing, and a finding
never claims more than its evidence shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..store.view import AllocView, DeviceView, History, HostView, Mark, ProcView, TrainerView
from ..text.units import age_text, ago_text, bytes_text, percent_text

BY_DESIGN_SHARE = 0.8
FLAT_SHARE = 0.01
"""Share of the card by which a reading may change and still count as flat."""
FLAT_SECONDS = 120.0
KEPT_SECONDS = 30.0
KEPT_BYTES, KEPT_SHARE = 1 << 30, 0.1
STILL_SECONDS = 120.0
"""A trainer whose last step is older than this, and than ten usual steps, does not train now."""

_SERVERS = (
    ("vLLM", re.compile(r"\bvllm\b|VLLM::|VllmWorker", re.I)),
    ("SGLang", re.compile(r"\bsglang\b", re.I)),
    ("TGI", re.compile(r"text[-_]generation[-_](server|launcher|inference)", re.I)),
    ("LMDeploy", re.compile(r"\blmdeploy\b", re.I)),
    ("TensorRT-LLM", re.compile(r"\btrtllm|tensorrt[-_]llm", re.I)),
)
_SHARE_ASKED = re.compile(
    r"--?(gpu[-_]memory[-_]utilization|mem[-_]fraction[-_]static|cache[-_]max[-_]entry[-_]count)"
    r"[= ]([01]?\.\d+|1)\b"
)
_NOTEBOOK = re.compile(r"ipykernel|ipython|jupyter|colab_kernel|notebook", re.I)
_COMFY = re.compile(r"comfyui|comfy[-_]?ui", re.I)


@dataclass(frozen=True, slots=True)
class ProcessKind:
    """``kind``: by_design, kept, spill, async, comfyui, stepless.

    ``says`` is a sentence, ``because`` what it rests on, ``advice`` what can be done, "" where
    nothing needs to be.
    """

    kind: str
    says: str
    because: tuple[str, ...]
    advice: str = ""

    @property
    def ground(self) -> str:
        """The evidence in one line."""
        return "; ".join(self.because)


@dataclass(frozen=True, slots=True)
class ReadingCourse:
    """How a reading went lately.

    Over ``seconds`` it was between ``low`` and ``high`` bytes; ``last`` is the newest, ``since``
    its first moment.
    """

    seconds: float
    low: float
    high: float
    last: float
    since: float


def course(history: History) -> ReadingCourse | None:
    """Return the longest run at the end of ``history`` without an unknown value.

    None before two readings.
    """
    values: list[float] = []
    moments: list[float] = []
    for moment, value in zip(reversed(history.seconds), reversed(history.values), strict=True):
        if value is None:
            break
        values.append(value)
        moments.append(moment)
    if len(values) < 2:
        return None
    return ReadingCourse(moments[0] - moments[-1], min(values), max(values), values[0], moments[-1])


def flat_end(history: History, within: float) -> ReadingCourse | None:
    """Return the part at the end of ``history`` that stays within ``within`` bytes.

    None before two readings.
    """
    low = high = None
    start = len(history)
    while start and (value := history.values[start - 1]) is not None:
        lower, upper = (
            min(value, low if low is not None else value),
            max(value, high if high is not None else value),
        )
        if upper - lower > within:
            break
        low, high = lower, upper
        start -= 1
    return course(History(history.seconds[start:], history.values[start:]))


def recognise(
    host: HostView,
    device: DeviceView | None,
    trainer: TrainerView | None,
    allocator: AllocView | None,
    process: ProcView | None,
    held: History,
) -> ProcessKind | None:
    """What kind of process this is.

    ``process`` is the one looked at, with or without a probe in it; ``held`` the history of its
    allocated bytes, or without a probe of the process's bytes on the device.
    """
    if device is None:
        return None
    command = " ".join(
        filter(None, (process.definition.command, process.definition.name) if process else ())
    )
    script = trainer.definition.script if trainer else None
    words = f"{command} {script or ''}"
    total = device.definition.total_bytes
    found: Iterable[ProcessKind | None] = (
        _spill(host, total, allocator),
        _by_design(device, trainer, allocator, process, words, total, held),
        _kept_by_exception(host, trainer, allocator, words, total, held),
        _comfyui(trainer, words),
        _async(trainer),
        _stepless(trainer, held),
    )
    return next((finding for finding in found if finding is not None), None)


def stepless(trainer: TrainerView | None) -> bool | None:
    """Whether no optimizer steps now: never, or not for long. None where that is not known."""
    if trainer is None:
        return None
    step, age, usual = (
        trainer.number(name) for name in ("step", "step_age_seconds", "step_seconds")
    )
    if step is None or step == 0:
        return True
    return None if age is None else age > max(STILL_SECONDS, 10 * (usual or 0.0))


def _spill(host: HostView, total: int | None, allocator: AllocView | None) -> ProcessKind | None:
    allocated = allocator.number("allocated_bytes") if allocator else None
    if not total or allocated is None or allocated <= total:
        return None
    because = [f"allocated {bytes_text(allocated)} is more than the GPU's {bytes_text(total)}"]
    if "microsoft" in (host.definition.kernel or "").casefold():
        because.append("the kernel is WSL's")
    return ProcessKind(
        "spill",
        f"{bytes_text(allocated - total)} are in system memory: the driver moved them there; "
        f"using them is slow",
        tuple(because),
        "fit the GPU, or forbid it (Windows, NVIDIA settings: CUDA sysmem fallback policy)",
    )


def _by_design(
    device: DeviceView,
    trainer: TrainerView | None,
    allocator: AllocView | None,
    process: ProcView | None,
    words: str,
    total: int | None,
    held: History,
) -> ProcessKind | None:
    name = next((name for name, pattern in _SERVERS if pattern.search(words)), None)
    match = _SHARE_ASKED.search(words)
    if (
        not total
        or (name is None and match is None)
        or (trainer is not None and not stepless(trainer))
    ):
        return None
    reserved = allocator.number("reserved_bytes") if allocator else None
    use = next(
        (u for u in device.uses if process and u.process == process.id and u.gone is None), None
    )
    size = reserved if reserved is not None else use.number("used_bytes") if use else None
    share = min(BY_DESIGN_SHARE, float(match[2]) - 0.1) if match else BY_DESIGN_SHARE
    now = flat_end(held, total * FLAT_SHARE)
    if size is None or size < share * total or now is None or now.seconds < FLAT_SECONDS:
        return None
    what = "reserved" if reserved is not None else "held"
    because = [
        f"its command line names {name or match[0].strip('-')}"  # type: ignore[index]
        if not (name and match)
        else f"{name} with {match[0]}",
        f"{what} {percent_text(size / total)} of the GPU",
        f"{'allocated' if allocator else 'its use'} moved less than 1 % for "
        f"{age_text(now.seconds)}",
    ]
    because += ["no optimizer steps"] if trainer is not None else []
    return ProcessKind(
        "by_design",
        f"{name or 'an inference server'}: reserves most of the GPU by design; not a leak",
        tuple(because),
        "a smaller share: --gpu-memory-utilization (vLLM), --mem-fraction-static (SGLang)",
    )


def _kept_by_exception(
    host: HostView,
    trainer: TrainerView | None,
    allocator: AllocView | None,
    words: str,
    total: int | None,
    held: History,
) -> ProcessKind | None:
    """Memory that a notebook holds since an exception.

    Only after an OOM that was seen: else it may be wanted.
    """
    if (
        allocator is None
        or trainer is None
        or not total
        or not _NOTEBOOK.search(words)
        or not stepless(trainer)
    ):
        return None
    oom = _last(host.marks, "oom", (allocator.id, trainer.id))
    now = flat_end(held, total * FLAT_SHARE)
    if (
        oom is None
        or now is None
        or now.seconds < KEPT_SECONDS
        or now.since < oom.seconds - KEPT_SECONDS
    ):
        return None
    if now.last < max(KEPT_BYTES, total * KEPT_SHARE):
        return None
    after = (host.sampled_seconds or oom.seconds) - oom.seconds
    return ProcessKind(
        "kept",
        f"{bytes_text(now.last)} stay allocated after an out-of-memory error: probably the "
        f"notebook's last traceback keeps the tensors alive",
        (
            f"an OOM {ago_text(after)}",
            f"allocated flat for {age_text(now.seconds)}",
            "a notebook's process",
            "no steps since",
        ),
        "in a cell: import sys, gc; sys.last_traceback = sys.last_value = sys.last_exc = None; "
        "gc.collect(); torch.cuda.empty_cache()",
    )


def _last(marks: Sequence[Mark], kind: str, ids: tuple[int, ...]) -> Mark | None:
    return next((mark for mark in reversed(marks) if mark.kind == kind and mark.id in ids), None)


def _comfyui(trainer: TrainerView | None, words: str) -> ProcessKind | None:
    if not _COMFY.search(words) or (trainer is not None and not stepless(trainer)):
        return None
    because = ["its command line names ComfyUI"]
    if trainer is not None and trainer.definition.backend == "cudaMallocAsync":
        because.append(
            "allocator: cudaMallocAsync, whose pool the driver manages (no split inside)"
        )
    return ProcessKind(
        "comfyui",
        "ComfyUI: models stay loaded between prompts until another needs the memory",
        tuple(because),
        "unload them in its menu, or start it with --lowvram or --disable-smart-memory",
    )


def _async(trainer: TrainerView | None) -> ProcessKind | None:
    if trainer is None or trainer.definition.backend != "cudaMallocAsync":
        return None
    return ProcessKind(
        "async",
        "cudaMallocAsync: the pool is the driver's, so its fragmentation is unknown",
        ("torch reports it as the allocator's backend",),
    )


def _stepless(trainer: TrainerView | None, held: History) -> ProcessKind | None:
    if trainer is None or not trainer.definition.cuda or not stepless(trainer):
        return None
    step, age = trainer.number("step"), trainer.number("step_age_seconds")
    if step and age is not None:
        return ProcessKind(
            "stepless",
            "not training now: shown by time",
            (f"last optimizer step {ago_text(age)}",),
        )
    if not held.seconds or held.seconds[-1] - held.seconds[0] < KEPT_SECONDS:
        return None  # it may be about to begin
    seen = age_text(held.seconds[-1] - held.seconds[0])
    return ProcessKind(
        "stepless",
        "no optimizer step seen: shown by time",
        (f"CUDA is used, no step in {seen}",),
    )
