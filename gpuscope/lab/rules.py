"""Find combinations of toggles that cannot run, or have no effect, before anything starts.

``check`` uses what its caller knows: a viewer without torch passes the few facts it has, and the
worker checks again with all facts. An unknown fact (None) is never a reason to refuse. Only the
standard library is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ..text.units import bytes_text, count_text
from . import metrics
from .config import LabConfig
from .run_facts import (
    CPU_PROCESSES,
    FIRST_FSDP2,
    PARAMETERS,
    RunFacts,
    fits,
    gpus,
    least_bytes,
    processes,
    ranks,
    smaller,
)
from .toggles import BY_NAME, fsdp_given

__all__ = [
    "PARAMETERS",
    "Level",
    "RuleVerdict",
    "RunFacts",
    "check",
    "gpus",
    "least_bytes",
    "processes",
    "ranks",
    "refusal",
]

Level = Literal["refuse", "warn"]

FIRST_CPU_FP16 = (2, 3)
FIRST_FUSED = {
    ("adamw", "cuda"): (2, 0),
    ("sgd", "cuda"): (2, 3),
    ("adamw", "cpu"): (2, 4),
    ("sgd", "cpu"): (2, 4),
}


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """A fault of a combination of toggles.

    ``nearest`` is one that is not refused; None if there is none.
    """

    level: Level
    what: str
    why: str
    nearest: LabConfig | None

    def failure(self) -> metrics.RunFailure:
        """Return a refusal as the record that ends a run."""
        return metrics.RunFailure(
            self.what, self.why, self.nearest.command() if self.nearest else "gpuscope lab --help"
        )

    def __str__(self) -> str:
        """Return a warning as one line."""
        return f"{self.what} {self.why[:1].upper()}{self.why[1:]}"


def check(config: LabConfig, facts: RunFacts) -> list[RuleVerdict]:
    """Return every verdict on ``config``, refusals first.

    Each ``nearest`` is itself not refused, and does not get the same verdict again.
    """
    found = [
        replace(verdict, nearest=_nearest_allowed(verdict, facts))
        for verdict in _judge(config, facts)
    ]
    return sorted(found, key=lambda verdict: verdict.level != "refuse")


def refusal(config: LabConfig, facts: RunFacts) -> RuleVerdict | None:
    """Return why ``config`` cannot run, None where it can."""
    return next((verdict for verdict in check(config, facts) if verdict.level == "refuse"), None)


def _nearest_allowed(verdict: RuleVerdict, facts: RunFacts) -> LabConfig | None:
    """Return the verdict's nearest combination, changed further until nothing refuses it."""
    nearest = verdict.nearest
    for _ in range(len(BY_NAME)):
        if nearest is None:
            return None
        again = list(_judge(nearest, facts))
        refusal = next((other for other in again if other.level == "refuse"), None)
        refusal = refusal or next((other for other in again if other.what == verdict.what), None)
        if refusal is None:
            return nearest
        nearest = refusal.nearest
    return None


def _judge(config: LabConfig, facts: RunFacts) -> Iterator[RuleVerdict]:
    for fault in (fault for rule in _RULES for fault in rule(config, facts)):
        change = fault.change
        nearest = replace(config, **change) if isinstance(change, dict) else change
        yield RuleVerdict(fault.level, fault.what, fault.why, nearest)


class Fault(NamedTuple):
    """What a rule finds, and the toggles that mend it, or a configuration that does, if any."""

    level: Level
    what: str
    why: str
    change: dict[str, Any] | LabConfig | None


def _refuse(what: str, why: str, **change: object) -> Fault:
    return Fault("refuse", what, why, change)


def _warn(what: str, why: str, **change: object) -> Fault:
    return Fault("warn", what, why, change)


# ── the rules ─────────────────────────────────────────────────────────────────────────────────────


