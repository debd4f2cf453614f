"""Checks of training on several GPUs: process group, backend, device of the rank, sampler, wrapped models."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .facts import DP, LOADER, SAMPLER, Found, Script
from .source import after, constant, key, keyword, line, open_ended

INIT = ("torch.distributed.init_process_group", "torch.distributed.distributed_c10d.init_process_group")

# What nn.Module and the two wrappers offer themselves, torch 1.0 to 2.13.
_WRAPPER = {
    "add_module", "apply", "bfloat16", "buffers", "call_super_init", "children", "compile", "cpu", "cuda", "double",
    "dump_patches", "eval", "extra_repr", "float", "forward", "get_buffer", "get_extra_state", "get_parameter",
    "get_submodule", "half", "ipu", "load_state_dict", "modules", "mtia", "named_buffers", "named_children",
    "named_modules", "named_parameters", "parameters", "register_backward_hook", "register_buffer",
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook", "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook",
    "register_module", "register_parameter", "register_state_dict_post_hook", "register_state_dict_pre_hook",
    "requires_grad_", "set_extra_state", "set_submodule", "share_memory", "state_dict", "to", "to_empty", "train",
    "training", "type", "xpu", "zero_grad", "module", "device_ids", "device", "device_type", "dim", "output_device",
    "src_device_obj", "replicate", "scatter", "parallel_apply", "gather", "no_sync", "join", "join_hook", "join_device",
    "join_process_group", "logger", "reducer", "process_group", "find_unused_parameters", "static_graph",
    "broadcast_buffers", "broadcast_bucket_size", "bucket_bytes_cap", "gradient_as_bucket_view",
    "is_multi_device_module",
    "register_comm_hook", "will_sync_module_buffers", "require_backward_grad_sync", "require_forward_param_sync",
    "mixed_precision", "modules_buffers", "parameters_to_ignore",
}  # fmt: skip


def data_parallel(s: Script) -> Iterator[Found]:
    """``nn.DataParallel``: slower than one process a GPU; does nothing without one; odd batches."""
    for call in s.calls_to(DP):
        if not s.cuda and not _mentions_gpu(s) and s.training_loops:
            yield Found(
                node=call,
                pitfall="dp-on-cpu",
                cause="script.dataparallel-without-gpu",
                title="DataParallel around a model on the CPU",
                why="nothing here moves the model to a GPU: without one it does nothing, with one it fails.",
                fix="Leave it out.",
                code=s.code(call.args[0]) if call.args else "",
            )
            continue
        if not s.backwards or s.distributed:
            continue  # for inference it may do; a file that knows the other has its reason
        model = s.code(call.args[0]) if call.args else "model"
        yield Found(
            node=call,
            pitfall="ddp-instead-of-dp",
            cause="script.dataparallel",
            title="DataParallel, one process for all GPUs",
            why="it copies the model in every step, gathers on the first GPU, and its threads share Python's lock.",
            fix="One process for each GPU: DistributedDataParallel under torchrun.",
            severity="info",
            confidence="definite",
            code=f"torch.nn.parallel.DistributedDataParallel({model}, device_ids=[local_rank])",
        )
        break
    if s.calls_to(DP) and s.cuda and s.training_loops and "BatchNorm1d" in s.identifiers:
        for call in s.calls_to(LOADER):
            if (
                constant(keyword(call, "shuffle"), True)
                and not keyword(call, "drop_last")
                and not open_ended(call)
                and len(call.args) < 8
            ):
                yield Found(
                    node=call,
                    pitfall="dp-batch-multiple",
                    cause="script.odd-last-batch",
                    title="The last batch may be odd",
                    why="DataParallel cuts it into parts, and BatchNorm1d fails in training on a part of one sample.",
                    fix="Leave the rest of the epoch out.",
                    code=s.code(call)[:-1] + ", drop_last=True)",
                )


def _mentions_gpu(s: Script) -> bool:
    return (
        "cuda" in {name for name in s.identifiers if name != "device_count"} or "gpu" in " ".join(s.identifiers).lower()
    )


def process_group(s: Script) -> Iterator[Found]:
    """DistributedDataParallel in a program that never makes a process group; gloo between GPUs."""
    if not s.distributed or s.managed:
        return
    inits = s.calls_to(*INIT)
    runs = any(isinstance(node, ast.Compare) and "__main__" in s.code(node) for node in s.nodes)
    if not inits and runs and not _set_up_elsewhere(s):
        call = s.distributed[0]
        yield Found(
            node=call,
            pitfall="init-process-group-env",
            cause="script.no-process-group",
            severity="problem",
            title="No process group for DistributedDataParallel",
            confidence="definite" if s.training_loops else "likely",
            why="nothing in this program calls init_process_group: the wrapper has nobody to average gradients with.",
            fix="Make it before the model is wrapped, and start with torchrun.",
            before=s.lines[s.statement(call).lineno - 1].strip(),
            code='torch.distributed.init_process_group("nccl")\n' + s.lines[s.statement(call).lineno - 1].strip(),
        )
    if len(inits) == 1 and s.cuda:
        call = inits[0]
        backend = keyword(call, "backend") or (call.args[0] if call.args else None)
        on_gpu = [wrap for wrap in s.distributed if isinstance(keyword(wrap, "device_ids"), ast.List)]
        if constant(backend, "gloo") and on_gpu and not s.exclusive(call, on_gpu[0]) and "nccl" not in s.strings:
            yield Found(
                node=call,
                pitfall="wrong-backend",
                cause="script.gloo-between-gpus",
                title="gloo between GPUs",
                more=[on_gpu[0]],
                why="it carries every gradient through the CPU's memory.",
                fix="NCCL goes from GPU to GPU.",
                code=s.code(call).replace("gloo", "nccl"),
                confidence="definite",
            )


def _set_up_elsewhere(s: Script) -> bool:
    """Whether some other file may make the process group: something is called that sounds like it."""
    words = ("dist", "init", "setup", "launch", "spawn", "ddp", "env", "parallel")
    for call in s.calls:
        if s.resolve(call).startswith(("torch.nn", "torch.cuda", "torch.utils", "torch.device")):
            continue
        last = (call.func.attr if isinstance(call.func, ast.Attribute) else key(call.func)).lower()
        if any(word in last for word in words) and last not in ("is_initialized", "destroy_process_group", "__init__"):
            return True
    return False


def device_of_rank(s: Script) -> Iterator[Found]:
    """Batches or models that go to the first GPU in every process."""
    if not s.distributed or not s.calls_to(*INIT) or s.managed:
        return
    if (
        s.methods("set_device")
        or "CUDA_VISIBLE_DEVICES" in s.strings
        or s.calls_to("torch.cuda.device", "torch.cuda.set_device")
    ):
        return
    own = any(
        s.resolve(call) == "torch.device" and len(call.args) == 2 and not isinstance(call.args[1], ast.Constant)
        for call in s.calls
    ) or any(isinstance(text, ast.JoinedStr) and "cuda:" in s.code(text) for text in s.nodes)
    if not own and not any(isinstance(keyword(call, "device_ids"), ast.List) for call in s.distributed):
        return
    first: list[ast.AST] = []
    for call in s.methods("cuda", "to"):
        if s.resolve(call).startswith("torch.") or (call.args and not constant(call.args[0], "cuda")):
            continue
        if (isinstance(call.func, ast.Attribute) and call.func.attr == "to" and not call.args) or keyword(
            call, "device"
        ):
            continue
        if any(s.exclusive(call, wrap) for wrap in (*s.distributed, *s.calls_to(*INIT))):
            continue
        first.append(call)
    if first:
        text = s.code(first[0])
        yield Found(
            node=first[0],
            pitfall="move-inputs-to-device" if own else "set-device-per-rank",
            cause="script.first-gpu-in-every-rank",
            title="It goes to the first GPU in every process",
            severity="problem",
            more=first[1:],
            why="nothing sets this process's device, so cuda means cuda:0 on each rank.",
            fix="Move it to the rank's own device"
            + ("." if own else ", or call torch.cuda.set_device(local_rank) first."),
            code=(text[: text.rfind(".cuda(")] if ".cuda(" in text else text[: text.rfind(".to(")]) + ".to(device)",
        )


def samplers(s: Script) -> Iterator[Found]:
    """A shuffled loader under DistributedDataParallel without a sampler; a sampler without ``set_epoch``."""
    if s.managed or not s.backwards:
        return
    made = s.calls_to(SAMPLER)
    if s.distributed and not made and not any("sampler" in name.lower() for name in s.identifiers):
        for call in s.calls_to(LOADER):
            if not constant(keyword(call, "shuffle"), True) or open_ended(call) or _ranked(s):
                continue
            data = s.code(call.args[0]) if call.args else "data"
            code = s.code(call).replace("shuffle=True", f"sampler=torch.utils.data.DistributedSampler({data})")
            yield Found(
                node=call,
                pitfall="distributed-sampler",
                cause="script.no-distributed-sampler",
                severity="problem",
                title="Every process trains on all samples",
                more=[s.distributed[0]],
                why="the loader knows nothing of ranks: an epoch takes as many steps as with one process.",
                fix="Give each rank its share, and call sampler.set_epoch(epoch) in each epoch.",
                code=code,
            )
            break
    if "set_epoch" in s.identifiers:
        return
    for call in made:
        shuffle = keyword(call, "shuffle")
        target = next((key(node) for node in _names_of(s, call)), "")
        words = (target + " " + s.code(call)).lower()
        if (shuffle is not None and not constant(shuffle, True)) or any(
            word in words for word in ("val", "test", "eval", "dev")
        ):
            continue
        epochs = _epochs(s)
        if epochs is None:
            continue
        head = s.lines[epochs.lineno - 1].strip()
        indent = " " * max(epochs.body[0].col_offset - epochs.col_offset, 1)
        yield Found(
            node=call,
            pitfall="distributed-sampler",
            cause="script.no-set-epoch",
            title="The sampler never hears of epochs",
            why="without set_epoch() every epoch has the same order.",
            fix="Call it at the beginning of each epoch.",
            before=head,
            code=f"{head}\n{indent}{target or 'sampler'}.set_epoch({s.code(epochs.target)})",
            confidence="definite",
        )


def _names_of(s: Script, call: ast.Call) -> Iterator[ast.AST]:
    statement = s.statement(call)
    if isinstance(statement, ast.Assign):
        yield from statement.targets
    elif isinstance(statement, ast.AnnAssign):
        yield statement.target


def _epochs(s: Script) -> ast.For | None:
    """The loop over epochs."""
    for node in s.nodes:
        if isinstance(node, ast.For) and any(
            "epoch" in part.lower() for part in (s.code(node.target), s.code(node.iter))
        ):
            return node
    return None


def _ranked(s: Script) -> bool:
    """Whether the data may be split by hand, or made per rank."""
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
        "rank" in s.code(arg).lower() for call in s.calls if "data" in key(call.func).lower() for arg in call.args
    )


def wrapped_attributes(s: Script) -> Iterator[Found]:
    """``model.predict`` of a model that is inside DataParallel or DistributedDataParallel by then."""
    for wrap in (*s.calls_to(DP), *s.distributed):
        statement = s.statement(wrap)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or statement.value is not wrap:
            continue
        name = key(statement.targets[0])
        if not name or name.startswith("self.") or s.conditional(wrap):
            continue
        scope = s.scope(wrap)
        again = [where for where, _ in s.values(wrap, name) if after(where, wrap)]
        seen: set[str] = set()
        for node in s.nodes:
            if (
                not isinstance(node, ast.Attribute)
                or key(node.value) != name
                or not after(node, statement)
                or s.scope(node) is not scope
            ):
                continue
            if (
                node.attr in _WRAPPER
                or node.attr.startswith("_")
                or node.attr in seen
                or not isinstance(node.ctx, ast.Load)
            ):
                continue
            if any(not after(where, node) for where in again) or any(
                constant(arg, node.attr) for arg in _hasattrs(s, name)
            ):
                continue
            if any(
                isinstance(other.ctx, ast.Store) and other.attr == node.attr and key(other.value) == name
                for other in s.nodes
                if isinstance(other, ast.Attribute)
            ):
                continue
            if isinstance(s.parents[node][0], ast.Attribute) and s.under(node, ast.Try):
                continue
            seen.add(node.attr)
            yield Found(
                node=node,
                pitfall="use-module-attr",
                cause="script.attribute-of-wrapped-model",
                severity="problem",
                confidence="definite",
                title=f"{node.attr} is behind .module",
                why=f"since line {line(wrap)} {name} is the wrapper, which has no {node.attr}.",
                fix="Ask the model inside.",
                code=f"{name}.module.{node.attr}",
                more=[wrap],
            )


def _hasattrs(s: Script, name: str) -> Iterator[ast.expr]:
    for call in s.calls:
        if key(call.func) in ("hasattr", "getattr") and len(call.args) > 1 and key(call.args[0]) == name:
            yield call.args[1]


CHECKS = (data_parallel, process_group, device_of_rank, samplers, wrapped_attributes)
