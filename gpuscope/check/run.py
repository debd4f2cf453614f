"""Check the chosen trainings, one after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ..errors import UserError
from ..predict.child import Tracer
from ..predict.request import CannotPredict
from ..text.units import MIB, bytes_text
from ..wire.clean import clean
from . import cause, judge, lock, revision, scripts, settings, steps
from .outcome import BaselineChange, BudgetVerdict, Checked, Outcome
from .predicted import Predicted, predicted
from .settings import CheckedTraining, Configuration

SOURCE_FOLDER = "src"
"""A folder next to the configuration in which modules are looked for, if it exists."""
GROWN = 0.01
"""The growth from which its line is searched for, if the training has no budget for it."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What the command line asks for."""

    names: Sequence[str] = ()
    base: str | None = None
    update: bool = False
    seconds: float = 300.0
    file: Path | None = None
    steps: int | None = None
    """How many steps of each training are timed; None: none."""
    hear: Callable[[str], None] = lambda _: None
    """Called with what is done next, for people who wait."""
    python: str | None = None


@dataclass(slots=True)
class _Base:
    """The older revision: its files, its configuration and what they lead to."""

    commit: revision.Revision
    changes: revision.RevisionDifference
    files: Path
    folder: Path
    """The folder in ``files`` that the configuration's folder is in the checkout."""
    trainings: Mapping[str, CheckedTraining]
    file: str
    """The configuration's name, relative to the top of the checkout."""
    notes: list[str] = field(default_factory=list)


def run(folder: Path, request: CheckRequest) -> Checked:
    """Check the trainings that the configuration of ``folder`` names. Raises :class:`UserError`."""
    began = time.monotonic()
    ends = began + request.seconds
    found = settings.read(folder, request.file)
    chosen = found.chosen(request.names)
    file = found.folder / lock.NAME
    known = baselines(file, request)
    root = revision.top(found.folder) or found.folder.resolve()
    checked = Checked(found, str(root))
    with ExitStack() as stack:
        tracer = stack.enter_context(_tracer(found, found.folder, request.python))
        _started(tracer)
        base = _base(found, request.base, stack) if request.base is not None else None
        for training in chosen:
            request.hear(f"predicting {training.name}")
            outcome = _one(training, tracer, str(root), ends, known.get(training.name))
            checked.outcomes.append(outcome)
            if base is not None and outcome.predicted is not None:
                request.hear(f"predicting {training.name} at {base.commit.words}")
                _compare(outcome, found, base, request, ends, known.get(training.name))
    times = _timed(checked, request, known) if request.steps is not None else {}
    scripts.look(checked)
    if request.update:
        _update(checked, file, known, times)
    checked.seconds = round(time.monotonic() - began, 3)
    return checked


def baselines(file: Path, request: CheckRequest) -> dict[str, lock.Baseline]:
    """Return what the lock says. Raises :class:`UserError` for one that cannot be read.

    A lock that is made anew as a whole may be damaged, as by a merge.
    """
    try:
        return lock.read(file)
    except UserError:
        if request.update and not request.names:
            return {}
        raise


def _one(
    training: CheckedTraining, tracer: Tracer, root: str, ends: float, known: lock.Baseline | None
) -> Outcome:
    began = time.monotonic()
    outcome = Outcome(training)
    seconds = max(1.0, ends - began)
    try:
        found = predicted(training, partial(tracer.trace, seconds=seconds), root, seconds)
    except CannotPredict as trouble:
        what, why, then = (clean(str(word), 600) for word in trouble.args[:3])
        text = " ".join(part for part in (what, why) if part)
        outcome.verdicts.append(
            BudgetVerdict("predicted", "unchecked", text, then, training.line("factory"))
        )
        return outcome
    outcome.predicted = found
    outcome.verdicts += judge.budgets(training, found)
    why_not = judge.usable(training, found, known)
    if why_not is not None or known is None:
        assert why_not is not None
        outcome.verdicts.append(why_not)
    else:
        judged = judge.regression(training, found, known.allocated_bytes, lock.NAME)
        outcome.verdicts += [judged] if judged else []
        now = lock.baseline(training, found)
        notes = (f"its settings were: {known.training}",) if known.training != now.training else ()
        rows = tuple(cause.parts_of_modules(known.modules, now.modules))
        outcome.change = BaselineChange(
            lock.NAME, False, known.allocated_bytes, now.allocated_bytes, rows, notes=notes
        )
    outcome.seconds = round(time.monotonic() - began, 3)
    return outcome


# ── the older revision ────────────────────────────────────────────────────────────────────────────


