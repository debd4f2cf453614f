"""Check for slow code, and for timing that measures the wrong thing.

The checks cover loaders, waits in the step, clocks, and compilation.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator

from . import edits
from .nodes import behind, comes_after, is_literal, is_open_ended, key, keyword, names
from .program import CLOCKS, LOADER, Script, ScriptMatch

_SLOW_READS = {
    "open", "PIL.Image.open", "cv2.imread", "imageio.imread", "skimage.io.imread", "numpy.load",
    "torch.load", "h5py.File", "torchvision.io.read_image", "torchvision.io.decode_image",
    "torchaudio.load", "librosa.load", "soundfile.read", "requests.get", "time.sleep",
    "pandas.read_csv", "torchvision.datasets.folder.default_loader", "scipy.io.loadmat",
}  # fmt: skip

# Names that suggest indices: train_idx, edge_label_index, mask.nonzero().
_INDEX = re.compile(r"(?:^|[._])(?:idx|index|indices|indexes|ids|nonzero)$")
_HANDING_ON = {"detach", "float", "mean", "cpu", "clone"}
_SHOWING = {
    "set_postfix",
    "set_postfix_str",
    "set_description",
    "log",
    "log_dict",
    "info",
    "debug",
    "write",
    "print",
}
_TENSORS = {"torch.arange", "torch.randperm", "torch.utils.data.TensorDataset"}


def find_slow_loaders(s: Script) -> Iterator[ScriptMatch]:
    """Find loaders without worker processes, or without pinned memory.

    Only a training on CUDA waits for them.
    """
    if not s.cuda or not s.training_loops:
        return
    idle: list[ast.Call] = []
    unpinned: list[ast.Call] = []
    for call in s.calls_to(LOADER):
        if (
            is_open_ended(call)
            or len(call.args) > 5
            or not is_literal(keyword(call, "shuffle"), True)
        ):
            continue
        workers, pinned = keyword(call, "num_workers"), keyword(call, "pin_memory")
        if (workers is None or is_literal(workers, 0)) and not s.is_ignored(call, "num-workers"):
            slow = _find_slow_read(s, call)
            if slow is not None:
                yield _report_no_workers(s, [call], slow)
            elif not _holds_numbers_only(s, call):
                idle.append(call)
        elif s.managed:
            pass  # the library does the copy to the GPU, and decides how it waits
        elif (pinned is None or is_literal(pinned, False)) and not s.is_ignored(call, "pin-memory"):
            unpinned.append(call)
    if idle:
        yield _report_no_workers(s, idle, None)
    if unpinned:
        yield ScriptMatch(
            "script.memory-not-pinned",
            unpinned[0],
            figures={"edited": edits.with_keyword(s, unpinned[0], "pin_memory", "True")},
            more=unpinned[1:],
            severity="info",
        )


def _report_no_workers(s: Script, found: list[ast.Call], slow: ast.Call | None) -> ScriptMatch:
    """Return the report on loaders without workers.

    ``slow`` is the call that makes reading a sample slow.
    """
    return ScriptMatch(
        "script.no-loader-workers" if slow is None else "script.no-loader-workers.slow-read",
        found[0],
        figures={
            "read": "" if slow is None else s.code(slow),
            "edited": edits.with_keyword(s, found[0], "num_workers", "4"),
        },
        more=[*found[1:], *([] if slow is None else [slow])],
        severity="info" if slow is None else "warning",
    )


def _holds_numbers_only(s: Script, call: ast.Call) -> bool:
    """Return whether a sample is only an index, or a row of a tensor that is in memory.

    Sending it from a worker would take longer than reading it.
    """
    data = call.args[0] if call.args else keyword(call, "dataset")
    for _ in range(12):
        if _INDEX.search(key(data)):
            return True
        if isinstance(data, ast.Name):
            bound = [value for _, value in s.values(data, data.id)]
            data = bound[0] if len(bound) == 1 else None
        elif isinstance(data, ast.Subscript):
            data = data.value  # as in split_idx["train"]
        elif isinstance(data, ast.Call) and (
            s.resolve(data) in _TENSORS or key(data.func) == "range"
        ):
            return True
        elif (
            isinstance(data, ast.Call)
            and key(data.func) in ("list", "tuple", "sorted")
            and data.args
        ):
            data = data.args[0]
        elif isinstance(data, ast.Call) and isinstance(data.func, ast.Attribute):
            # As in mask.nonzero().view(-1).
            data = data.func if data.func.attr == "nonzero" else data.func.value
        else:
            return False
    return False


def _find_slow_read(s: Script, call: ast.Call) -> ast.Call | None:
    """Return the call in the dataset's ``__getitem__`` that reads a file or waits.

    The result is None if it has no dataset, or if another file defines the dataset.
    """
    data = call.args[0] if call.args else keyword(call, "dataset")
    if isinstance(data, ast.Name):
        bound = [value for _, value in s.values(call, data.id)]
        data = bound[0] if len(bound) == 1 else None
    if not isinstance(data, ast.Call):
        return None
    name = key(data.func)
    for node in s.nodes:
        if (
            isinstance(node, ast.FunctionDef)
            and node.name == "__getitem__"
            and (owner := s.owner(node))
            and owner.name == name
        ):
            for inner in s.calls:
                if (
                    s.is_inside(inner, node)
                    and (s.resolve(inner) or key(inner.func)) in _SLOW_READS
                ):
                    return inner
    return None


def find_waits_each_step(s: Script) -> Iterator[ScriptMatch]:
    """Find ``item()`` and similar calls in every step.

    There the CPU waits for the GPU before it can launch the next step.
    """
    if not s.cuda:
        return
    for loop in s.training_loops:
        if any(s.is_inside(call, loop) for call in s.calls_to("torch.cuda.synchronize")):
            continue  # it waits on purpose
        losses = {
            name for call in s.backwards if s.is_inside(call, loop) for name in s.losses(call)
        }
        made = losses | {
            key(target)
            for node in s.descendants(loop)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in node.targets
            if key(target)
        }
        found: list[ast.AST] = []
        for call in s.calls:
            if (
                not s.is_inside(call, loop)
                or s.loops(call)[:1] != [loop]
                or s.under(call, ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler)
            ):
                continue
            if _name_read(call) in made and not _wait_is_wanted(s, call, loop):
                found.append(call)
        found = [node for node in found if names(node) & losses]
        if found:
            yield ScriptMatch("script.waits-each-step", found[0], more=found[1:], severity="info")


def _name_read(call: ast.Call) -> str:
    """Return the name whose value ``call`` copies from the GPU.

    It is ``loss`` for ``loss.detach().item()`` and for ``float(loss)``, and "" for any other call.
    """
    if isinstance(call.func, ast.Attribute) and call.func.attr == "item":
        value: ast.expr = call.func.value
    elif key(call.func) == "float" and len(call.args) == 1:
        value = call.args[0]
    else:
        return ""
    return key(behind(value, _HANDING_ON))


def _wait_is_wanted(s: Script, call: ast.Call, loop: ast.AST) -> bool:
    """Return whether the wait is there on purpose.

    It is in a benchmark, and in a loop of a library that shows or logs each step's loss in the way
    that the library's own scripts do.
    """
    function = getattr(s.scope(call), "name", "")
    if "bench" in function.lower() or "bench" in os.path.basename(s.path).lower():
        return True
    return bool(s.managed) and _is_only_shown(s, call, loop)


def _is_only_shown(s: Script, node: ast.AST, loop: ast.AST) -> bool:
    """Return whether the value is used only for a progress bar or a log.

    It may get there through a dict.
    """
    statement = s.statement(node)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Dict):
        return _shows(statement)
    bound = {key(target) for target in statement.targets}
    uses = [
        other
        for other in s.descendants(loop)
        if isinstance(other, ast.Name) and isinstance(other.ctx, ast.Load) and other.id in bound
    ]
    return bool(uses) and all(_shows(s.statement(use)) for use in uses)


def _shows(statement: ast.stmt) -> bool:
    """Return whether a statement only shows or logs something."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and key(call.func).rpartition(".")[2] in _SHOWING


