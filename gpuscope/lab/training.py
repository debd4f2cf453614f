"""Do one step of training as the toggles say, and time it.

Here are the model with its optimizer, and the clock that times the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from . import factory, loaders, models, parallel
from .compiling import Compilation, compiled
from .config import LabConfig
from .parallel import World
from .same_batch import SameBatch

VALIDATION_BATCHES = 4
MOMENTUM = 0.9
AMP_TYPES = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class TrainingStopped(Exception):
    """The run was asked to end in the middle of a step."""


class Work(Protocol):
    """What is trained. :meth:`loss` runs the forward pass of the next micro-batch."""

    model: nn.Module
    """The model as it was built, for the probe."""
    net: nn.Module
    """The model as it is trained: wrapped for several processes."""
    optimizer: Any
    warm_up: WarmUp | None
    batch: int
    waited: float | None
    """The seconds of waiting for micro-batches so far; None if they cannot be measured separately.
    """

    @property
    def same_batch(self) -> bool | None:
        """Whether the model gets the same batch each time; None where that is not known."""

    @property
    def convolutions(self) -> bool:
        """Whether the model has convolutions, to which their own switches can do something."""

    def loss(self) -> Tensor: ...

    def validation_loss(self) -> list[Tensor]: ...

    def close(self) -> None: ...


class PresetWork:
    """One of the lab's own models with its source of micro-batches."""

    same_batch = False

    def __init__(self, config: LabConfig, world: World):
        device = world.device
        name = config.preset(device.type)
        preset = models.MODELS[name]
        task = models.build(name, device, config.seed)
        self.model = laid_out(task.model, config)
        self.convolutions = has_convolutions(self.model)
        self.batch = config.batch or preset.batch
        self.waited: float | None = 0.0
        self._criterion = task.criterion
        self._world = world
        if config.checkpoint:
            for module in self.model.modules():
                if isinstance(module, models.Blocks):
                    module.checkpoint = True
        self._held_out = task.held_out() if config.validate != "off" else None
        self._source = loaders.open_source(
            config, task.pool, self.batch, device, world.rank, world.size
        )
        self.net = parallel.wrap(self.model, config, world)
        self.optimizer = make_optimizer(config, preset, self.net)
        self.warm_up: WarmUp | None = WarmUp(self.optimizer, preset.warm_up)
        mode = config.compile
        self._call: Callable[[Tensor], Tensor] = (
            self.net if mode == "off" else compiled(self.net, mode, config.fullgraph)
        )

    def loss(self) -> Tensor:
        begin = time.perf_counter()
        inputs, targets = self._source.next()
        assert self.waited is not None
        self.waited += time.perf_counter() - begin
        return self._criterion(self._call(inputs), targets)

    def validation_loss(self) -> list[Tensor]:
        """Return the losses of held-out micro-batches, the same ones each time.

        There are ``VALIDATION_BATCHES`` of them. These models compute the same in training and in
        evaluation.
        """
        assert self._held_out is not None
        source = loaders.SyntheticBatches(
            self._held_out, self.batch, self._world.rank, self._world.size
        )
        losses = []
        for _ in range(VALIDATION_BATCHES):
            inputs, targets = source.next()
            losses.append(self._criterion(self._call(inputs), targets))
        return losses

    def close(self) -> None:
        self._source.close()


class FactoryWork:
    """A user's own model, whose ``forward()`` fetches its micro-batch and returns the loss."""

    def __init__(self, config: LabConfig, world: World, made: factory.Made, batch: int):
        assert config.factory
        self.model = self.net = made.model
        self.convolutions = has_convolutions(made.model)
        self.optimizer = made.optimizer
        self.warm_up: WarmUp | None = None  # the user's optimizer has its own learning rates
        self.batch = batch
        self.waited: float | None = None
        self._name = config.factory
        mode = config.compile
        self._forward: Callable[[], Any] = (
            made.forward if mode == "off" else compiled(made.forward, mode, config.fullgraph)
        )
        # A hook would be a part of what is compiled.
        self._batches = SameBatch() if mode == "off" else None
        # The next replay of a CUDA graph overwrites the outputs of the previous one.
        self._copies = mode in ("reduce-overhead", "max-autotune")

    @property
    def same_batch(self) -> bool | None:
        """Whether the model gets the same batch each time; None where that is not known."""
        return self._batches.answer if self._batches is not None else None

    def loss(self) -> Tensor:
        with self._batches.looking() if self._batches is not None else nullcontext():
            loss = factory.checked(self._name, self._forward())
        return loss.clone() if self._copies else loss

    def validation_loss(self) -> list[Tensor]:
        return [self._forward().reshape(()) for _ in range(VALIDATION_BATCHES)]

    def close(self) -> None:
        pass


