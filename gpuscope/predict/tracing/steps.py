"""Trains a few steps with fake tensors, as the Lab's worker does, and returns the trace."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from ..deepspeed import Zero
from ..fully_sharded import Policy
from ..request import BUCKETED, CannotPredict, Doubt, Request, Traced
from ..sharding import sharded
from ..trace import PhaseMark
from . import (
    autocast,
    compiling,
    data_dependent,
    data_parallel,
    ddp,
    failures,
    kernels,
    missing_kernels,
    mixed,
    optimizers,
    quantised,
    redirect,
    subjects,
    switches,
    zero,
    zero3,
)
from .cuda_answers import Allowed
from .fakes import Fakes
from .generation import Generation
from .modules import Modules
from .op_cache import Quick
from .project import ProjectFiles
from .recorder import BACKWARD, END, FORWARD, OPTIMIZER, Recorder
from .repeating import repeat_last_step

AMP_TYPES = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}
TRACED_STEPS = 2
"""The third step usually requests the same as the second one; if it does not, it is traced as well.
"""


def architecture(text: str) -> tuple[int, int]:
    """Return ``"9.0"`` as two numbers."""
    try:
        major, minor = text.split(".")
        return int(major), int(minor)
    except ValueError:
        raise CannotPredict(
            f"There is no compute capability {text!r}.",
            "it is written as 9.0.",
            "--architecture 9.0",
            "usage",
        ) from None


def trace(request: Request, emulate: bool = True) -> Traced:
    """Trace a request. Raises :class:`CannotPredict`, and whatever the user's code raises.

    With ``emulate`` false the CPU's own kernels are traced, for comparison with a real run on a
    CPU.
    """
    begin = time.perf_counter()
    chip = architecture(request.architecture)
    if request.amp not in AMP_TYPES:
        raise CannotPredict(
            f"There is no --amp {request.amp}.",
            f"Known: {', '.join(AMP_TYPES)}.",
            "--amp bf16",
            "usage",
        )
    recorder, modules = Recorder(), Modules()
    shelf = ddp.KeptTensors(emulate and ddp.torch_keeps())
    recorder.module = modules.current
    if request.project:
        recorder.stack = ProjectFiles(request.project).running
    if emulate:
        fakes = Quick(recorder, kernels.around(chip), kernels.instead(chip))
        fakes.sums_in_place, fakes.architecture = True, chip
    else:
        fakes = Quick(recorder, {}, data_dependent.INSTEAD)
    with contextlib.ExitStack() as stack:
        stack.enter_context(switches.restored_after())
        stack.enter_context(compiling.forgotten_after())
        if emulate:
            autocast.install()
            kernels.install(chip)
            stack.enter_context(optimizers.as_on_cuda())
        else:  # an earlier training of this process may have installed them
            autocast.uninstall()
            kernels.uninstall()
        stack.enter_context(autocast.redirected())
        switches.set_as(request)
        stack.enter_context(
            redirect.pretended(chip, lambda: recorder.live_bytes, fakes.doubt, shelf)
        )
        stack.enter_context(fakes)
        stack.enter_context(redirect.redirected(fakes.doubt))
        stack.enter_context(modules.watched())
        if request.deepspeed and Zero.of(request.deepspeed).stage == 3:
            stack.enter_context(zero3.linear_keeps_parameters())
        made: Generation | _Training
        if request.serve:
            made = Generation(request, recorder, fakes, modules)
        else:
            made = _Training(request, recorder, fakes, modules, shelf)
        if request.quantize:
            for doubt in quantised.doubts(made.model):
                fakes.doubt(doubt)
        try:
            with missing_kernels.noticed(request.model) as missing:
                made.run()
        except Exception as error:
            failures.note_assumed(error, fakes.doubts.values() if fakes.guessed else ())
            raise
        for doubt in missing:
            fakes.doubt(doubt)
        parameters, batch, source = made.parameters, made.batch, made.source
        positions = made.positions if isinstance(made, Generation) else 0
        share, setup = Allowed.share, made.setup
        del made
    data_dependent.bounded(fakes)
    if recorder.most_bytes > recorder.peak_bytes:
        text = (
            "cuDNN may run fp32 convolutions of these shapes by FFT, which takes much scratch "
            "memory, or on copies of their operands."
        )
        percent = round(100 * (recorder.most_bytes / recorder.peak_bytes - 1), 1)
        fakes.doubt(Doubt("unmeasured", text, "convolution", percent, upward=True))
    less, more = shelf.percent(recorder.trace)
    if less:
        fakes.doubt(Doubt("sharding", ddp.KEPT, "nccl", less, replayed=True))
    if more > less:
        more = round(more - less, 1)
        doubt = Doubt("sharding", ddp.MAY_KEEP, "nccl watchdog", more, upward=True, replayed=True)
        fakes.doubt(doubt)
    derived = "none" if request.sharding in ("dp", "ddp") else request.sharding
    traced, doubts = sharded(recorder.finish(), derived, request.ranks, Policy.of(request))
    return Traced(
        trace=traced,
        batch=batch,
        parameters=parameters,
        torch=str(torch.__version__),
        doubts=[*fakes.doubts.values(), *doubts],
        seconds=time.perf_counter() - begin,
        source=source,
        fraction=share,
        positions=positions,
        setup=[*([f"input {modules.first_input}"] if modules.first_input else []), *setup],
    )


class _Training:
    def __init__(
        self,
        request: Request,
        recorder: Recorder,
        fakes: Fakes,
        modules: Modules,
        shelf: ddp.KeptTensors,
    ):
        self.request, self.recorder, self.fakes, self.modules = request, recorder, fakes, modules
        recorder.trace.marks.append(PhaseMark(0, "build"))
        self.subject = subjects.build(request)
        if request.fsdp_params != "fp32":
            mixed.cast(self.subject.model, request.fsdp_params, request.fsdp_wrap)
        self.model = self.subject.model
        modules.name(self.model)
        if request.compile:
            self._compile()
        self._type = AMP_TYPES[request.amp]
        self.scaler = optimizers.scaler(enabled=request.amp == "fp16")
        if request.amp == "fp16":
            text = (
                "The grad scaler may skip the first steps, which then need less: optimizer state "
                "is created later."
            )
            fakes.doubt(Doubt("scaler", text))
        self.batch, self.source = self.subject.batch, self.subject.source
        self.parameters = quantised.numbers(self.subject.model)
        packed = bool(self.request.quantize)  # the layout of its weights is said already
        self.setup = [] if packed else [quantised.weights_text(self.subject.model)]
        self.setup += [type(self.subject.optimizer).__name__] if self.subject.optimizer else []
        parameters = self.subject.model.parameters()
        stored = [part for one in parameters for part in quantised.parts(one) or [one]]
        if not any(fakes.block(part) is not None for part in stored):
            fakes.doubt(
                Doubt(
                    "not_on_gpu",
                    "No parameter of the model is on the device passed to the factory.",
                    "",
                    50.0,
                )
            )
        self._names = {
            id(parameter): name.rpartition(".")[0]
            for name, parameter in self.subject.model.named_parameters()
        }
        self._model_blocks()
        self._reducer: ddp.Reducer | None = None
        wrapped = isinstance(self.subject.model, torch.nn.parallel.DistributedDataParallel)
        if request.sharding in BUCKETED and not wrapped:
            views = ddp.DdpOptions(gradient_as_bucket_view=request.bucket_views)
            self._reducer = ddp.Reducer(self.subject.model, views, shelf)
        if request.sharding == "dp":
            inner = getattr(self.subject.model, "module", self.subject.model)
            data_parallel.install(inner, request.ranks)
        self._engine = self._deepspeed() if request.deepspeed else None

    def _deepspeed(self) -> zero.Stages12 | zero3.Stage3:
        """Return DeepSpeed's engine around the model, as its configuration asks."""
        config, ranks = Zero.of(self.request.deepspeed), self.request.ranks
        subject, fakes = self.subject, self.fakes
        for doubt in config.doubts():
            fakes.doubt(doubt)
        whole = set(self.recorder.live())
        zero.cast(subject.model, config.kind)
        subject.optimizer = zero.optimizer_for(config, subject.optimizer)
        found: zero.Stages12 | zero3.Stage3
        if config.stage == 3:
            whole |= self.recorder.live()  # the engine divides what was cast, and empties the cache
            found = zero3.Stage3(config, ranks, subject.model, subject.optimizer, fakes)
            self.recorder.forget(whole)
        else:
            self.recorder.forget(whole)
            found = zero.Stages12(config, ranks, subject.optimizer, fakes)
        self._model_blocks()
        return found

    def _compile(self) -> None:
        subject, request = self.subject, self.request
        options = compiling.CompileOptions(request.cuda_graphs, request.max_autotune)
        if ":" in request.model and not request.model.startswith("torchvision:"):
            subject.loss = compiling.compiled(subject.loss, options)
        else:
            compiling.install(subject.model, options)

    def run(self) -> None:
        recorder, steps = self.recorder, max(1, self.request.steps)
        places = []
        for step in range(min(steps, TRACED_STEPS)):
            places.append((len(recorder.trace.events), len(recorder.trace.marks)))
            self._step(step + 1)
        for step in range(len(places), steps):
            place = (len(recorder.trace.events), len(recorder.trace.marks))
            if recorder.next_differs or not repeat_last_step(recorder, *places[-1], step + 1):
                self._step(step + 1)
            places.append(place)
        recorder.mark(END)

    def _step(self, number: int) -> None:
        request, recorder, subject = self.request, self.recorder, self.subject
        if number == 1 and subject.released:
            recorder.mark("empty_cache")
        recorder.mark(f"step {number}")
        recorder.mark(FORWARD)
        if self._engine is None:
            subject.optimizer.zero_grad(set_to_none=request.set_to_none)
        total: torch.Tensor | None = None
        for micro in range(request.accumulate):
            if micro:
                recorder.mark(FORWARD)
            self.modules.forget()
            last = micro == request.accumulate - 1
            with self._autocast():
                if self._reducer is not None:
                    self._reducer.before_forward()
                if isinstance(self._engine, zero3.Stage3):
                    self._engine.before_forward()
                loss = subject.checked(subject.loss())
                if self._reducer is not None:
                    self._reducer.after_forward(loss, last)
                if request.accumulate > 1:
                    loss = loss / request.accumulate
            recorder.mark(BACKWARD)
            if self._engine is not None:
                self._engine.before_backward(last)
            self.scaler.scale(loss).backward()
            if self._engine is not None:
                self._engine.after_backward()
            total = loss.detach() if total is None else total + loss.detach()
            self._gradients()
        recorder.mark(OPTIMIZER)
        if self._engine is not None:
            self._engine.step()
        else:
            self.scaler.step(subject.optimizer)
            self.scaler.update()
        for state in optimizers.states(subject.optimizer):
            self._decide(state, "optimizer")
        self._model_blocks()
        for name in ("_scale", "_growth_tracker"):
            kept = getattr(self.scaler, name, None)
            if kept is not None:
                self._decide(kept, "optimizer")

    def _autocast(self) -> Any:
        if self._type is None:
            return contextlib.nullcontext()
        return torch.autocast("cuda", dtype=self._type)

    def _decide(self, tensor: torch.Tensor, category: str, module: str | None = None) -> None:
        parts = quantised.parts(tensor)
        if parts and hasattr(tensor, "__tensor_flatten__"):
            self.fakes.doubt(quantised.QUANTISED)
        for part in parts or [tensor]:
            self.fakes.decide(part, category, module)

    def _model_blocks(self) -> None:
        for name, buffer in self.subject.model.named_buffers():
            self._decide(buffer, "buffer", name.rpartition(".")[0])
        for parameter in self.subject.model.parameters():
            self._decide(parameter, "parameter", self._names.get(id(parameter)))

    def _gradients(self) -> None:
        for parameter in self.subject.model.parameters():
            if parameter.grad is not None:
                self._decide(parameter.grad, "gradient", self._names.get(id(parameter)))
