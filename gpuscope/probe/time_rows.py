"""Names what a training thread does at a moment, from its stack: the rows of the time ledger.

The tables identify functions of torch and of frameworks by module and name. There are two kinds of
rules. The first kind knows activities that contain others, and is applied from the outermost frame
inwards: a forward pass within a validation is validation. Otherwise the innermost frame that any
rule knows decides: a forward pass in the closure of an optimizer's step is forward.
"""

from __future__ import annotations

import opcode
import re
import sys
from typing import Any, Container, Dict, List, NamedTuple, Optional, Tuple

from ..wire.code_owner import OWN
from . import code_place
from .framework_rows import FRAMEWORKS

ROWS = (
    "input",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "read",
    "copy",
    "compile",
    "checkpoint",
    "validation",
    "logging",
    "collection",
    "profiler",
    "release",
    "other",
    "unattributed",
)
"""All rows that :func:`row_of` and the ledger use. ``read``: the thread reads values of a tensor,
which waits for the device. ``collection``: garbage collection.
``release``: the allocator gives cached memory back. ``profiler``: torch's profiler works
on what it has recorded. ``other``: the user's own code.
"""
MAX_FRAMES = 128
Rules = Tuple[Tuple[str, str, Optional[Tuple[str, ...]]], ...]

AROUND: Rules = (
    ("validation", "transformers.trainer", ("evaluate", "evaluation_loop", "prediction_loop")),
    ("validation", "lightning.pytorch.loops.evaluation_loop", None),
    ("validation", "pytorch_lightning.loops.evaluation_loop", None),
    ("validation", "fastai.learner", ("_do_epoch_validate",)),
    ("validation", "keras.src.backend.torch.trainer", ("evaluate", "predict")),
    ("validation", "composer.trainer.trainer", ("_eval_loop", "eval")),
    ("validation", "ultralytics.engine.validator", None),
    ("checkpoint", "torch.serialization", ("save", "_save", "_legacy_save")),
    ("checkpoint", "torch.distributed.checkpoint", None),
    ("checkpoint", "safetensors", None),
    ("checkpoint", "transformers.trainer", ("_save_checkpoint", "save_model", "_save")),
    ("checkpoint", "accelerate.checkpointing", None),
    ("checkpoint", "accelerate.accelerator", ("save_state", "save_model")),
    ("checkpoint", "lightning.pytorch.callbacks.model_checkpoint", None),
    ("checkpoint", "pytorch_lightning.callbacks.model_checkpoint", None),
    ("checkpoint", "deepspeed.runtime.engine", ("save_checkpoint",)),
    ("input", "torch.utils.data", None),
    ("input", "datasets", None),
    ("input", "webdataset", None),
    ("compile", "torch._dynamo.convert_frame", None),
    ("compile", "torch._inductor.compile_fx", None),
    ("compile", "torch._inductor.async_compile", None),
    ("compile", "torch._inductor.codecache", None),
    ("compile", "triton.compiler", None),
    ("profiler", "torch.profiler.profiler", None),
    ("profiler", "torch.autograd.profiler", ("_parse_kineto_results", "_prepare_trace")),
    ("logging", "wandb", None),
    ("logging", "torch.utils.tensorboard", None),
    ("logging", "tensorboard", None),
    ("logging", "tensorboardX", None),
    ("logging", "mlflow", None),
    ("logging", "comet_ml", None),
    ("logging", "neptune", None),
    ("logging", "clearml", None),
    ("logging", "logging", None),
    ("logging", "tqdm", ("update", "refresh", "display", "set_postfix", "set_description")),
    ("logging", "rich", None),
    ("logging", "transformers.trainer", ("log",)),
    ("logging", "lightning.pytorch.loggers", None),
    ("logging", "lightning.pytorch.trainer.connectors.logger_connector", None),
    ("logging", "pytorch_lightning.loggers", None),
    *FRAMEWORKS,
)
"""Rules ``(row, module or package, functions)``; None stands for all its functions."""
WITHIN: Rules = (
    ("backward", "torch.autograd", ("backward", "grad", "_engine_run_backward")),
    ("backward", "torch._tensor", ("backward",)),
    ("read", "torch._tensor_str", None),
    ("read", "torch._tensor", ("__format__", "__repr__", "__array__", "tolist")),
    ("read", "torch.cuda", ("synchronize",)),
    ("release", "torch.cuda.memory", ("empty_cache",)),
    ("communication", "torch.distributed.distributed_c10d", None),
    ("communication", "torch.distributed._functional_collectives", None),
    ("communication", "torch.distributed.fsdp", None),
    ("communication", "deepspeed.comm", None),
    ("optimizer", "torch.optim", None),
    ("optimizer", "torch.amp.grad_scaler", None),
    ("optimizer", "torch.nn.utils.clip_grad", None),
    ("optimizer", "apex.optimizers", None),
    ("optimizer", "bitsandbytes.optim", None),
    ("forward", "torch.nn", None),
    ("forward", "torch._dynamo.eval_frame", None),
    ("forward", "torch._ops", None),
)
READS = ("item", "tolist", "cpu", "numpy", "nonzero", "synchronize", "float", "int", "bool")
COPIES = ("to", "cuda")
_CALLED = {**dict.fromkeys(READS, "read"), **dict.fromkeys(COPIES, "copy")}
_OWN_NAMES = (
    (
        "validation",
        re.compile(r"_?(run_)?(eval|evaluate|evaluation|validate|validation|valid)(_|$)"),
    ),
    ("validation", re.compile(r"(estimate_loss|_?log_validation)$")),
    ("checkpoint", re.compile(r"_?(save|write|dump)_?(checkpoint|ckpt|model|state)")),
    ("logging", re.compile(r"_?(log|report)_(metrics|scalars|images|stats|step|epoch)")),
)
"""Common names of the user's own functions. They count only for functions that are not on the stack
when the optimizer steps, because a training loop may be called ``eval_and_train``.
"""
_CALLS = ("CALL", "PRECALL", "CALL_KW", "CALL_METHOD", "CALL_FUNCTION", "CALL_FUNCTION_KW")
"""Python 3.11 may call a C function in the instruction before its call."""
_TRUTHS = ("TO_BOOL", "UNARY_NOT", "POP_JUMP_IF", "POP_JUMP_FORWARD_IF", "JUMP_IF_")
_BACK = 96
"""How many instructions and caches before a call are searched for the name that is called."""
_KEPT = 512


