"""Judge how often DistributedDataParallel reduces gradients in a step."""

from __future__ import annotations

from ..model.time_ledger import TimeLedger, recent
from ..store.view import JobView, TrainerView
from ..text.units import duration_text
from .finding import Evidence
from .live_causes import MIN_LOOKS, gain
from .live_scene import MIN_STEPS, WORDINGS, Findings, LiveScene, living, place

WARNED = 0.10
"""The share of the wall clock from which the reductions that one would save are a warning."""


def syncs_in_each_micro_batch(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding where DistributedDataParallel reduces gradients several times a step."""
    for trainer in living(job):
        ledger = recent(trainer)
        if not trainer.minutes or ledger.looks < MIN_LOOKS or ledger.steps < MIN_STEPS:
            continue
        syncs = trainer.minutes[-1].get("gradient_syncs")
        if not isinstance(syncs, int) or syncs < 2:
            continue
        took, step, source = _communication(scene, trainer, ledger)
        share = won_by_one_sync(took, step, syncs)
        text = f"gradients are reduced {syncs} times a step"
        if took is not None and step:
            text += f"; {duration_text(took)} of the {duration_text(step)} of a step wait for it"
        yield WORDINGS.finding(
            "live.syncs_each_micro_batch",
            {"syncs": syncs},
            severity="warning" if share is not None and share >= WARNED else "info",
            evidence=(Evidence(text, source),),
            where=place(scene, trainer),
            rank=share or 0.0,
            effect=None
            if share is None
            else gain(share, (share, share), step, "communication that one reduction would save"),
        )
        return


def _communication(
    scene: LiveScene, trainer: TrainerView, ledger: TimeLedger
) -> tuple[float | None, float | None, str]:
    """Return the part of a step that waits for reductions, the step, and the source of both.

    A look at the device has seen what nothing hides; torch's own figure is of one step in a
    hundred.
    """
    look = scene.look(trainer)
    row = look.row("communication") if look is not None else None
    if look is not None and row is not None:
        return row.seconds / look.steps, look.step_seconds, "GPU trace"
    return trainer.number("communication_seconds"), ledger.step_seconds, "probe"


def won_by_one_sync(took: float | None, step: float | None, syncs: int) -> float | None:
    """Return what share of a step is saved at most by reducing once, not ``syncs`` times."""
    if took is None or not step:
        return None
    return min(took / step, 1.0) * (syncs - 1) / syncs
