"""Read the JSON file with which DeepSpeed is configured, as far as it decides the memory of a GPU.

Names and defaults are those of DeepSpeed 0.19 (``runtime/zero/config.py``, ``runtime/constants.py``
and https://www.deepspeed.ai/docs/config-json). What it does with them is simulated in
:mod:`.tracing.zero`. Bucket sizes count elements, not bytes.

Standard library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..text.numbers import number
from .errors import FRAGMENTATION
from .request import Doubt

RESERVED_PERCENT = 2.0
"""What is added to the error of reserved memory.

On two H200s (DeepSpeed 0.19.8, ten trainings, stages 1 to 3) reserved memory was missed by up to
10.3 %, until the streams of the engine were simulated: measured again, by at most 0.12 %, allocated
memory by 0.02 %. Their blocks may be freed later than is assumed if the GPU lags behind, which was
not measured.
"""
UNMEASURED_PERCENT = 3.0
RESERVED = (
    "DeepSpeed's engine is simulated from its source (0.19). Ten trainings on two GPUs allocated "
    "and reserved what is predicted within 0.2 %; the rule for its streams was made from them, and "
    "other models may differ."
)
UNMEASURED = (
    "Offloading and gradients that do not lie together were compared with DeepSpeed on a CPU, and "
    "not measured on a GPU."
)
CHECKPOINTING = (
    "activation_checkpointing in DeepSpeed's file only changes models that call DeepSpeed's own "
    "checkpoint(); the model was traced as it is."
)
MOST_BYTES = 1 << 20
AUTO = "auto"
_HIDDEN = "the model's hidden_size"
_INSTEAD = {
    "train_micro_batch_size_per_gpu": "the batch of one GPU, or leave it out and use --batch",
    "train_batch_size": "batch × accumulation × ranks, or leave it out",
    "gradient_accumulation_steps": "a number, or leave it out and use --accumulate",
    "zero_optimization.reduce_bucket_size": f"{_HIDDEN} squared, as transformers does",
    "zero_optimization.stage3_prefetch_bucket_size": f"0.9 × {_HIDDEN} squared",
    "zero_optimization.stage3_param_persistence_threshold": f"10 × {_HIDDEN}, as transformers does",
    "bf16.enabled": "true or false",
    "fp16.enabled": "true or false",
    "gradient_clipping": "1.0",
}  # fmt: skip
"""What to write in place of the word "auto", which only transformers' Trainer replaces."""
_OFF: tuple[tuple[str, Any], ...] = (
    ("zero_optimization.zero_hpz_partition_size", 1),
    ("zero_optimization.zero_quantized_weights", False),
    ("zero_optimization.zero_quantized_nontrainable_weights", False),
    ("zero_optimization.zero_quantized_gradients", False),
    ("zero_optimization.mics_shard_size", -1),
    ("zero_optimization.zenflow", None),
    ("zero_optimization.round_robin_gradients", False),
    ("zero_optimization.stage3_use_all_reduce_for_fetch_params", False),
    ("zero_optimization.stage3_allgather_sequential", False),
    ("zero_optimization.stage3_module_granularity_threshold", 0),
    ("bf16.bf16_master_weights_and_grads", False),
    ("fp16.fp16_master_weights_and_grads", False),
    ("fp16.auto_cast", False),
    ("amp.enabled", False),
    ("torch_autocast.enabled", False),
    ("data_types.grad_accum_dtype", None),
    ("communication_data_type", None),
    ("tensor_parallel.autotp_size", 0),
    ("sparse_gradients", False),
    ("compression_training", None),
)
"""Settings that change memory and are not simulated, with the value that means off."""
_OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd", "adagrad": "adagrad"}