class RowPlace(NamedTuple):
    """A row and the line of the user's own code that caused it.

    ``place`` is ``file:line function``, of a package if no line is the user's own.
    """

    row: str
    place: str


def row_of(frame: Any, path: Container[int] = (), phase: str = "") -> RowPlace:
    """Return what a thread does whose innermost frame is ``frame``.

    ``path`` holds the ids of the code objects that are on the stack when the optimizer steps; the
    caller keeps them alive. ``phase`` is ``eval`` if the model is known to be evaluated.
    """
    frames: List[Any] = []
    while frame is not None and len(frames) < MAX_FRAMES:
        if code_place.kind(frame.f_code.co_filename) != code_place.OURS:
            frames.append(frame)
        frame = frame.f_back
    if not frames:
        return RowPlace("unattributed", "")
    found = code_place.place(frames[0])
    row = _around(frames, path) or ("validation" if phase == "eval" else "") or _within(frames)
    return RowPlace(row, found.at if found is not None else "")


def _around(frames: List[Any], path: Container[int]) -> str:
    """Return the row of the outermost frame that is not part of the training loop itself."""
    known = bool(path)
    for frame in reversed(frames):
        code = frame.f_code
        if id(code) in path:
            continue
        row = _match(AROUND, frame)
        if row:
            return row
        if known and code_place.kind(code.co_filename) == OWN:
            for row, names in _OWN_NAMES:
                if names.match(code.co_name):
                    return row
    return ""


def _within(frames: List[Any]) -> str:
    called = _CALLED.get(called_name(frames[0]) or "")
    if not called and asks_for_truth(frames[0]):
        called = "read"
    if called and code_place.kind(frames[0].f_code.co_filename) == OWN:
        return called
    for frame in frames:
        row = _match(WITHIN, frame)
        if row:
            return row
    return called or "other"