def make_work(config: LabConfig, world: World, user: Callable[..., Any] | None = None) -> Work:
    """Return the model of ``config`` on the device of ``world``.

    ``user`` is the user's factory where ``config`` names one.
    """
    if not config.factory:
        return PresetWork(config, world)
    batch = config.batch or factory.BATCH
    user = user or factory.find(config.factory)
    torch.manual_seed(config.seed)
    made = factory.make(config.factory, user, batch, world.device, config.checkpoint)
    laid_out(made.model, config)
    return FactoryWork(config, world, made, batch)


def has_convolutions(model: nn.Module) -> bool:
    """Say whether a model has layers of convolutions, or weights with the shape of theirs."""
    layers = (nn.modules.conv._ConvNd, nn.modules.conv._ConvTransposeNd)
    return any(isinstance(module, layers) for module in model.modules()) or any(
        parameter.dim() in (4, 5) for parameter in model.parameters()
    )


def laid_out(model: nn.Module, config: LabConfig) -> nn.Module:
    """Return the model with its weights in the memory format of the switches.

    The parameters stay the same objects. A convolution of two dimensions computes in the format of
    its weight, whatever that of its input is.
    """
    return model.to(memory_format=torch.channels_last) if config.channels_last else model


def make_optimizer(
    config: LabConfig, preset: models.Preset, net: nn.Module
) -> torch.optim.Optimizer:
    parameters = list(net.parameters())
    options = {"foreach": config.foreach, "fused": config.fused}
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=preset.sgd_rate, momentum=MOMENTUM, **options)
    return torch.optim.AdamW(parameters, lr=preset.learning_rate, **options)