def _base(found: Configuration, name: str, stack: ExitStack) -> _Base:
    """Write the files of the revision into a temporary folder. Raises :class:`UserError`."""
    commit = revision.revision(found.folder, name)
    changes = revision.difference(commit)
    files = stack.enter_context(revision.tree(commit))
    inside = os.path.relpath(found.folder.resolve(), commit.root.resolve())
    file = os.path.normpath(os.path.join(inside, found.file.name))
    trainings: Mapping[str, CheckedTraining] = {}
    notes = []
    text = revision.text_at(commit, file)
    if text is not None:
        try:
            trainings = settings.parsed(found.file, text).trainings
        except UserError:
            pass  # its table is not there yet, or was written for another version
    if changes.uncommitted:
        notes.append("changes that are not committed yet are part of the difference")
    return _Base(commit, changes, files, files / inside, trainings, file, notes)


def _compare(
    outcome: Outcome,
    found: Configuration,
    base: _Base,
    request: CheckRequest,
    ends: float,
    known: lock.Baseline | None,
) -> None:
    """Predict a training at the older revision, and find what brought the difference."""
    training, after = outcome.training, outcome.predicted
    assert after is not None
    was = base.trainings.get(training.name, training)
    notes = list(base.notes)
    try:
        before = _predict_there(was, found, base, request.python, ends)
    except CannotPredict as trouble:
        outcome.verdicts.append(_not_there(training, base, trouble))
        return
    causes: list[cause.CostlyLine] = []
    grown = after.allocated_bytes - before.allocated_bytes
    if grown > _worth_a_look(training, before):
        request.hear(f"looking for the line that brought {bytes_text(grown)}")
        causes = _causes(training, was, before, after, found, base, request, ends)
        if not causes:
            notes.append("no single change adds it: look at the modules")
    outcome.change = BaselineChange(
        base.commit.words,
        True,
        before.allocated_bytes,
        after.allocated_bytes,
        tuple(cause.parts(before, after)),
        tuple(causes),
        tuple(notes),
    )
    if known is None or judge.usable(training, after, known) is not None:
        # Without a baseline that can be compared, the revision takes its place.
        judged = judge.regression(training, after, before.allocated_bytes, base.commit.words)
        if judged is not None:
            outcome.verdicts = [
                verdict for verdict in outcome.verdicts if verdict.kind != "baseline"
            ]
            outcome.verdicts.append(judged)


def _worth_a_look(training: CheckedTraining, before: Predicted) -> float:
    allowed = training.regression
    share = GROWN * before.allocated_bytes
    return max(MIB, share if allowed is None else min(share, allowed.of(before.allocated_bytes)))


def _causes(
    training: CheckedTraining,
    was: CheckedTraining,
    before: Predicted,
    after: Predicted,
    found: Configuration,
    base: _Base,
    request: CheckRequest,
    ends: float,
) -> list[cause.CostlyLine]:
    grown = after.allocated_bytes - before.allocated_bytes
    first: list[cause.CostlyLine] = []
    switched = was.request() != training.request()
    if switched:
        try:
            there = _predict_there(training, found, base, request.python, ends)
        except CannotPredict:
            return []  # the older code cannot run with these switches
        added = there.allocated_bytes - before.allocated_bytes
        if added >= cause.MENTIONED * grown:
            first.append(_of_switches(training, was, added, base))
        if added >= cause.ENOUGH * grown:
            return first
        before = there  # changes of the code are tried with the new switches
    changes = revision.RevisionDifference(
        tuple(hunk for hunk in base.changes.hunks if hunk.file != base.file),
        base.changes.new_files,
        base.changes.uncommitted,
    )
    more = cause.causes(
        before,
        after,
        changes,
        base.files,
        lambda: _predict_there(training, found, base, request.python, ends),
        ends,
        lambda names: revision.copy_new(base.commit, base.files, names),
    )
    if switched:
        more = [replace(one, proof="alone") if one.proof == "only" else one for one in more]
    return first + more


def _of_switches(
    training: CheckedTraining, was: CheckedTraining, added: int, base: _Base
) -> cause.CostlyLine:
    new, old = dict(training.switches), dict(was.switches)
    new["factory"], old["factory"] = training.model, was.model
    keys = [key for key in {**new, **old} if new.get(key) != old.get(key)]
    key = keys[0] if keys else ("fits" if training.fits else "card")

    def text_of_switches(values: Mapping[str, object]) -> str:
        return ", ".join(f"{key} = {values[key]}" for key in keys if key in values)

    line = training.line(key)
    return cause.CostlyLine(
        base.file, line, text_of_switches(new), text_of_switches(old), added, "alone"
    )


