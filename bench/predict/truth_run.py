"""Run one real training and write down everything that its memory did.

That is the row of the table, and the allocator's history.

Three steps, or more where a grad scaler skips some. The loop is the lab's
(``gpuscope/lab/training.py``). Runs on a CPU as well, without any figure, to see that it runs.
"""

from __future__ import annotations

import importlib
import inspect
import os
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import recorded
from .truth_table import Config

STEPS = 3
TAKEN, MOST_STEPS = 2, 14
"""A grad scaler skips steps whose gradients overflow, and the optimizer has no state before its
first step. So a training continues until the optimizer has made this many steps, as a real one
would.
"""
MOMENTUM = 0.9
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MAX_ENTRIES = 2_000_000


class Memory:
    """Reads the allocator, and NVML about this process.

    Peaks are reset at every mark: the process is ours alone. In a compiled training they are reset
    only before the first step, because inductor reads the peak to decide where it copies what it
    times kernels on.
    """

    def __init__(self, device: torch.device, compiled: bool = False):
        self.on = device.type == "cuda"
        self._compiled = compiled
        self.marks: list[tuple[int, str]] = []
        self._handle: Any = None
        if self.on:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
            index = int(first) if first.isdigit() else 0
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def mark(self, name: str) -> None:
        """Begin the phase ``name``, and note how many allocations and frees came before it."""
        if self.on:
            count = torch._C._cuda_memoryStats(0)["allocation"]["all"]
            self.marks.append((count["allocated"] + count["freed"], name))
            if not self._compiled or name in ("build", "step 1"):
                torch.cuda.reset_peak_memory_stats(0)

    def now(self) -> dict[str, int | None]:
        if not self.on:
            return dict.fromkeys(
                ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
            )
        return {
            "allocated_bytes": torch.cuda.memory_allocated(0),
            "reserved_bytes": torch.cuda.memory_reserved(0),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(0),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(0),
        }

    def outside(self) -> dict[str, int | None]:
        """Return what the driver says of the memory.

        That is this process, the device, the driver's own reserve, and the rest of the process.
        """
        if not self.on:
            return {}
        torch.cuda.synchronize()
        processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        mine = next(
            (process.usedGpuMemory for process in processes if process.pid == os.getpid()), None
        )
        # seen under another number, from outside of a container
        if mine is None and len(processes) == 1:
            mine = processes[0].usedGpuMemory
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle, version=self._nvml.nvmlMemory_v2)
        reserved = torch.cuda.memory_reserved(0)
        return {
            "process_bytes": mine,
            "outside_torch_bytes": None if mine is None else mine - reserved,
            "device_used_bytes": memory.used,
            "driver_reserved_bytes": memory.reserved,
            "reserved_bytes": reserved,
            "processes": len(processes),
        }


class Work:
    """The model of ``config`` with its optimizer.

    ``loss()`` runs the forward pass of a micro-batch.
    """

    def __init__(self, config: Config, device: torch.device):
        torch.manual_seed(0)
        self.released = ":" not in config.model
        if self.released:
            from gpuscope.lab.config import LabConfig
            from gpuscope.lab.parallel import World
            from gpuscope.lab.training import PresetWork

            values = {
                "model": config.model,
                "batch": config.batch,
                "checkpoint": bool(config.checkpoint),
                "device": device.type,
            }
            work = PresetWork(LabConfig.from_mapping(values), World(0, 1, 0, "", device))
            self.model, self.optimizer, self.loss = work.model, work.optimizer, work.loss
        else:
            module, _, name = config.model.partition(":")
            factory: Callable[..., Any] = getattr(importlib.import_module(module), name)
            takes = "checkpoint" in inspect.signature(factory).parameters
            made = factory(
                batch=config.batch,
                device=device,
                **({"checkpoint": bool(config.checkpoint)} if takes else {}),
            )
            self.model, self.optimizer, forward = made
            self.loss = lambda: forward().reshape(())
        if config.optimizer is not None:
            self.optimizer = _optimizer(config, self.model)
        if config.compiled_whole:
            self.loss = torch.compile(self.loss, mode=config.compile)


def _optimizer(config: Config, model: torch.nn.Module) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"foreach": config.foreach, "fused": config.fused}
    parameters = list(model.parameters())
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.001, momentum=MOMENTUM, **options)
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[config.optimizer or ""]
    return kind(parameters, lr=1e-4, **options)


