"""Find what a training script is made of, and on which device it trains.

This includes which names hold modules, optimizers, grad scalers and loaders.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..finding import Confidence, Severity
from .nodes import behind, key, names, receiver
from .source import Loop, SourceFile

DDP = "torch.nn.parallel.DistributedDataParallel"
DP = "torch.nn.DataParallel"
LOADER = "torch.utils.data.DataLoader"
SAMPLER = "torch.utils.data.DistributedSampler"
SCALERS = ("torch.cuda.amp.GradScaler", "torch.amp.GradScaler")
AUTOCASTS = ("torch.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast")
NO_GRADS = ("torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled")
CLOCKS = (
    "time.time",
    "time.perf_counter",
    "time.monotonic",
    "timeit.default_timer",
    "time.process_time",
)

# Methods that return the module itself, or the tensor on another device.
PASSING = {
    "to",
    "cuda",
    "cpu",
    "eval",
    "train",
    "half",
    "float",
    "double",
    "bfloat16",
    "requires_grad_",
    "apply",
}
MOVING = {"to", "cuda", "xpu", "mps", "to_empty", "half_cuda"}
# Methods that make the CPU wait for the GPU, most of them to copy values to the host.
WAITING = {"item", "cpu", "tolist", "numpy", "synchronize", "wait", "elapsed_time"}
# Libraries that move, wrap, shard, scale and zero by themselves: what the script lacks proves
# nothing then.
MANAGERS = (
    "accelerate", "lightning", "pytorch_lightning", "deepspeed", "ignite", "catalyst", "horovod",
    "fastai", "composer", "colossalai", "torch_xla", "lightning_fabric", "apex", "ray",
)  # fmt: skip
_NO_MODULE = ("torch.nn.functional.", "torch.nn.init.", "torch.nn.utils.", "torch.nn.parameter.")
_STATELESS = {
    "ReLU", "ReLU6", "LeakyReLU", "ELU", "GELU", "SiLU", "Mish", "Tanh", "Sigmoid", "Softmax",
    "LogSoftmax", "Dropout", "Dropout2d", "Dropout3d", "MaxPool1d", "MaxPool2d", "MaxPool3d",
    "AvgPool1d", "AvgPool2d", "AvgPool3d", "Flatten", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d", "Identity", "Upsample", "ZeroPad2d", "PixelShuffle", "ReflectionPad2d",
    "ReplicationPad2d", "Softplus", "Hardtanh", "Hardswish", "Unfold", "Fold", "CosineSimilarity",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScriptMatch:
    """What a check reports about one place of the file, with the figures for its text.

    ``wording`` is the id of a finding in ``findings/script.toml``, which contains the text.
    ``more`` are further places with the same mistake. The code of the fix replaces ``before``, or
    the text of ``node`` where ``before`` is None; if ``before`` is empty, the code is only added.
    """

    wording: str
    node: ast.AST
    figures: Mapping[str, object] = field(default_factory=dict)
    before: str | None = None
    more: Sequence[ast.AST] = ()
    severity: Severity = "warning"
    confidence: Confidence = "likely"


class Script(SourceFile):
    """A Python file with the facts about its training."""

    @cached_property
    def uses_torch(self) -> bool:
        """Return whether the file imports torch."""
        return any(full == "torch" or full.startswith("torch.") for full in self.imports.values())

    @cached_property
    def managed(self) -> str:
        """Return the library that runs the training loop for the script; "" for a plain one."""
        for full in self.imports.values():
            if full.split(".")[0] in MANAGERS:
                return full.split(".")[0]
            if full in ("transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer"):
                return full.split(".")[0]
        return ""

    @cached_property
    def identifiers(self) -> set[str]:
        """Return every name, attribute, parameter and keyword of the file."""
        found = set()
        for node in self.nodes:
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, (ast.arg, ast.keyword)) and node.arg:
                found.add(node.arg)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(node.name)
        return found

    @cached_property
    def strings(self) -> set[str]:
        """Return every string constant of the file."""
        return {
            node.value
            for node in self.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    @cached_property
    def cuda(self) -> bool:
        """Return whether the file moves something to CUDA or names a CUDA device."""
        if any(text == "cuda" or text.startswith("cuda:") for text in self.strings):
            return True
        return any(
            not self.resolve(call).startswith("torch.cuda.") for call in self.methods("cuda")
        )

    @cached_property
    def module_classes(self) -> dict[str, ast.ClassDef]:
        """Return the classes of the file that derive from ``nn.Module``.

        A class may derive from it through another class of the file.
        """
        found: dict[str, ast.ClassDef] = {}
        heirs: dict[str, list[ast.ClassDef]] = {}
        waiting: list[ast.ClassDef] = []
        for node in self.nodes:
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    heirs.setdefault(key(base), []).append(node)
                if any(self._torch_module(self.resolve(base)) for base in node.bases):
                    waiting.append(node)
        while waiting:
            node = waiting.pop()
            if node.name not in found:
                found[node.name] = node
                waiting += heirs.get(node.name, [])
        return found

    @staticmethod
    def _torch_module(full: str) -> bool:
        if not full.startswith("torch.nn.") or full.startswith(_NO_MODULE):
            return False
        last = full.rpartition(".")[2]
        return last[:1].isupper() and last not in (
            "Parameter",
            "Buffer",
            "ParameterList",
            "ParameterDict",
        )

    def makes_module(self, node: ast.AST | None, weights: bool = False) -> bool:
        """Return whether ``node`` is a call that creates an ``nn.Module``.

        With ``weights``, only a module that has parameters counts.
        """
        if not isinstance(node, ast.Call):
            return False
        full = self.resolve(node.func)
        if full.startswith("torchvision.models.") and not full.rpartition(".")[2].startswith(
            "get_"
        ):
            return True
        last = full.rpartition(".")[2]
        if self._torch_module(full):
            return not weights or not (last in _STATELESS or last.endswith("Loss"))
        return key(node.func) in self.module_classes

    def kind(self, node: ast.AST | None, at: ast.AST) -> str:
        """Return the kind of object that ``node`` is at the place ``at``.

        The kinds are module, ddp, dp, compiled, optimizer, scaler, loader, sampler and criterion;
        "" where the file does not show the kind, or shows two.
        """
        for _ in range(12):
            node = behind(node, PASSING)
            if isinstance(node, ast.Call):
                return self._kind_of_call(node)
            name = key(node)
            if not name:
                return ""
            bound = self.values(at, name)
            fresh = [(where, value) for where, value in bound if not passes_on(value, name)]
            if not fresh or any(value is None for _, value in fresh):
                return ""
            if len(fresh) > 1:
                kinds = {
                    self._kind_of_call(value) if isinstance(value, ast.Call) else ""
                    for _, value in fresh
                }
                return kinds.pop() if len(kinds) == 1 else ""
            at, node = fresh[0]
        return ""

    def _kind_of_call(self, call: ast.Call) -> str:
        """Return what a call makes, by the same names as :meth:`kind`."""
        while (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in PASSING
            and isinstance(call.func.value, ast.Call)
        ):
            call = call.func.value
        full = self.resolve(call.func)
        direct = {
            DDP: "ddp",
            DP: "dp",
            "torch.compile": "compiled",
            LOADER: "loader",
            SAMPLER: "sampler",
        }.get(full)
        if direct:
            return direct
        if full in SCALERS:
            return "scaler"
        last = full.rpartition(".")[2]
        if full.startswith("torch.optim.") and last[:1].isupper() and "lr_scheduler" not in full:
            return "optimizer"
        if full.startswith("torch.nn.") and last.endswith("Loss"):
            return "criterion"
        return "module" if self.makes_module(call) else ""

    # ── the training ──────────────────────────────────────────────────────────────────────────────

    @cached_property
    def backwards(self) -> list[ast.Call]:
        """Return the calls of ``backward`` on a loss, also through a scaler."""
        found = self.methods("backward", "manual_backward")
        return [
            call
            for call in found
            if not receiver(call).startswith(("torch.autograd", "super", "ctx"))
        ]

    def losses(self, call: ast.Call) -> set[str]:
        """Return the plain names that this ``backward`` goes through."""
        if not isinstance(call.func, ast.Attribute):
            return set()
        value = call.func.value
        if (
            isinstance(value, ast.Name)
            and call.args
            and isinstance(call.args[0], ast.Name)
            and value.id != call.args[0].id
        ):
            # accelerator.backward(loss) and loss.backward(gradient) do not pass the loss as an
            # argument.
            return {call.args[0].id} if "accel" in value.id or "fabric" in value.id else {value.id}
        if isinstance(value, ast.Call):
            return {arg.id for arg in value.args if isinstance(arg, ast.Name)}
        if isinstance(value, ast.BinOp):
            return names(value)
        return {value.id} if isinstance(value, ast.Name) else set()

    @cached_property
    def steps(self) -> list[ast.Call]:
        """Return the calls of ``step`` on an optimizer or scaler, as far as their names say."""
        found = []
        for call in self.methods("step"):
            name = receiver(call)
            last = name.rpartition(".")[2].lower()
            kind = self.kind(call.func.value, call) if isinstance(call.func, ast.Attribute) else ""
            if kind in ("optimizer", "scaler") or "opt" in last or last.startswith("scaler"):
                found.append(call)
        return found

    def optimizer_of(self, call: ast.Call) -> str:
        """Return the optimizer's name of ``opt.step()`` or ``scaler.step(opt)``."""
        if call.args and "scaler" in receiver(call).lower():
            return key(call.args[0])
        return receiver(call)

    @cached_property
    def training_loops(self) -> list[Loop]:
        """Return the innermost loops that go backward and step: each turn is a step."""
        found: list[Loop] = []
        for call in self.backwards:
            for loop in self.loops(call):
                if any(self.is_inside(step, loop) for step in self.steps):
                    if loop not in found:
                        found.append(loop)
                    break
        return found

    @cached_property
    def distributed(self) -> list[ast.Call]:
        """Return the calls that wrap a model in DistributedDataParallel."""
        return self.calls_to(DDP)

    def without_grad(self, node: ast.AST) -> bool:
        """Return whether gradients are off at ``node``.

        A ``with`` statement, a decorator or a call may disable them, here or in every caller.
        """
        return any(
            self._switches_grad_off(context) for context in self.contexts(node)
        ) or self.function_without_grad(self.scope(node))

    def _switches_grad_off(self, context: ast.expr) -> bool:
        """Return whether this context or decorator switches gradients off."""
        full = self.resolve(context)
        last = full.rpartition(".")[2] or key(
            context.func if isinstance(context, ast.Call) else context
        )
        return (
            full in NO_GRADS or "no_grad" in last or "inference" in last or "grad_enabled" in last
        )

    def function_without_grad(self, function: ast.AST) -> bool:
        """Return whether gradients are disabled for the whole function.

        A decorator, a call inside it, or every caller in this file may do that.
        """
        for _ in range(8):
            if isinstance(function, (ast.Module, ast.Lambda)):
                return bool(
                    self.calls_to("torch.set_grad_enabled", "torch.autograd.set_grad_enabled")
                )
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return False
            if any(self._switches_grad_off(decorator) for decorator in function.decorator_list):
                return True
            if any(self.scope(call) is function for call in self.methods("set_grad_enabled")):
                return True
            callers = self.callers(function)
            if callers and all(
                any(self._switches_grad_off(context) for context in self.contexts(call))
                for call in callers
            ):
                return True
            outer = {id(self.scope(call)): self.scope(call) for call in callers}
            if len(outer) != 1:
                return False
            function = next(iter(outer.values()))
            if isinstance(function, ast.Module):
                return False
        return False

    def callers(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.Call]:
        """Return the calls of a function or method in this file, by its name."""
        return [
            call
            for call in self.calls
            if (isinstance(call.func, ast.Name) and call.func.id == function.name)
            or (
                isinstance(call.func, ast.Attribute)
                and call.func.attr == function.name
                and receiver(call) == "self"
            )
        ]

    def local_function(self, call: ast.Call) -> ast.FunctionDef | None:
        """Return the function of this file that ``call`` calls.

        It is found by its plain name or as a method of ``self``.
        """
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if receiver(call) == "self" and isinstance(call.func, ast.Attribute):
            name = call.func.attr
        return self._functions.get(name)

    @cached_property
    def _functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in self.nodes if isinstance(node, ast.FunctionDef)}

    def waits(self, node: ast.AST) -> bool:
        """Return whether something under ``node`` makes the CPU wait for the GPU.

        It may copy a value to the host or wait explicitly. What other functions do inside is not
        examined.
        """
        for inner in ast.walk(node):
            if not isinstance(inner, ast.Call):
                continue
            if isinstance(inner.func, ast.Attribute) and inner.func.attr in WAITING:
                return True
            if isinstance(inner.func, ast.Name) and inner.func.id in (
                "float",
                "int",
                "print",
                "bool",
            ):
                return True
        return False

    def moves_of(self, name: str, within: ast.AST) -> Iterator[ast.Call]:
        """Yield the calls under ``within`` that move ``name`` to a device."""
        for call in self.methods(*MOVING, within=within):
            if receiver(call) == name:
                yield call


def passes_on(value: ast.expr | None, name: str) -> bool:
    """Return whether ``value`` is only ``name`` passed on: ``model = model.to(device)``."""
    return value is not None and key(behind(value, PASSING)) == name