def find_unsynchronised_clocks(s: Script) -> Iterator[ScriptMatch]:
    """Find GPU work between two readings of the clock, with nothing that waits for it."""
    if not s.cuda:
        return
    for end in s.nodes:
        if (
            not isinstance(end, ast.BinOp)
            or not isinstance(end.op, ast.Sub)
            or not isinstance(end.right, ast.Name)
        ):
            continue
        if s.resolve(end.left) not in CLOCKS or not isinstance(end.left, ast.Call):
            continue
        stop, block = s.statement(end), s.block(s.statement(end))
        start = next(
            (
                node
                for node in reversed(block[: block.index(stop)])
                if isinstance(node, ast.Assign)
                and s.resolve(node.value) in CLOCKS
                and isinstance(node.value, ast.Call)
                and [key(target) for target in node.targets] == [end.right.id]
            ),
            None,
        )
        if start is None:
            continue
        between = block[block.index(start) + 1 : block.index(stop)]
        if (
            not between
            or any(s.waits(node) or _may_wait(s, node) for node in between)
            or s.waits(stop)
        ):
            continue
        work = [
            call
            for node in between
            for call in s.calls
            if s.is_inside(call, node) and _is_gpu_work(s, call)
        ]
        if work:
            yield ScriptMatch(
                "script.clock-without-synchronize",
                end,
                figures={"statement": edits.statement(s, end)},
                before=edits.statement(s, end),
                more=[start, work[0]],
                confidence="definite",
            )