class Steps:
    def __init__(self, config: Config, device: torch.device, memory: Memory, work: Work):
        self._config, self._device, self._memory, self._work = config, device, memory, work
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.amp == "fp16")
        self.taken = 0
        work.optimizer.register_step_post_hook(self._count)
        self.phases: list[dict[str, Any]] = []

    def _count(self, *_: object) -> None:
        self.taken += 1

    def _phase(self, step: int, name: str) -> None:
        """End the phase ``name``."""
        self.phases.append({"step": step, "phase": name, **self._memory.now()})

    def step(self, number: int) -> Tensor:
        """Make a step like the Lab's, with marks between its phases."""
        config, work, memory = self._config, self._work, self._memory
        memory.mark(f"step {number}")
        work.optimizer.zero_grad(set_to_none=config.set_to_none)
        total: Tensor | None = None
        for _ in range(config.accumulate):
            memory.mark("forward")
            with self._autocast():
                loss = work.loss()
                if config.accumulate > 1:
                    loss = loss / config.accumulate
            self._phase(number, "forward")
            memory.mark("backward")
            self.scaler.scale(loss).backward()
            self._phase(number, "backward")
            total = loss.detach() if total is None else total + loss.detach()
        memory.mark("optimizer")
        self.scaler.step(work.optimizer)
        self.scaler.update()
        self._phase(number, "optimizer")
        assert total is not None
        # the next step writes a loss that is in a pool of CUDA graphs
        return total.clone() if self._config.compile else total

    def _autocast(self) -> Any:
        if self._config.amp == "off":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=TYPES[self._config.amp])


def run(
    config: Config,
    device_type: str,
    folder: Path,
    alone: bool = False,
    cap_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the row of ``config``.

    If the run failed, ``error`` says how, and the figures are those up to that point.
    """
    row: dict[str, Any] = {"name": config.name, **config.toggles(), "error": None, "alone": alone}
    begin = time.monotonic()
    try:
        _run(config, torch.device(device_type), folder, row, cap_bytes)
    except torch.cuda.OutOfMemoryError as error:
        row |= {"error": f"OutOfMemoryError: {error}"[:600], "out_of_memory": True}
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:600]
        row["traceback"] = traceback.format_exc()[-1500:]
    row["seconds"] = round(time.monotonic() - begin, 2)
    return row


def _run(
    config: Config, device: torch.device, folder: Path, row: dict[str, Any], cap_bytes: int | None
) -> None:
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = config.tf32
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    memory = Memory(device, bool(config.compile))
    outside: dict[str, Any] = {}
    if memory.on:
        torch.cuda.init()
        if config.record:
            context = "alloc" if config.stacks else None
            torch.cuda.memory._record_memory_history(
                enabled="all", context=context, stacks="all", max_entries=MAX_ENTRIES
            )
        if cap_bytes is not None:
            # This caps what torch reserves; the context and what libraries take from the driver are
            # not included.
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(cap_bytes / total, 0)
        outside["context"] = memory.outside()
    memory.mark("build")
    work = Work(config, device)
    steps = Steps(config, device, memory, work)
    row["parameters"] = sum(parameter.numel() for parameter in work.model.parameters())
    row["parameter_bytes"] = sum(p.numel() * p.element_size() for p in work.model.parameters())
    row["released_before_steps"] = work.released
    row["build"] = memory.now()
    outside["built"] = memory.outside()
    if memory.on and work.released:
        torch.cuda.empty_cache()
    losses = []
    number = 0
    while number < STEPS or (steps.taken < TAKEN and number < MOST_STEPS):
        number += 1
        losses.append(steps.step(number))
        outside[f"step {number}"] = memory.outside()
    memory.mark("end")
    row["losses"] = [round(float(loss), 4) for loss in losses]
    row["skipped_steps"], row["taken_steps"] = number - steps.taken, steps.taken
    row["phases"], row["outside"] = steps.phases, outside
    row["torch"] = torch.__version__
    if not memory.on:
        return
    for key in ("peak_allocated_bytes", "peak_reserved_bytes"):
        row[key] = max(phase[key] for phase in steps.phases)
    row["allocated_bytes"], row["reserved_bytes"] = (
        torch.cuda.memory_allocated(0),
        torch.cuda.memory_reserved(0),
    )
    stats = torch._C._cuda_memoryStats(0)
    row["num_alloc_retries"], row["num_ooms"] = stats["num_alloc_retries"], stats["num_ooms"]
    row["device_name"] = torch.cuda.get_device_name(0)
    row["cudnn"], row["cuda"] = torch.backends.cudnn.version(), torch.version.cuda
    driver = memory._nvml.nvmlSystemGetDriverVersion()
    row["driver"] = driver.decode() if isinstance(driver, bytes) else driver
    if config.record:
        snapshot = torch.cuda.memory._snapshot()
        entries = snapshot["device_traces"][0]
        row["events"], row["overflowed"] = len(entries), len(entries) >= MAX_ENTRIES
        data = recorded.compact(entries, memory.marks, snapshot.get("allocator_settings"))
        data["name"] = config.name
        row["trace_live_differs"] = data["live"] != sum(
            s["requested_size"] for s in snapshot["segments"]
        )
        path = folder / "traces" / f"{config.name}.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        row["trace_file_bytes"] = recorded.write(path, data)
