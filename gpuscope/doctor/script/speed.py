"""Checks of speed and of how it is measured: loaders, waiting in the step, clocks, compilation, convolutions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .facts import CLOCKS, LOADER, Found, Script
from .source import after, constant, key, keyword, names, open_ended

_SLOW_READS = {
    "open", "PIL.Image.open", "cv2.imread", "imageio.imread", "skimage.io.imread", "numpy.load", "torch.load",
    "h5py.File",
    "torchvision.io.read_image", "torchvision.io.decode_image", "torchaudio.load", "librosa.load", "soundfile.read",
    "requests.get", "time.sleep", "pandas.read_csv", "torchvision.datasets.folder.default_loader", "scipy.io.loadmat",
}  # fmt: skip


def loaders(s: Script) -> Iterator[Found]:
    """A loader without worker processes, or without pinned memory, beside a training on CUDA."""
    if not s.cuda or not s.training_loops:
        return
    idle: list[ast.Call] = []
    unpinned: list[ast.Call] = []
    for call in s.calls_to(LOADER):
        if open_ended(call) or len(call.args) > 5 or not constant(keyword(call, "shuffle"), True):
            continue
        workers, pinned = keyword(call, "num_workers"), keyword(call, "pin_memory")
        if (workers is None or constant(workers, 0)) and not s.ignored(call, "num-workers"):
            slow = _slow_dataset(s, call)
            if slow is not None:
                yield _without_workers(s, [call], slow)
            else:
                idle.append(call)
        elif (pinned is None or constant(pinned, False)) and not s.ignored(call, "pin-memory"):
            unpinned.append(call)
    if idle:
        yield _without_workers(s, idle, None)
    if unpinned:
        text = s.code(unpinned[0])
        with_pin = (
            text.replace("pin_memory=False", "pin_memory=True")
            if "pin_memory" in text
            else _with(text, "pin_memory=True")
        )
        yield Found(
            node=unpinned[0],
            pitfall="pin-memory",
            cause="script.memory-not-pinned",
            title="Batches are not in pinned memory",
            why="copies to the GPU cannot run beside other work.",
            severity="info",
            more=list(unpinned[1:]),
            fix="Pin them, and copy with non_blocking=True.",
            code=with_pin,
        )


def _without_workers(s: Script, found: list[ast.Call], slow: ast.Call | None) -> Found:
    text = s.code(found[0])
    code = text.replace("num_workers=0", "num_workers=4") if "num_workers" in text else _with(text, "num_workers=4")
    waits = f"and {s.code(slow)} makes it wait." if slow is not None else "while the GPU waits."
    return Found(
        node=found[0],
        pitfall="num-workers",
        cause="script.no-loader-workers",
        title="The loader has no worker processes",
        why=f"the training itself reads and prepares every sample, {waits}",
        fix="Let processes read ahead; how many depends on the cores and on what a sample costs.",
        code=code,
        severity="info" if slow is None else "warning",
        more=[*found[1:], *([] if slow is None else [slow])],
    )


def _with(call: str, argument: str) -> str:
    """The text of a call with one more argument."""
    return f"{call[:-1].rstrip(', ')}, {argument})" if call.endswith(")") else call


def _slow_dataset(s: Script, call: ast.Call) -> ast.Call | None:
    """The call in the dataset's ``__getitem__`` that reads a file or waits; None where that is of another file."""
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
                if s.inside(inner, node) and (s.resolve(inner) or key(inner.func)) in _SLOW_READS:
                    return inner
    return None


def waits_each_step(s: Script) -> Iterator[Found]:
    """``item()`` and the like in every step: the CPU waits for the GPU before it can start the next one."""
    if not s.cuda:
        return
    for loop in s.training_loops:
        if any(s.inside(call, loop) for call in s.calls_to("torch.cuda.synchronize")):
            continue  # it waits on purpose
        made = {
            key(target) for node in s.below(loop) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in node.targets
        } | {name for call in s.backwards if s.inside(call, loop) for name in s.losses(call)}  # fmt: skip
        found: list[ast.AST] = []
        for call in s.calls:
            if (
                not s.inside(call, loop)
                or s.loops(call)[:1] != [loop]
                or s.under(call, ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler)
            ):
                continue
            if (isinstance(call.func, ast.Attribute) and call.func.attr == "item" and key(call.func.value) in made) or (
                key(call.func) == "float" and len(call.args) == 1 and key(call.args[0]) in made and key(call.args[0])
            ):
                found.append(call)
        losses = {name for call in s.backwards if s.inside(call, loop) for name in s.losses(call)}
        found = [node for node in found if names(node) & losses]
        if found:
            yield Found(
                node=found[0],
                pitfall="host-sync-in-loop",
                cause="script.waits-each-step",
                title="Every step waits for the GPU",
                why="reading a number makes the CPU wait until the GPU has computed it, and start the next step late.",
                fix="Read it every so many steps, or sum up loss.detach() on the GPU and read the sum.",
                severity="info",
                more=found[1:],
            )