class WarmUp:
    """Raises an optimizer's learning rate linearly to its initial value.

    This takes its first ``steps`` steps.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, steps: int):
        self._groups, self._steps = optimizer.param_groups, steps
        self._full = self._now = float(self._groups[0]["lr"])

    def before_step(self, taken: int) -> None:
        """Set the rate of the step after the first ``taken`` ones.

        A rate that somebody else has set is not changed.
        """
        if self._now == self._full and taken:
            return
        before, self._now = self._now, self._full * min(1.0, (taken + 1) / self._steps)
        for group in self._groups:
            if group["lr"] == before:
                group["lr"] = self._now


class Training:
    """Trains :attr:`work`. In a world of several every rank makes the same calls."""

    def __init__(self, config: LabConfig, world: World, user: Callable[..., Any] | None = None):
        self.config = config
        self.world = world
        self.device = world.device
        self.compilation = (
            Compilation(config.compile, config.fullgraph) if config.compile != "off" else None
        )
        self.work = make_work(config, world, user)
        # counted for the whole model also under FSDP2: a sharded parameter has the shape of the
        # whole one
        self.parameters = sum(parameter.numel() for parameter in self.work.model.parameters())
        self._type = AMP_TYPES[config.amp]
        self._marks_replays = self.compilation is not None and self.compilation.replays
        self.scaler = _grad_scaler(self.device.type, enabled=config.amp == "fp16")
        if self._marks_replays and not config.set_to_none:
            # otherwise the first ones would be in a graph's own memory pool
            for parameter in self.work.model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
        self.taken = 0
        """Steps that the optimizer made; the scaler skips steps whose gradients have overflowed."""
        hook = getattr(self.work.optimizer, "register_step_post_hook", None)
        self._hooked = hook is not None
        if hook is not None:
            hook(self._count)  # the scaler does not call step() when it skips

    def _count(self, *_: object) -> None:
        self.taken += 1

    def step(self, stopping: Callable[[], bool] = lambda: False) -> Tensor:
        """Do one optimizer step over ``accumulate`` micro-batches.

        Return the mean loss of this rank, still on the device. Raises :class:`TrainingStopped`
        between two micro-batches once ``stopping()`` is true.
        """
        work, parts = self.work, self.config.accumulate
        work.optimizer.zero_grad(set_to_none=self.config.set_to_none)
        total: Tensor | None = None
        if self._marks_replays:
            # Once a step, not once a micro-batch: gradients that are being accumulated must not be
            # overwritten.
            torch.compiler.cudagraph_mark_step_begin()
        for micro in range(parts):
            if stopping():
                raise TrainingStopped
            with self._last(micro == parts - 1):
                with self._autocast():
                    loss = work.loss()
                    if parts > 1:
                        loss = loss / parts
                self.scaler.scale(loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
        self._take()
        assert total is not None
        return total

    def _take(self) -> None:
        """Make the optimizer's part of a step."""
        work, before = self.work, self.taken
        optimizer = work.optimizer
        if work.warm_up is not None:
            work.warm_up.before_step(before)
        scale = None if self._hooked else self.scale
        self.scaler.step(optimizer)
        self.scaler.update()
        if not self._hooked and (scale is None or self.scale == scale or (self.scale or 0) > scale):
            # an optimizer that is not torch's: a lower scale shows that the step was skipped
            self.taken = before + 1

    def validate(self) -> Tensor:
        """Return the mean loss over the validation's micro-batches, on the device.

        With ``validate="grad"`` autograd records it, and every micro-batch's activations stay alive
        until the last one is done: the mistake that this toggle shows.
        """
        with torch.set_grad_enabled(self.config.validate == "grad"), self._autocast():
            if self._marks_replays:
                torch.compiler.cudagraph_mark_step_begin()
            return torch.stack(self.work.validation_loss()).mean()

    def release(self) -> tuple[int, float] | None:
        """Call ``empty_cache()``, and return the bytes that were returned and the seconds it took.

        None on a CPU.
        """
        if self.device.type != "cuda":
            return None
        torch.cuda.synchronize(self.device)
        held, begin = torch.cuda.memory_reserved(self.device), time.perf_counter()
        torch.cuda.empty_cache()
        seconds = time.perf_counter() - begin
        return held - torch.cuda.memory_reserved(self.device), seconds

    def close(self) -> None:
        self.work.close()

    @property
    def scale(self) -> float | None:
        """Return the grad scaler's factor; reading it waits for the device."""
        return float(self.scaler.get_scale()) if self.scaler.is_enabled() else None

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._type is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._type)  # type: ignore[no-any-return]

    def _last(self, last: bool) -> AbstractContextManager[None]:
        return parallel.no_sync(self.work.net, last) if self.world.size > 1 else nullcontext()


def _grad_scaler(device_type: str, enabled: bool) -> Any:
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device_type, enabled=enabled)
    # torch before 2.3 scales on CUDA only.
    return torch.cuda.amp.GradScaler(enabled=enabled and device_type == "cuda")


class Clock:
    """Measures the seconds of each step.

    On a GPU it records CUDA events between steps, so that nothing waits for a step; on a CPU it
    reads the clock. :meth:`gap` says that something other than a step has happened since the last
    mark.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = [self._now()]

    def mark(self) -> None:
        """Note that a step is over, and the next one begins."""
        self._marks.append(self._now())

    def gap(self) -> None:
        """Note that the next step begins only now."""
        self._marks += [None, self._now()]

    def take(self) -> list[Any]:
        """Return the marks so far, for :meth:`seconds`.

        The last one is kept as the beginning of the next step.
        """
        marks, self._marks = self._marks, self._marks[-1:]
        return marks

    def seconds(self, marks: list[Any]) -> list[float]:
        """Return the steps' times. The device must have reached the last mark."""
        pairs = [(a, b) for a, b in pairwise(marks) if a is not None and b is not None]
        return [a.elapsed_time(b) / 1000 if self._cuda else b - a for a, b in pairs]

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