def _is_gpu_work(s: Script, call: ast.Call) -> bool:
    """Return whether a call starts work on the GPU: a model, or a backward pass."""
    return s.kind(call.func, call) in ("module", "dp", "ddp", "compiled") or call in s.backwards


def _may_wait(s: Script, node: ast.AST) -> bool:
    """Return whether something here may wait for the GPU without showing it."""
    for call in ast.walk(node):
        if isinstance(call, (ast.For, ast.While)) and not (
            isinstance(call, ast.For)
            and isinstance(call.iter, ast.Call)
            and key(call.iter.func) == "range"
        ):
            return True  # a loader or a similar object may wait
        if (
            not isinstance(call, ast.Call)
            or _is_gpu_work(s, call)
            or s.resolve(call).startswith("torch.")
        ):
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr in (
            "step",
            "zero_grad",
            "to",
            "cuda",
            "size",
            "view",
            "reshape",
            "train",
            "eval",
        ):
            continue
        if key(call.func) in ("range", "len", "enumerate"):
            continue
        return True
    return False


def find_first_compiled_call(s: Script) -> Iterator[ScriptMatch]:
    """Find the first call of a compiled model between two readings of the clock."""
    for made in s.calls_to("torch.compile"):
        statement = s.statement(made)
        if (
            not isinstance(statement, ast.Assign)
            or statement.value is not made
            or len(statement.targets) != 1
        ):
            continue
        name, block = key(statement.targets[0]), s.block(statement)
        if not name:
            continue
        for node in block[block.index(statement) + 1 :]:
            using = [
                call
                for call in s.calls
                if s.is_inside(call, node)
                and (key(call.func) == name or any(key(arg) == name for arg in call.args))
            ]
            if not using:
                continue
            call = using[0]
            function = s.local_function(call)
            if (
                isinstance(node, (ast.For, ast.While, ast.With))
                or function is None
                or s.loops(call)
            ):
                break
            place = next((index for index, arg in enumerate(call.args) if key(arg) == name), -1)
            if (
                place >= 0
                and place < len(function.args.args)
                and _times_once(s, function, function.args.args[place].arg)
            ):
                yield ScriptMatch(
                    "script.first-compiled-call-timed",
                    call,
                    figures={
                        "function": function.name,
                        "model": name,
                        "call": edits.text(s, call),
                        "statement": edits.statement(s, call),
                    },
                    before=edits.statement(s, call),
                    more=[made],
                    confidence="definite",
                )
            break


def _times_once(s: Script, function: ast.FunctionDef, parameter: str) -> bool:
    """Return whether the function times a single use of its parameter.

    It reads the clock, uses the parameter once outside of any loop, and reads the clock again.
    """
    readings = [call for call in s.calls if s.scope(call) is function and s.resolve(call) in CLOCKS]
    uses = [
        node
        for node in s.nodes
        if isinstance(node, ast.Name) and node.id == parameter and s.scope(node) is function
    ]
    if len(readings) < 2 or len(uses) != 1 or s.loops(uses[0]):
        return False
    return comes_after(uses[0], readings[0]) and comes_after(readings[-1], uses[0])


CHECKS = (
    find_slow_loaders,
    find_waits_each_step,
    find_unsynchronised_clocks,
    find_first_compiled_call,
)