def _not_there(training: CheckedTraining, base: _Base, trouble: CannotPredict) -> BudgetVerdict:
    """Return the verdict if the training could not be predicted at the older revision."""
    what, why = (clean(str(word), 300) for word in trouble.args[:2])
    line = training.line("factory")
    if trouble.args[0].startswith(("There is no module", "The module")):
        text = f"new: {base.commit.words} does not have {training.model} yet"
        return BudgetVerdict("baseline", "info", text, line=line)
    text = f"could not be predicted at {base.commit.words}: {what} {why}"
    return BudgetVerdict("baseline", "warning", text, "compare with another revision", line)


def _predict_there(
    training: CheckedTraining, found: Configuration, base: _Base, python: str | None, ends: float
) -> Predicted:
    """Predict a training with the older revision's files as they are now."""
    if not base.folder.is_dir():
        raise CannotPredict(
            f"There is no module for {training.model}.", "its folder is not there.", "", "missing"
        )
    seconds = max(1.0, ends - time.monotonic())
    with _tracer(found, base.folder, python, base) as tracer:
        trace = partial(tracer.trace, seconds=seconds)
        there = predicted(training, trace, str(base.files), seconds)
    where = there.source.rpartition(":")[0]
    if where and base.files not in Path(where).resolve().parents:
        raise CannotPredict(
            f"{training.model} was imported from {where}, not from {base.commit.words}.",
            "an installed package comes first.",
            f'name the folder with its source in {found.file.name}: path = ["src"]',
            "elsewhere",
        )
    return there


# ── where modules are found ───────────────────────────────────────────────────────────────────────


def _path(found: Configuration, folder: Path) -> tuple[str, ...]:
    """Return the folders in which modules are looked for first."""
    return found.path or ((SOURCE_FOLDER,) if (folder / SOURCE_FOLDER).is_dir() else ())


def _tracer(
    found: Configuration, folder: Path, python: str | None, base: _Base | None = None
) -> Tracer:
    path = [str((folder / name).resolve()) for name in _path(found, folder)]
    if base is not None:
        # What the user's PYTHONPATH names inside the checkout is meant in the other revision.
        root = os.path.realpath(base.commit.root)
        for name in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            inside = os.path.relpath(os.path.realpath(name), root) if name else os.pardir
            if not inside.startswith(os.pardir):
                path.append(str(base.files / inside))
    return Tracer(python, str(folder), path, writes=base is None)


def _started(tracer: Tracer) -> None:
    """Start the child, so that it loads torch meanwhile.

    Its errors are reported when it is asked.
    """
    try:
        tracer.start()
    except CannotPredict:
        pass


# ── the lock ──────────────────────────────────────────────────────────────────────────────────────


def _timed(
    checked: Checked, request: CheckRequest, known: Mapping[str, lock.Baseline]
) -> dict[str, dict[str, lock.Timed]]:
    """Measure the steps of each training; returns them by training and machine."""
    found = checked.configuration
    times: dict[str, dict[str, lock.Timed]] = {}
    stopped = False
    for outcome in checked.outcomes:
        training = outcome.training
        path = [str(found.folder / name) for name in _path(found, found.folder)]
        try:
            if stopped:
                raise steps.WasStopped(f"{training.name} was not timed.", "One before was stopped.")
            measured = steps.measure(training, request.steps or 1, found.folder, path, request.hear)
        except steps.CannotTime as error:
            stopped = isinstance(error, steps.WasStopped)
            text = " ".join(part for part in (error.what, error.why) if part)
            outcome.verdicts.append(
                BudgetVerdict(
                    "step_time", "unchecked", text, error.next, training.line("step_time")
                )
            )
            continue
        times[training.name] = {measured.machine: measured.timed}
        old = known[training.name].times if training.name in known else {}
        outcome.verdicts += steps.verdicts(training, measured, old)
    return times


def _update(
    checked: Checked,
    file: Path,
    known: Mapping[str, lock.Baseline],
    times: Mapping[str, Mapping[str, lock.Timed]],
) -> None:
    new = {
        outcome.training.name: lock.baseline(
            outcome.training, outcome.predicted, times.get(outcome.training.name)
        )
        for outcome in checked.outcomes
        if outcome.predicted is not None
    }
    kept = {name: one for name, one in known.items() if name in checked.configuration.trainings}
    changed = lock.write(file, lock.merged(kept, new)) if new else False
    checked.updated = (
        f"{lock.NAME} was written: commit it."
        if changed
        else f"{lock.NAME} is as it was."
        if new
        else f"{lock.NAME} was not written: nothing could be predicted."
    )
    for outcome in checked.outcomes:
        # The new baseline is this prediction: there is nothing to compare.
        outcome.verdicts = [
            verdict
            for verdict in outcome.verdicts
            if verdict.kind not in ("baseline", "regression", "slower") or not outcome.predicted
        ]