def clocks(s: Script) -> Iterator[Found]:
    """GPU work between two readings of the clock, with nothing that waits for it."""
    if not s.cuda:
        return
    for end in s.nodes:
        if not isinstance(end, ast.BinOp) or not isinstance(end.op, ast.Sub) or not isinstance(end.right, ast.Name):
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
        if not between or any(s.waits(node) or _opaque(s, node) for node in between) or s.waits(stop):
            continue
        work = [call for node in between for call in s.calls if s.inside(call, node) and _gpu_work(s, call)]
        if work:
            yield Found(
                node=end,
                pitfall="synchronize-timing",
                cause="script.clock-without-synchronize",
                more=[start, work[0]],
                severity="warning",
                title="The clock does not wait for the GPU",
                why="a call that starts GPU work returns at once: this is how long starting it took.",
                fix="Synchronise before both readings.",
                before=s.lines[stop.lineno - 1].strip(),
                code="torch.cuda.synchronize()\n" + s.lines[stop.lineno - 1].strip(),
                confidence="definite",
            )


def _gpu_work(s: Script, call: ast.Call) -> bool:
    return s.kind(call.func, call) in ("module", "dp", "ddp", "compiled") or call in s.backwards


def _opaque(s: Script, node: ast.AST) -> bool:
    """Whether something here may wait without showing it."""
    for call in ast.walk(node):
        if isinstance(call, (ast.For, ast.While)) and not (
            isinstance(call, ast.For) and isinstance(call.iter, ast.Call) and key(call.iter.func) == "range"
        ):
            return True  # a loader or the like may wait
        if not isinstance(call, ast.Call) or _gpu_work(s, call) or s.resolve(call).startswith("torch."):
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


def first_compiled_call(s: Script) -> Iterator[Found]:
    """The first call of a compiled model between two readings of the clock."""
    for made in s.calls_to("torch.compile"):
        statement = s.statement(made)
        if not isinstance(statement, ast.Assign) or statement.value is not made or len(statement.targets) != 1:
            continue
        name, block = key(statement.targets[0]), s.block(statement)
        if not name:
            continue
        for node in block[block.index(statement) + 1 :]:
            using = [
                call
                for call in s.calls
                if s.inside(call, node) and (key(call.func) == name or any(key(arg) == name for arg in call.args))
            ]
            if not using:
                continue
            call = using[0]
            function = s.local_function(call)
            if isinstance(node, (ast.For, ast.While, ast.With)) or function is None or s.loops(call):
                break
            place = next((index for index, arg in enumerate(call.args) if key(arg) == name), -1)
            if (
                place >= 0
                and place < len(function.args.args)
                and _times_once(s, function, function.args.args[place].arg)
            ):
                yield Found(
                    node=call,
                    pitfall="compile-warmup",
                    cause="script.first-compiled-call-timed",
                    more=[made],
                    title="The first compiled call is timed",
                    why=f"it compiles: {function.name}() reads the clock around it, and nothing has warmed {name} up.",
                    fix="Call it a few times before the clock starts; fullgraph=True makes graph breaks an error.",
                    before=s.lines[node.lineno - 1].strip(),
                    confidence="definite",
                    code=f"for _ in range(3):\n    {s.code(call)}\n{s.lines[node.lineno - 1].strip()}",
                )
            break


def _times_once(s: Script, function: ast.FunctionDef, parameter: str) -> bool:
    """Whether the function reads the clock, uses the parameter once in no loop, and reads the clock again."""
    readings = [call for call in s.calls if s.scope(call) is function and s.resolve(call) in CLOCKS]
    uses = [
        node for node in s.nodes if isinstance(node, ast.Name) and node.id == parameter and s.scope(node) is function
    ]
    if len(readings) < 2 or len(uses) != 1 or s.loops(uses[0]):
        return False
    return after(uses[0], readings[0]) and after(readings[-1], uses[0])


CHECKS = (loaders, waits_each_step, clocks, first_compiled_call)