@dataclass(frozen=True, slots=True)
class Zero:
    """What a file says about the memory of one rank."""

    stage: int = 1
    kind: str = "fp32"
    """The type of the model: fp32, bf16 or fp16."""
    batch: int | None = None
    """The micro-batch of one GPU."""
    accumulate: int | None = None
    reduce_bucket: int = 500_000_000
    overlap: bool = False
    contiguous: bool = True
    reduce_scatter: bool = True
    offload_optimizer: bool = False
    offload_parameters: bool = False
    prefetch: int = 50_000_000
    persistence: int = 100_000
    model_persistence: int = sys.maxsize
    live: int = 1_000_000_000
    reuse: int = 1_000_000_000
    group: int = 1_000_000_000
    """The elements of one sub-group, which stage 3 updates at a time."""
    optimizer: str = ""
    """The optimizer that the file names; "" for that of the program."""
    plain: bool = False
    """Whether it is torch's own optimizer, instead of DeepSpeed's fused one."""
    checkpointing: bool = False
    """Whether the file configures DeepSpeed's own activation checkpointing."""

    def text(self) -> str:
        """Return it as text for a request; :meth:`of` reads it."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def doubts(self) -> Iterator[Doubt]:
        """Yield why a prediction with these settings is less certain."""
        yield Doubt(FRAGMENTATION, RESERVED, "deepspeed", RESERVED_PERCENT)
        if self.offload_optimizer or self.offload_parameters or not self.contiguous:
            yield Doubt("unmeasured", UNMEASURED, "deepspeed", UNMEASURED_PERCENT)
        if self.checkpointing:
            yield Doubt("unmeasured", CHECKPOINTING, "activation_checkpointing")

    @classmethod
    def of(cls, text: str) -> Zero:
        return cls(**json.loads(text))


def read(path: str, ranks: int) -> Zero:
    """Return what the file says, for ``ranks`` ranks. Raises :class:`UsageError`."""
    try:
        with Path(path).open("rb") as file:
            data = json.loads(file.read(MOST_BYTES))
    except OSError as error:
        raise UsageError(f"--deepspeed: {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--deepspeed: {path} is not JSON: {str(error)[:120]}") from None
    if not isinstance(data, dict):
        raise UsageError(f"--deepspeed: {path} holds no JSON object")
    return zero(data, ranks)


def zero(data: Mapping[str, Any], ranks: int) -> Zero:
    """Return what a configuration says. Raises :class:`UsageError`."""
    config = _Reader(data)
    part = "zero_optimization"
    if isinstance(data.get(part), bool):
        raise UsageError(
            f"--deepspeed: {part} as true or false is DeepSpeed's old form: write "
            f'"{part}": {{"stage": 1}}'
        )
    _reject(config)
    stage = config.number(f"{part}.stage", 0)
    if stage not in (1, 2, 3):
        more = ": stage 0 divides nothing, --parallel ddp is closest" if not stage else ""
        raise UsageError(f"--deepspeed: {part}.stage must be 1, 2 or 3, not {stage}{more}")
    bf16, fp16 = (config.flag(f"{name}.enabled", False) for name in ("bf16", "fp16"))
    if bf16 and fp16:
        raise UsageError("--deepspeed: bf16 and fp16 are both enabled: DeepSpeed takes one")
    accumulate = config.number("gradient_accumulation_steps", None, 1)
    offload = _offloads(config, "offload_optimizer", "cpu_offload")
    offload_parameters = _offloads(config, "offload_param", "cpu_offload_param")
    if offload_parameters and stage != 3:
        raise UsageError(f"--deepspeed: {part}.offload_param needs stage 3")
    parameters = config.section("optimizer.params")
    own = Zero()
    return Zero(
        stage=stage,
        kind="bf16" if bf16 else "fp16" if fp16 else "fp32",
        batch=_micro_batch(config, accumulate or 1, ranks),
        accumulate=accumulate,
        reduce_bucket=config.number(f"{part}.reduce_bucket_size", own.reduce_bucket),
        overlap=config.flag(f"{part}.overlap_comm", stage == 3),
        contiguous=config.flag(f"{part}.contiguous_gradients", True) or offload,
        reduce_scatter=config.flag(f"{part}.reduce_scatter", True),
        offload_optimizer=offload,
        offload_parameters=offload_parameters,
        prefetch=config.number(f"{part}.stage3_prefetch_bucket_size", own.prefetch),
        persistence=config.number(f"{part}.stage3_param_persistence_threshold", own.persistence),
        model_persistence=config.number(
            f"{part}.stage3_model_persistence_threshold", own.model_persistence
        ),
        live=config.number(f"{part}.stage3_max_live_parameters", own.live),
        reuse=config.number(f"{part}.stage3_max_reuse_distance", own.reuse),
        group=config.number(f"{part}.sub_group_size", own.group, 1),
        optimizer=_optimizer(config),
        plain=bool(parameters.get("torch_adam")),
        checkpointing=any(
            config.flag(f"activation_checkpointing.{name}", False)
            for name in ("partition_activations", "cpu_checkpointing")
        ),
    )


def _optimizer(config: _Reader) -> str:
    named = config.value("optimizer.type")
    if named is None:
        return ""
    found = _OPTIMIZERS.get(str(named).lower())
    if found is None:
        known = ", ".join(_OPTIMIZERS)
        raise UsageError(
            f"--deepspeed: the optimizer {str(named)[:40]} of DeepSpeed is not predicted: "
            f"one of {known}, or leave it out and use the program's own"
        )
    return found


def _micro_batch(config: _Reader, accumulate: int, ranks: int) -> int | None:
    micro: int | None = config.number("train_micro_batch_size_per_gpu", None, 1)
    total: int | None = config.number("train_batch_size", None, 1)
    if total is None:
        return micro
    if micro is None:
        micro = total // (accumulate * ranks)
    if micro * accumulate * ranks != total:
        raise UsageError(
            f"--deepspeed: train_batch_size {total} is not micro-batch {micro} × accumulation "
            f"{accumulate} × {ranks} ranks: change it, or --nproc"
        )
    return micro


def _offloads(config: _Reader, name: str, older: str) -> bool:
    if config.flag(f"zero_optimization.{older}", False):
        return True
    section = config.section(f"zero_optimization.{name}")
    device = section.get("device", "none")
    if device not in ("none", "cpu", "nvme", None):
        raise UsageError(f"--deepspeed: {name}.device is none, cpu or nvme, not {device!r}")
    if section.get("ratio", 1.0) != 1.0:
        raise UsageError(f"--deepspeed: {name}.ratio is not predicted: leave it out")
    return device in ("cpu", "nvme")


def _reject(config: _Reader) -> None:
    """Raise for settings that change memory and are not simulated."""
    for name, off in _OFF:
        value = config.value(name)
        if value not in (None, off):
            raise UsageError(
                f"--deepspeed: {name} changes the memory and is not predicted: leave it out",
                "",
                "calibrate on a running trainer instead: gpuscope predict PID",
            )


class _Reader:
    """Reads values by their path: ``zero_optimization.stage``."""

    def __init__(self, data: Mapping[str, Any]):
        self._data = data

    def value(self, path: str) -> Any:
        found: Any = self._data
        for name in path.split("."):
            if found is None:
                return None
            if not isinstance(found, Mapping):
                raise UsageError(f"--deepspeed: {path}: a JSON object was expected before .{name}")
            found = found.get(name)
        if found == AUTO:
            instead = _INSTEAD.get(path, "a value, or leave it out for DeepSpeed's own default")
            raise UsageError(
                f'--deepspeed: {path} is "auto", which only transformers\' Trainer replaces: put '
                f"{instead}"
            )
        return found

    def section(self, path: str) -> Mapping[str, Any]:
        found = self.value(path)
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            raise UsageError(f"--deepspeed: {path} must be a JSON object")
        return found

    def flag(self, path: str, default: bool) -> bool:
        found = self.value(path)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise UsageError(f"--deepspeed: {path} must be true or false, not {found!r}"[:200])
        return found

    def number(self, path: str, default: Any, least: int = 0) -> Any:
        """Return a whole number; DeepSpeed's examples write 5e8 as well."""
        found = self.value(path)
        if found is None:
            return default
        value = number(found)
        if value is None or value != int(value):
            raise UsageError(f"--deepspeed: {path} must be a whole number, not {found!r}"[:200])
        if value < least:
            raise UsageError(f"--deepspeed: {path} must be at least {least}, not {found}"[:200])
        return int(found)
