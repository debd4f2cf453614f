"""Explain what went wrong in a traced training, and what to do."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable
from typing import Any

from ...wire.code_owner import last_own_line
from ..request import CannotPredict, Doubt, Request
from .fakes import DEVICE
from .same_types import (
    AutocastRefused,
    FourierRefused,
    HalvesRefused,
    LabelsRefused,
    OutOfRange,
    TypesDiffer,
)

_DISTRIBUTED = os.path.join("torch", "distributed", "")
_DEEPSPEED = "deepspeed"
_CALIBRATE = "calibrate on a running trainer instead: gpuscope predict PID"
_CUDA = re.compile(
    r"not linked with (?:support for )?cuda|Torch not compiled with CUDA|CUDA driver|No CUDA GPUs",
    re.I,
)
_TWO_TYPES = re.compile(
    r"type .{1,60} and (?:bias|weight) type .{1,60} should be the same"
    r"|(?:have|be of) the same dtype|[Ee]xpected self\.dtype to be equal"
    r"|to have same dtypes? but|does not match weight dtype"
    r"|[Ee]xpected scalar type \S+ but found"
)
"""What torch says of tensors of two types where its fakes do look at the types."""
_NO_HALVES = re.compile(
    r"Low precision dtypes not supported|Unsupported dtype (?:BFloat16|Half)"
    r"|only supported for half, float and double tensors"
    r"|(?:doesn't handle types other than|must be either|dimensions of) float(?: and|,| or) double"
)
"""What torch says of half precision where its fakes do look at it."""
_OPERATOR = re.compile(r"\b(aten|prims|[a-z_]\w*)(?:::|\.)([A-Za-z_]\w*)(?:\.\w+)?")


def library(module: str, what: str) -> Any:
    """Return the module of a library that ``what`` needs.

    Raises :class:`CannotPredict` if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise CannotPredict(
            f"{what} cannot be used here.",
            f"{sys.executable} traces the model, and has no {name}."
            if isinstance(error, ModuleNotFoundError) and error.name == name
            else f"{error}.",
            f"{sys.executable} -m pip install {name}    or set GPUSCOPE_LAB_PYTHON to a Python "
            "that has it",
        ) from None


def in_words(request: Request, error: BaseException) -> CannotPredict:
    if isinstance(error, CannotPredict):
        return _within(request, error)
    known = _known(request, error)
    if known is not None:
        return known
    kind, text = _told(error)
    assumed = getattr(error, "gpuscope_assumed", None)
    if assumed:
        return CannotPredict(
            f"What {request.model} does depends on values, which a prediction does not have"
            f"{_theirs(error)}.",
            f"{kind}: {text} This may come from a size that was assumed before, of the result of "
            f"{', '.join(assumed)}.",
            _CALIBRATE,
            "data_dependent",
        )
    if isinstance(error, SystemExit):
        text = f"it called sys.exit({text})"
    return CannotPredict(
        f"{request.model} failed while its training was traced{_theirs(error)}.",
        f"{kind}: {text}" if text else kind,
        "run one step of it on a GPU or CPU; if that works, " + _CALIBRATE,
    )


def note_assumed(error: BaseException, doubts: Iterable[Doubt]) -> None:
    """Note on ``error`` the operators whose results had a size that was assumed before it."""
    found = [one.operation for one in doubts if one.code == "data_dependent" and one.operation]
    if found:
        error.gpuscope_assumed = found  # type: ignore[attr-defined]


def _told(error: BaseException) -> tuple[str, str]:
    """Return the kind of an exception and its words."""
    text = " ".join(str(error).split())[:400]
    # the host has taken the GPU's place
    return type(error).__name__, text.replace(str(DEVICE), "cuda:0")


