"""Report a training whose loss stays NaN or infinite: it goes on, and nothing comes of it."""

from __future__ import annotations

from ..model.lost_loss import lost_loss
from ..store.view import JobView, TrainerView
from . import table
from .finding import Evidence, Finding
from .live_scene import WORDINGS, Findings, LiveScene, living, place
from .messages.loss_turn import GROWN_LOSS, LEAST_FINITE, grown

IN_FP16 = "loss.fp16"


def not_finite(scene: LiveScene, job: JobView) -> Findings:
    """Yield what is likely behind a loss that is not finite, in the order of the rules for logs.

    What the loss did before tells it, as far as it was watched; the log has more, and ``gpuscope
    doctor LOG`` reads it. That it trains in fp16 is known by its grad scaler.
    """
    found = lost_loss(scene.host, job, scene.history)
    if found is None:
        return
    trainer = found.member if isinstance(found.member, TrainerView) else None
    where = place(scene, trainer) if trainer is not None else f"pid {found.member.definition.pid}"
    by = "probe" if "log says" not in found.reason else "its log"
    if "–" in found.since:
        first = "NaN" if found.value == "nan" else "infinite loss"
        text = "the probe does not read" if by == "probe" else "its log does not print"
        evidence = [Evidence(f"{text} each step: the first {first} is in one of these", by)]
    else:
        evidence = [Evidence(found.reason, by)]
    if found.before:
        evidence.append(Evidence(f"the last finite loss that was seen is {found.before[-1]:.4g}"))
    figures: dict[str, object] = {
        "value": "NaN" if found.value == "nan" else "infinite",
        "since": found.place,
        "pids": " ".join(_pids(job)),
    }
    in_fp16 = trainer is not None and trainer.number("skipped_steps") is not None
    if in_fp16:
        scaler = Evidence(
            "it has a GradScaler, as for fp16, whose largest number is 65504", "probe"
        )
        yield _finding(IN_FP16, figures, where, [*evidence, scaler], 3.0)
    rule = "loss.turned"
    steps = grown(found.before, GROWN_LOSS)
    if steps:
        rule = "loss.diverged"
        figures |= steps
        evidence.append(
            Evidence(f"before it the loss grew from {steps['usual']} to {steps['grown']}")
        )
    elif len(found.before) >= LEAST_FINITE:
        rule = "loss.sudden"
        evidence.append(Evidence("the loss did not grow before it"))
    if rule != "loss.turned" or not in_fp16:  # which says no more than the finding on fp16
        yield _finding(rule, figures, where, evidence, 2.5)


def _finding(
    rule: str, figures: dict[str, object], where: str, evidence: list[Evidence], rank: float
) -> Finding:
    words = WORDINGS.findings[rule]
    fixes = [
        *WORDINGS.fixes(["end-lost-loss"], figures),
        *table.load()[words.pitfall].fixes_for(rule),
    ]
    return WORDINGS.finding(rule, figures, fixes, evidence=tuple(evidence), where=where, rank=rank)


def _pids(job: JobView) -> list[str]:
    return [str(one.definition.pid) for one in living(job) or job.processes][:16]
