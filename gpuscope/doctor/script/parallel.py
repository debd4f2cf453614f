"""Check scripts that train on several GPUs.

The checks cover the process group, its backend, the rank's device, the sampler, and wrapped models.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import edits
from .nodes import behind, comes_after, is_literal, is_open_ended, key, keyword
from .program import AUTOCASTS, DP, LOADER, PASSING, SAMPLER, Script, ScriptMatch, passes_on

INIT = (
    "torch.distributed.init_process_group",
    "torch.distributed.distributed_c10d.init_process_group",
)


def find_data_parallel(s: Script) -> Iterator[ScriptMatch]:
    """Find ``nn.DataParallel`` where it does harm or nothing.

    It is slower than one process per GPU, does nothing without a GPU, and fails on odd batches.
    """
    for call in s.calls_to(DP):
        if not s.cuda and not _mentions_gpu(s) and s.training_loops:
            yield ScriptMatch(
                "script.dataparallel-without-gpu",
                call,
                figures={"model": edits.text(s, call.args[0]) if call.args else ""},
            )
            continue
        if not s.backwards or s.distributed:
            # It is acceptable for inference, and a file that also uses DistributedDataParallel has
            # its reason.
            continue
        model = edits.text(s, call.args[0]) if call.args else "model"
        yield ScriptMatch(
            "script.dataparallel",
            call,
            figures={"model": model},
            severity="info",
            confidence="definite",
        )
        break
    if s.calls_to(DP) and s.cuda and s.training_loops and "BatchNorm1d" in s.identifiers:
        for call in s.calls_to(LOADER):
            if (
                is_literal(keyword(call, "shuffle"), True)
                and not keyword(call, "drop_last")
                and not is_open_ended(call)
                and len(call.args) < 8
            ):
                yield ScriptMatch(
                    "script.odd-last-batch",
                    call,
                    figures={"edited": s.code(call)[:-1] + ", drop_last=True)"},
                )


def find_autocast_around(s: Script) -> Iterator[ScriptMatch]:
    """Find ``with autocast(dtype=bfloat16)`` around the call of a DataParallel model.

    The threads of DataParallel do not inherit the dtype and compute in fp16.
    """
    if s.managed:
        return
    inside = [call for call in s.calls_to(*AUTOCASTS) if s.owner(call) is not None]
    if inside:
        return  # a module that enables autocast itself is right, whatever surrounds it
    for context in s.calls_to(*AUTOCASTS):
        block = s.statement(context)
        dtype = keyword(context, "dtype") or (context.args[1] if len(context.args) > 1 else None)
        device = keyword(context, "device_type") or (context.args[0] if context.args else None)
        if not isinstance(block, (ast.With, ast.AsyncWith)) or s.resolve(dtype) != "torch.bfloat16":
            continue
        if is_literal(device, "cpu") or s.resolve(context).startswith("torch.cpu."):
            continue
        wrapped = [
            (call, wrap)
            for call in s.calls
            if s.is_inside(call, block)
            and call is not context
            and (wrap := _find_wrapper(s, call)) is not None
        ]
        if not wrapped:
            continue
        yield ScriptMatch(
            "script.autocast-around-dataparallel",
            context,
            more=[call for call, _ in wrapped],
            confidence="likely" if s.is_conditional(wrapped[0][1]) else "definite",
        )
        return


def _find_wrapper(s: Script, call: ast.Call) -> ast.Call | None:
    """Return the ``DataParallel(…)`` that was last bound to the name which ``call`` calls.

    The result is None where something else was bound to it.
    """
    name = key(call.func)
    bound = [
        value for where, value in s.values(call, name) if name and not comes_after(where, call)
    ]
    while bound and passes_on(bound[-1], name):
        bound.pop()  # as in model = model.to(device)
    made = behind(bound[-1] if bound else None, PASSING)
    return made if isinstance(made, ast.Call) and s.resolve(made) == DP else None


def _mentions_gpu(s: Script) -> bool:
    """Return whether a name in the file speaks of CUDA or of a GPU."""
    return (
        "cuda" in {name for name in s.identifiers if name != "device_count"}
        or "gpu" in " ".join(s.identifiers).lower()
    )


def find_missing_group(s: Script) -> Iterator[ScriptMatch]:
    """Find DistributedDataParallel without a process group, and gloo between GPUs."""
    if not s.distributed or s.managed:
        return
    inits = s.calls_to(*INIT)
    runs = any(isinstance(node, ast.Compare) and "__main__" in s.code(node) for node in s.nodes)
    if not inits and runs and not _may_be_set_up_elsewhere(s):
        call = s.distributed[0]
        # without a backend torch takes NCCL on GPUs and gloo on the CPU
        named = "" if "cpu" in s.strings else '"nccl"'
        yield ScriptMatch(
            "script.no-process-group",
            call,
            figures={"backend": named, "statement": edits.statement(s, call)},
            before=edits.statement(s, call),
            severity="problem",
            confidence="definite" if s.training_loops else "likely",
        )
    if len(inits) == 1 and s.cuda:
        call = inits[0]
        backend = keyword(call, "backend") or (call.args[0] if call.args else None)
        on_gpu = [
            wrap for wrap in s.distributed if isinstance(keyword(wrap, "device_ids"), ast.List)
        ]
        if (
            is_literal(backend, "gloo")
            and on_gpu
            and not s.are_exclusive(call, on_gpu[0])
            and "nccl" not in s.strings
        ):
            yield ScriptMatch(
                "script.gloo-between-gpus",
                call,
                figures={
                    "edited": edits.edit(s, call, (backend, '"nccl"'))
                    if backend is not None
                    else ""
                },
                more=[on_gpu[0]],
                confidence="definite",
            )


def _may_be_set_up_elsewhere(s: Script) -> bool:
    """Return whether another file may create the process group.

    It may if the script calls a function whose name suggests this.
    """
    words = ("dist", "init", "setup", "launch", "spawn", "ddp", "env", "parallel")
    for call in s.calls:
        if s.resolve(call).startswith(("torch.nn", "torch.cuda", "torch.utils", "torch.device")):
            continue
        last = (call.func.attr if isinstance(call.func, ast.Attribute) else key(call.func)).lower()
        if any(word in last for word in words) and last not in (
            "is_initialized",
            "destroy_process_group",
            "__init__",
        ):
            return True
    return False


def find_shared_device(s: Script) -> Iterator[ScriptMatch]:
    """Find batches or models that go to the first GPU in every process."""
    if not s.distributed or not s.calls_to(*INIT) or s.managed:
        return
    if (
        s.methods("set_device")
        or "CUDA_VISIBLE_DEVICES" in s.strings
        or s.calls_to("torch.cuda.device", "torch.cuda.set_device")
    ):
        return
    own = any(
        s.resolve(call) == "torch.device"
        and len(call.args) == 2
        and not isinstance(call.args[1], ast.Constant)
        for call in s.calls
    ) or any(isinstance(text, ast.JoinedStr) and "cuda:" in s.code(text) for text in s.nodes)
    if not own and not any(
        isinstance(keyword(call, "device_ids"), ast.List) for call in s.distributed
    ):
        return
    first: list[ast.Call] = []
    for call in s.methods("cuda", "to"):
        if s.resolve(call).startswith("torch.") or (
            call.args and not is_literal(call.args[0], "cuda")
        ):
            continue
        if (
            isinstance(call.func, ast.Attribute) and call.func.attr == "to" and not call.args
        ) or keyword(call, "device"):
            continue
        if any(s.are_exclusive(call, wrap) for wrap in (*s.distributed, *s.calls_to(*INIT))):
            continue
        first.append(call)
    if first:
        moved = first[0].func.value if isinstance(first[0].func, ast.Attribute) else first[0]
        yield ScriptMatch(
            "script.first-gpu-in-every-rank.device-known"
            if own
            else "script.first-gpu-in-every-rank",
            first[0],
            figures={"moved": edits.text(s, moved)},
            more=first[1:],
            severity="problem",
        )


def find_missing_samplers(s: Script) -> Iterator[ScriptMatch]:
    """Find a shuffled loader under DistributedDataParallel that has no sampler.

    A sampler whose ``set_epoch`` is never called is also reported.
    """
    if s.managed or not s.backwards:
        return
    made = s.calls_to(SAMPLER)
    if s.distributed and not made and not any("sampler" in name.lower() for name in s.identifiers):
        for call in s.calls_to(LOADER):
            if (
                not is_literal(keyword(call, "shuffle"), True)
                or is_open_ended(call)
                or _may_split_by_rank(s)
            ):
                continue
            before, edited = _add_sampler(s, call)
            yield ScriptMatch(
                "script.no-distributed-sampler",
                call,
                figures={"edited": edited},
                before=before,
                more=[s.distributed[0]],
                severity="problem",
            )
            break
    if "set_epoch" in s.identifiers:
        return
    for call in made:
        shuffle = keyword(call, "shuffle")
        target = next((key(node) for node in _targets_of(s, call)), "")
        words = (target + " " + s.code(call)).lower()
        if (shuffle is not None and not is_literal(shuffle, True)) or any(
            word in words for word in ("val", "test", "eval", "dev")
        ):
            continue
        epochs = _find_epoch_loop(s)
        if epochs is None:
            continue
        head = edits.head(s, epochs)
        indent = " " * max(epochs.body[0].col_offset - epochs.col_offset, 1)
        yield ScriptMatch(
            "script.no-set-epoch",
            call,
            figures={
                "loop": head,
                "indent": indent,
                "sampler": target or "sampler",
                "epoch": s.code(epochs.target),
            },
            before=head,
            confidence="definite",
        )


def _add_sampler(s: Script, call: ast.Call) -> tuple[str, str]:
    """Return the source of the loader, and the same with a sampler added."""
    given = call.args[0] if call.args else keyword(call, "dataset")
    shuffled = next(item for item in call.keywords if item.arg == "shuffle")
    if given is None:
        return "", ""
    data = edits.text(s, given)
    whole = edits.statement(s, call)
    if not whole:
        return edits.text(s, call), edits.edit(
            s, call, (shuffled, f"sampler=torch.utils.data.DistributedSampler({data})")
        )
    if isinstance(given, ast.Name):
        made, changes = "", []
    else:
        made, changes, data = f"dataset = {data}\n", [(given, "dataset")], "dataset"
    made += f"sampler = torch.utils.data.DistributedSampler({data})\n"
    return whole, made + edits.statement(s, call, *changes, (shuffled, "sampler=sampler"))


def _targets_of(s: Script, call: ast.Call) -> Iterator[ast.AST]:
    """Yield what the statement of a call assigns its value to."""
    statement = s.statement(call)
    if isinstance(statement, ast.Assign):
        yield from statement.targets
    elif isinstance(statement, ast.AnnAssign):
        yield statement.target


def _find_epoch_loop(s: Script) -> ast.For | None:
    """Return the loop over epochs."""
    for node in s.nodes:
        if isinstance(node, ast.For) and any(
            "epoch" in part.lower() for part in (s.code(node.target), s.code(node.iter))
        ):
            return node
    return None


def _may_split_by_rank(s: Script) -> bool:
    """Return whether the data may be split by hand, or made for each rank."""
    if any(
        isinstance(base, ast.Attribute | ast.Name) and "Iterable" in key(base)
        for node in s.nodes
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    ):
        return True
    for node in s.nodes:
        if isinstance(node, ast.Slice) and "rank" in s.code(node).lower():
            return True
    return any(
        "rank" in s.code(arg).lower()
        for call in s.calls
        if "data" in key(call.func).lower()
        for arg in call.args
    )


CHECKS = (
    find_data_parallel,
    find_autocast_around,
    find_missing_group,
    find_shared_device,
    find_missing_samplers,
)
