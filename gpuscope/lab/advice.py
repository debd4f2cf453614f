"""Say why a run ended: what happened, why, and the nearest combination that does better."""

from __future__ import annotations

from ..wire.code_owner import last_own_line
from . import metrics
from .config import PRESETS, LabConfig
from .run_statistics import Tally

NO_COMPILER = (
    "Cannot find a working triton",
    "InvalidCxxCompiler",
    "No working C++ compiler",
    "CppCompileError",
)
MEMORY_ERRORS = ("OutOfMemoryError", "MemoryError")


def is_explained(error: BaseException) -> bool:
    """Say whether an exception was raised on purpose, with what, why and next."""
    return (
        type(error).__name__ in ("TrainingRefused", "BadFactory", "CannotJoin")
        and len(error.args) == 3
    )


def explain(
    error: BaseException, config: LabConfig, tally: Tally, batch: int | None = None
) -> metrics.RunFailure:
    """Return the failure for an exception of a run.

    ``batch`` is the micro-batch in use where the configuration leaves it to the preset.
    """
    if is_explained(error):
        return metrics.RunFailure(*error.args)
    text = " ".join(str(error).split())[:300] or type(error).__name__
    when = f"at step {tally.steps + 1}" if tally.started else "before the first step"
    again = config.command(steps=10) + " --headless"
    kind = type(error).__name__
    if kind in MEMORY_ERRORS or "can't allocate memory" in text or "out of memory" in text:
        return metrics.RunFailure(
            f"The lab ran out of memory {when}.", text, smaller(config, batch)
        )
    if config.compile != "off":
        if any(words in f"{kind} {text}" for words in NO_COMPILER):
            return metrics.RunFailure(
                f"torch.compile found no compiler {when}.",
                text,
                config.command(compile="off", fullgraph=False),
            )
        if config.fullgraph and kind in ("Unsupported", "UserError", "FailOnRecompileLimitHit"):
            return metrics.RunFailure(
                f"The model cannot be compiled as one graph ({when}).",
                text,
                config.command(fullgraph=False),
            )
    if config.deterministic and "deterministic" in text:
        return metrics.RunFailure(
            f"An operation of this model has no deterministic algorithm ({when}).",
            text,
            config.command(deterministic=False),
        )
    if "shared memory" in text or "Bus error" in text:
        return metrics.RunFailure(
            f"The DataLoader's processes ran out of shared memory {when}.",
            text,
            "df -h /dev/shm    or    " + config.command(workers=0, prefetch=None),
        )
    if config.factory:
        text += _where(error)
    return metrics.RunFailure(f"The lab's training ended {when} with {kind}.", text, again)


def smaller(config: LabConfig, batch: int | None) -> str:
    """Return the command of the nearest combination that needs less memory.

    That is half the micro-batch and twice the accumulation, which trains the same; then what
    lowers the rest.
    """
    batch = config.batch or batch
    if config.validate == "grad":
        return config.command(validate="no-grad")
    if batch is not None and batch > 1 and config.accumulate <= 2048 and not config.factory:
        return config.command(batch=batch // 2, accumulate=config.accumulate * 2)
    if not config.checkpoint and not config.factory:
        return config.command(checkpoint=True)
    if config.amp == "off":
        return config.command(amp="bf16")
    if config.factory:
        return config.command(batch=max(1, (batch or 2) // 2))
    if config.optimizer == "adamw":
        return config.command(optimizer="sgd")
    return config.command(
        model=PRESETS[config.model.split("-")[0]]["cpu"], batch=None, accumulate=1
    )


def _where(error: BaseException) -> str:
    line = last_own_line(error)
    return f" (at {line})" if line else ""