def _device(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    if config.device == "cuda" and (facts.device_type == "cpu" or facts.gpus == 0):
        yield _refuse("The lab cannot train on cuda here.", "torch finds no GPU.", device="cpu")


def _cuda_only(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    if facts.device_type != "cpu":
        return
    for name in (
        "tf32",
        "empty_cache",
        "expandable_segments",
        "pin_memory",
        "non_blocking",
        "cudnn_benchmark",
    ):
        if getattr(config, name):
            yield _warn(
                f"{BY_NAME[name].flag} does nothing on a CPU.",
                "it is for CUDA only.",
                **{name: False},
            )
    if config.compile == "reduce-overhead":
        yield _warn(
            "--compile reduce-overhead is the same as default on a CPU.",
            "it adds only CUDA graphs, and a CPU has none.",
            compile="default",
        )


def _precision(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    if facts.device_type == "cpu":
        if config.amp == "fp16" and facts.older(FIRST_CPU_FP16):
            yield _refuse(
                "fp16 autocast does not work on a CPU here.",
                f"torch {facts.torch_version} has it for CUDA only; since torch 2.3 it also runs "
                "on a CPU.",
                amp="bf16",
            )
        elif config.amp == "fp16":
            yield _warn(
                "fp16 autocast on a CPU is slow.",
                "it works, but a step takes 10 to 30 times as long; bf16 is fast here.",
                amp="bf16",
            )
        return
    if facts.capability is None:
        return
    name = facts.gpu_name or "this GPU"
    if config.amp == "bf16" and facts.capability < (8, 0):
        yield _warn(
            "bf16 is emulated on this GPU, and slow.",
            f"{name} has no bf16 arithmetic; use fp16 here.",
            amp="fp16",
        )
    if config.amp == "fp16" and facts.capability < (7, 0):
        yield _warn(
            "fp16 is no faster on this GPU.",
            f"{name} has no tensor cores; fp16 saves only memory.",
            amp="off",
        )
    if config.tf32 and facts.capability < (8, 0):
        yield _warn("--tf32 does nothing on this GPU.", f"{name} has no TF32.", tf32=False)


def _optimizer(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    if config.factory:
        return
    if config.foreach and config.fused:
        yield _refuse(
            "--foreach and --fused exclude each other.",
            "they are two ways to run the optimizer step.",
            foreach=None,
        )
    first = FIRST_FUSED[config.optimizer, facts.device_type]
    if config.fused and facts.older(first):
        where = "a CPU" if facts.device_type == "cpu" else "CUDA"
        yield _refuse(
            f"There is no fused {config.optimizer} here.",
            f"torch {facts.torch_version} is older than {first[0]}.{first[1]}, the first with it "
            f"on {where}.",
            fused=None,
        )


def _compile(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    if config.compile == "off":
        if config.fullgraph:
            yield _warn(
                "--fullgraph does nothing.",
                "nothing is compiled: --compile is off.",
                fullgraph=False,
            )
        return
    if facts.has_compiler is False:
        cpu = facts.device_type == "cpu"
        missing = (
            "a C++ compiler, but there is no g++ (or $CXX)"
            if cpu
            else "Triton and a C compiler, but one is missing"
        )
        yield _refuse(
            "torch.compile cannot build its kernels here.",
            f"it needs {missing}.",
            compile="off",
            fullgraph=False,
        )
    if facts.device_type == "cpu" and " " in (facts.torch_folder or ""):
        yield _refuse(
            "torch.compile cannot build its kernels here.",
            f"torch is in a folder with a space in its name ({facts.torch_folder}), which breaks "
            f"the C++ compiler's command line. Use an environment in another folder.",
            compile="off",
            fullgraph=False,
        )
    if config.fullgraph and config.parallel == "ddp":
        yield _refuse(
            "--fullgraph cannot be combined with DDP.",
            "DDP's own forward pass breaks the graph in several places.",
            fullgraph=False,
        )
    if config.parallel == "dp" and facts.device_type == "cuda":
        yield _refuse(
            "torch.compile and DataParallel cannot be combined.",
            "DataParallel copies the model to each GPU in every step, and the compiled code does "
            "not work for the copies; use DDP.",
            parallel="ddp",
        )


def _loader(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    flags = {"workers": None, "pin_memory": False, "non_blocking": False, "prefetch": None}
    given = [BY_NAME[name].flag for name, unset in flags.items() if getattr(config, name) != unset]
    if config.factory:
        if given or config.loader != "synthetic":
            yield _warn(
                f"{', '.join(['--loader'] * (config.loader != 'synthetic') + given)} does nothing.",
                "your own model brings its own data.",
                loader="synthetic",
                **flags,
            )
        return
    if config.loader == "synthetic":
        if given:
            yield _warn(
                f"{', '.join(given)} does nothing.",
                "there is no DataLoader: --loader synthetic creates its batches on the GPU.",
                loader="workers",
            )
        return
    if config.workers == 0 and config.prefetch is not None:
        yield _refuse(
            "--prefetch needs workers.",
            "with --workers 0 each batch is loaded on demand.",
            prefetch=None,
        )
    if config.non_blocking and not config.pin_memory and facts.device_type == "cuda":
        yield _warn(
            "--non-blocking copies from pageable memory.",
            "such a copy waits for the host; pinned memory lets it overlap with compute.",
            pin_memory=True,
        )
    count = processes(config, facts)
    most = max(1 if count > 1 else 2, facts.cores // count)
    if config.workers is not None and config.workers > most:
        yield _warn(
            "There are more workers than cores.",
            f"{config.workers} workers{f' in each of {count} ranks' if count > 1 else ''} share "
            f"{count_text(facts.cores, 'core')}.",
            workers=most,
        )


def _fully_sharded(config: LabConfig, _: RunFacts) -> Iterator[Fault]:
    given = fsdp_given(config)
    if given and config.parallel != "fsdp":
        yield _warn(
            f"{', '.join(BY_NAME[name].flag for name in given)} does nothing.",
            f"--parallel is {config.parallel}, and these say how FSDP2 shards.",
            **{name: BY_NAME[name].default for name in given},
        )


def _parallel(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    if config.parallel == "none":
        if config.nproc is not None:
            yield _warn(
                "--nproc does nothing.", "--parallel is none: one process trains.", nproc=None
            )
        return
    if config.factory:
        yield _refuse(
            f"Your own model cannot train under --parallel {config.parallel}.",
            "its factory creates the optimizer and the forward pass before the model can be "
            "wrapped.",
            parallel="none",
            nproc=None,
        )
    if facts.device_type == "cuda":
        yield from _parallel_gpus(config, facts)
    elif config.parallel == "dp":
        yield _warn(
            "DataParallel does nothing on a CPU.",
            "it is for several GPUs in one process; on a CPU it has no effect.",
            parallel="none",
            nproc=None,
        )
    else:
        yield from _parallel_cpu(config, facts)
    if config.parallel == "fsdp" and facts.older(FIRST_FSDP2):
        yield _refuse(
            "This torch has no FSDP2.",
            f"torch {facts.torch_version} is older than 2.4.",
            parallel="ddp",
        )


def _parallel_gpus(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    wanted, there = gpus(config, facts), facts.gpus
    if there is not None and wanted > there > 0:
        what = "process" if config.processes else "GPU"
        why = "each process needs its own GPU" if config.processes else "torch finds no more"
        refused = count_text(wanted, what) + f" on {count_text(there, 'GPU')} cannot be."
        yield _refuse(refused, f"{why}.", nproc=there)
    elif wanted == 1 and there is not None and ranks(config, facts) == 1:
        does = {"dp": "splits no batch", "ddp": "reduces nothing", "fsdp": "shards nothing"}[
            config.parallel
        ]
        yield _warn(
            f"--parallel {config.parallel} on one GPU {does}.",
            "there is no other rank to share with.",
            parallel="none",
            nproc=None,
        )
    if (
        config.parallel == "dp"
        and config.batch is not None
        and config.batch < wanted <= (there or wanted)
    ):
        yield _warn(
            f"{count_text(wanted - config.batch, 'GPU')} will have nothing to do.",
            f"DataParallel splits a micro-batch of {config.batch} among {wanted} GPUs.",
            batch=wanted,
        )


def _parallel_cpu(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    count = processes(config, facts)
    most = max(8, 4 * facts.cores)
    if count > most and facts.processes is None:
        yield _refuse(
            f"{count_text(count, 'process')} on {count_text(facts.cores, 'core')} would mostly "
            "wait for each other.",
            f"each loads torch, about 300 MiB; the limit here is {most}.",
            nproc=max(2, facts.cores),
        )
    elif count > max(facts.cores, CPU_PROCESSES):
        yield _warn(
            f"{count_text(count, 'process')} share {count_text(facts.cores, 'core')}.",
            "a step takes longer than with fewer; this shows how it works, not how fast it is.",
            nproc=max(CPU_PROCESSES, facts.cores),
        )
    elif ranks(config, facts) == 1:
        yield _warn(
            f"--parallel {config.parallel} with one process "
            f"{'shards' if config.parallel == 'fsdp' else 'reduces'} nothing.",
            "there is no other rank to share with.",
            parallel="none",
            nproc=None,
        )


def _own_model(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    if not config.factory:
        return
    if config.checkpoint and facts.factory_takes_checkpoint is False:
        yield _refuse(
            f"{config.factory} cannot be checkpointed from outside.",
            "it has no keyword `checkpoint`, and only the model knows where its blocks are.",
            checkpoint=False,
        )
    flags = {"optimizer": "adamw", "foreach": None, "fused": None}
    given = [BY_NAME[name].flag for name, unset in flags.items() if getattr(config, name) != unset]
    if given:
        yield _warn(
            f"{', '.join(given)} does nothing.",
            "your own model brings its optimizer.",
            optimizer="adamw",
            foreach=None,
            fused=None,
        )


def _nothing_to_show(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    if config.cudnn_benchmark and config.deterministic and facts.device_type == "cuda":
        yield _warn(
            "--cudnn-benchmark contradicts --deterministic.",
            "it may pick another algorithm in the next run, and then results differ.",
            cudnn_benchmark=False,
        )
    if config.has_convolutions:
        return
    for name, there in (
        ("cudnn_benchmark", facts.device_type == "cuda"),
        ("channels_last", True),
    ):
        if getattr(config, name) and there:
            yield _warn(
                f"{BY_NAME[name].flag} does nothing for this model.",
                "it has no convolutions; use conv.",
                **{name: False},
            )


def _memory(config: LabConfig, facts: RunFacts) -> Iterator[Fault]:
    if fits(config, facts):
        return
    need, free = (
        least_bytes(config, facts) or 0,
        min((facts.free_bytes or [0])[: max(1, gpus(config, facts))]),
    )
    nearest = next((less for less in smaller(config, facts) if fits(less, facts)), None)
    where = (
        "each GPU"
        if gpus(config, facts) > 1
        else "the GPU"
        if facts.device_type == "cuda"
        else "memory"
    )
    why = (
        f"weights, gradients and optimizer state alone take {bytes_text(need)} of {where}, "
        f"and {bytes_text(free)} are free."
    )
    yield Fault("refuse", "The model does not fit.", why, nearest)


_RULES: tuple[Callable[[LabConfig, RunFacts], Iterator[Fault]], ...] = (
    _device, _parallel, _fully_sharded, _own_model, _precision, _optimizer, _compile, _loader,
    _cuda_only, _nothing_to_show, _memory,
)  # fmt: skip