_matched: Dict[Tuple[int, str, str], str] = {}


def _match(rules: Rules, frame: Any) -> str:
    module = frame.f_globals.get("__name__")
    name = frame.f_code.co_name
    if not isinstance(module, str):
        return ""
    key = (id(rules), module, name)
    row = _matched.get(key)
    if row is None:
        row = ""
        for candidate, package, functions in rules:
            if (module == package or module.startswith(package + ".")) and (
                functions is None or name in functions
            ):
                row = candidate
                break
        if len(_matched) >= 4096:
            _matched.clear()
        _matched[key] = row
    return row


_names: Dict[Tuple[int, int], Tuple[Any, Optional[str]]] = {}


def called_name(frame: Any) -> Optional[str]:
    """Return the name of what ``frame`` is calling, None if its instruction is no plain call.

    A method of a tensor is C code and has no frame, so only the instruction tells its name.
    """
    code, at = frame.f_code, frame.f_lasti
    key = (id(code), at)
    kept = _names.get(key)
    if kept is None:
        if len(_names) >= _KEPT:
            _names.clear()
        # the code object is kept with the name, so that its id is not reused
        kept = _names[key] = (code, _called(code, at))
    return kept[1]


def _called(code: Any, at: int) -> Optional[str]:
    """Return the name of what is called at an instruction.

    The arguments of a call were pushed after it. So it is looked for backwards, at the height that
    the stack has below them: of ``x.to(other.device)`` this is ``to``.
    """
    before = _instructions(code.co_code, at)
    if not before:
        return None
    name, count = before.pop()
    if name == "CALL" and before and before[-1][0] == "PRECALL":
        name, count = before.pop()
    if name not in _CALLS:
        return None
    above = count + (name in ("CALL_KW", "CALL_FUNCTION_KW"))  # with a tuple of names
    while before:
        name, argument = before.pop()
        if above <= 0 and name != "PUSH_NULL":
            if name not in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME"):
                return None
            index = argument >> _shift(name)
            return str(code.co_names[index]) if index < len(code.co_names) else None
        if "JUMP" in name or name.startswith(("CALL_FUNCTION_EX", "FOR_ITER", "RETURN")):
            return None
        if above > 0:
            above -= _effect(name, argument)
    return None


def _instructions(content: bytes, until: int) -> List[Tuple[str, int]]:
    """Return the last instructions up to the one at ``until``, with their arguments."""
    out: List[Tuple[str, int]] = []
    high = 0
    for place in range(max(0, until - 2 * _BACK), min(until + 2, len(content) - 1), 2):
        name = opcode.opname[content[place]]
        if name == "CACHE":
            continue
        argument = high | content[place + 1]
        high = argument << 8 if name == "EXTENDED_ARG" else 0
        if name != "EXTENDED_ARG":
            out.append((name, argument))
    return out


def _effect(name: str, argument: int) -> int:
    """Return by how much an instruction makes the stack higher."""
    number = opcode.opmap[name]
    try:
        return opcode.stack_effect(number, argument if number >= opcode.HAVE_ARGUMENT else None)
    except ValueError:
        return 0


_truths: Dict[Tuple[int, int], Tuple[Any, bool]] = {}


def asks_for_truth(frame: Any) -> bool:
    """Return whether a frame asks an object whether it is true, as ``if tensor.any():`` does.

    The answer of a tensor waits for the device. All others are there at once, so that no look finds
    a thread in them.
    """
    code, at = frame.f_code, frame.f_lasti
    key = (id(code), at)
    kept = _truths.get(key)
    if kept is None:
        if len(_truths) >= _KEPT:
            _truths.clear()
        found = _instructions(code.co_code, at)
        name = found[-1][0] if found else ""
        asks = name.startswith(_TRUTHS) and not name.endswith("NONE")
        kept = _truths[key] = (code, asks)
    return kept[1]


def _shift(name: str) -> int:
    """Return by how many bits an instruction's argument is shifted.

    The low bits say how it is used.
    """
    if name == "LOAD_GLOBAL":
        return int(sys.version_info >= (3, 11))
    return int(name == "LOAD_ATTR" and sys.version_info >= (3, 12))