def _known(request: Request, error: BaseException) -> CannotPredict | None:
    """Return what is known of an exception; None if that is no more than its own words."""
    kind, text = _told(error)
    at = _theirs(error)
    if isinstance(error, TypesDiffer):
        name, *types = error.args
        return CannotPredict(
            f"{request.model} fails on a GPU in its first step{at}.",
            f"{name} gets tensors of {' and '.join(types)}, and takes only one type.",
            "cast one of them, as in x.to(y.dtype); autocast casts nothing here",
        )
    if isinstance(error, HalvesRefused):
        return _no_halves(request, at, "{} has no kernel for {}.".format(*error.args))
    if isinstance(error, AutocastRefused):
        return CannotPredict(
            f"{request.model} fails on a GPU in its first step{at}.",
            f"{text} (BCELoss) is not allowed under autocast: half precision may not hold its "
            "gradients.",
            "binary_cross_entropy_with_logits (BCEWithLogitsLoss) without the sigmoid before it",
        )
    if isinstance(error, FourierRefused):
        why = f"cuFFT transforms half precision only in sizes of powers of two, and gets {text}."
        return _no_halves(request, at, why)
    if isinstance(error, OutOfRange):
        name, index, rows = error.args
        if name.startswith("nll_loss"):
            why = f"a label is class {index:,} of {rows:,} classes; the first is class 0."
            then = "more classes in the last layer, or other labels"
        else:
            why = f"row {index:,} is looked up in a table of {rows:,} rows; the first is row 0."
            then = "a table with more rows, or shorter sequences and fewer words"
        return CannotPredict(f"{request.model} fails in its first step{at}.", why, then)
    if isinstance(error, LabelsRefused):
        return CannotPredict(
            f"{request.model} fails in its first step{at}.",
            f"cross-entropy takes classes as int64, and gets {text}.",
            "labels.long()",
        )
    if "backward through the graph a second time" in text:
        return CannotPredict(
            f"{request.model} goes backward twice through the same tensors.",
            f"{kind}: {text}",
            "leave backward() out of forward(), which returns the loss; and detach() what one step "
            "keeps for the next",
        )
    if _TWO_TYPES.search(text):
        return CannotPredict(
            f"{request.model} fails in its first step{at}.",
            f"{kind}: {text}",
            "cast one of them, as in x.to(y.dtype)",
        )
    if _NO_HALVES.search(text):
        return _no_halves(request, at, f"{kind}: {text}")
    if "to be on the same device" in text and "meta" in text and _in_backward(error):
        return CannotPredict(
            f"{request.model} takes a derivative forwards, as torch.func.hessian and jacfwd do.",
            f"torch cannot do this with tensors that hold no data: {text}",
            f"torch.func.jacrev in place of jacfwd, twice in place of hessian; or {_CALIBRATE}",
            "no_fake_kernel",
        )
    if "to be on the same device" in text:
        return CannotPredict(
            f"{request.model} fails on a GPU in its first step{at}.",
            f"{text} The host is cpu.",
            "move all of them to the device that the factory is given: x.to(device)",
        )
    if kind in ("DynamicOutputShapeException", "DataDependentOutputException"):
        return CannotPredict(
            f"What {request.model} does depends on values, which a prediction does not have: "
            f"{_operator(error)}{at}.",
            "its shape or control flow follows from data.",
            _CALIBRATE,
            "data_dependent",
        )
    if (
        kind in ("UnsupportedOperatorException", "UnsupportedFakeTensorException")
        or "fake impl" in text
    ):
        return CannotPredict(
            f"The operator {_operator(error)} has no fake implementation{at}.",
            f"{kind}: {text}",
            f"add one with torch.library.register_fake; or {_CALIBRATE}",
            "no_fake_kernel",
        )
    if "data pointer" in text or "Not available for 'meta'" in text or "numpy" in text.lower():
        return CannotPredict(
            f"{request.model} reads a tensor's memory{at}.",
            f"{kind}: {text}. Tensors hold no data in a prediction.",
            _CALIBRATE,
            "data_dependent",
        )
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if _DEEPSPEED in text or any(f"{os.sep}{_DEEPSPEED}{os.sep}" in name for name in frames):
        return CannotPredict(
            f"{request.model} trains by DeepSpeed{at}.",
            "its engine cannot run without its GPUs. What it takes is simulated around the plain "
            "model instead.",
            "pass the plain model and optimizer, with --deepspeed ds_config.json --nproc N; or "
            f"{_CALIBRATE}",
            "custom_kernel",
        )
    if isinstance(error, ImportError):
        advice = re.search(r"pip install ([\w.-]+\w)", text)
        missing = advice[1] if advice else (error.name or "").partition(".")[0]
        return CannotPredict(
            f"{request.model} needs a library that is not installed here{at}.",
            f"{kind}: {text}",
            f"pip install {missing}" if missing else "install it, and predict again",
        )
    if any(_DISTRIBUTED in name for name in frames):
        return CannotPredict(
            f"{request.model} shards its model itself{at}.",
            f"{kind}: {text}. A prediction has one process and no GPU.",
            "pass the plain model and optimizer, and --parallel fsdp or zero1 with --nproc N; or "
            f"{_CALIBRATE}",
            "custom_kernel",
        )
    if re.search(r"Uninitialized(Parameter|Buffer)|uninitialized parameter", text):
        return CannotPredict(
            f"{request.model} has lazy modules{at}, whose shapes are unknown before they run.",
            f"{kind}: {text}",
            "state the sizes: nn.Linear(256, 10) instead of nn.LazyLinear(10)",
            "no_fake_kernel",
        )
    if "shape_env" in text or "_nested_tensor" in text:
        return CannotPredict(
            f"{request.model} uses nested tensors{at}, whose shapes are values.",
            f"{kind}: {text}",
            f"pad the samples to one length for the prediction; or {_CALIBRATE}",
            "no_fake_kernel",
        )
    if _CUDA.search(text):
        return CannotPredict(
            f"{request.model} needs a real GPU{at}.",
            f"{kind}: {text}. A prediction has none.",
            f"let the factory use the device it is given; or {_CALIBRATE}",
            "custom_kernel",
        )
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return CannotPredict(
            f"{request.model} allocates real memory{at}, more than a prediction may have.",
            f"{kind}: {text}",
            "create tensors with torch in the factory: they hold no data here",
            "memory",
        )
    return None


def _in_backward(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == "_engine_run_backward" for frame in frames)


def _no_halves(request: Request, at: str, why: str) -> CannotPredict:
    return CannotPredict(
        f"{request.model} fails on a GPU in its first step{at}.",
        why,
        "compute this in float32: x.float(), outside of autocast",
    )


def _within(request: Request, failure: CannotPredict) -> CannotPredict:
    """Return ``failure``, or what is known of the exception behind it if the factory raised it."""
    cause = failure.__cause__
    raised = getattr(cause, "__context__", None)
    if raised is None or isinstance(raised, CannotPredict):
        return raised or failure
    from ...lab.factory import lacks_its_module

    if lacks_its_module(request.model, raised):
        return failure
    return _known(request, raised) or failure


def _theirs(error: BaseException) -> str:
    line = last_own_line(error)
    return f" ({line})" if line else ""


def _operator(error: BaseException) -> str:
    func = getattr(error, "func", None)
    if func is not None:
        return str(func)
    found = _OPERATOR.search(str(error))
    return found[0] if found else str(error)[:80]
