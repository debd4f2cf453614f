"""Say where a training's wall-clock time goes, and what would make it faster: ``gpuscope why``.

The trainer's probe samples a few times a second what the training thread does. Unless told not to,
this verb lets it sample faster for a few seconds before it answers. For a training that has ended,
its black box or a recording has the same data.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from ...exit_status import ExitStatus
from ...missing_file import is_missing_file
from ...model.time_ledger import JUDGED_SECONDS
from ...text.units import window_text
from ...wire.clean import clean
from .. import remote
from ..args import flag, option, seconds_between
from ..progress_line import ProgressLine

if TYPE_CHECKING:
    from ...model.look import Look
    from ...model.useful_work import UsefulWork
    from ...store.view import HostView, TrainerView
    from ..time_document import TrainerTime
    from ..watched_host import ProbedTrainer, WatchedHost

LOOK_SECONDS = 4.0
"""Seconds of faster sampling: some 200 samples."""
ANSWER_SECONDS = 5.0
WHOLE_SECONDS = 9.2
"""Seconds until the answer, from the start or, of another host, from when it was reached. What does
not fit into them is left out, with a sentence."""
AFTER_LOOK_SECONDS, AFTER_WORK_SECONDS = 1.5, 0.7
"""What is left of them for the rest when the look has to be over, and the counting of a step."""
QUICK_SECONDS = 1.0
"""So long after its start, an answer without a look waits no more for the readings of the last
minutes, which say only what has changed in them, nor for a trainer that has said with its first
readings what it did in its last minutes."""
PROCESSES_SECONDS = 0.8
"""How long the processes of trainers are waited for: what their logs say comes with them."""
LEAST_WAIT_SECONDS = 0.05
MAX_REQUESTS = 60
"""How many trainers of one host are asked, because a connection allows 64 requests at a time."""


LATE_READINGS = (
    "The probe answers late: the training holds the GIL, or the host's cores are busy. What "
    "changed in the last minutes is left out, and an earlier GPU trace may be."
)


class NoAnswer(UserError):
    """The trainer's time is not known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show where the wall clock of a training goes, in rows that add up to it, and how much "
        "faster a step could be at most. The probe samples the stack of the training thread, "
        "traces the GPU for a few steps, and counts the FLOPs of one step: these give the MFU and "
        "the shortest time in which this GPU could compute the step (roofline floor)."
    )
    where = (
        "a trainer's PID, torchrun's PID for all ranks, the name of a job or its script, "
        "[USER@]HOST:PID, USER@HOST, a black box or a recording. Default: the only job here"
    )
    parser.add_argument("target", nargs="?", metavar="TARGET", help=where)
    flag(parser, "--json", "a JSON document instead of text")
    flag(
        parser,
        "--no-look",
        "answer at once from what is known. Otherwise the probe samples faster for "
        f"{LOOK_SECONDS:g} s, traces the GPU (which costs the training up to about 0.15 s, once) "
        "and counts the FLOPs of a step (which makes one step longer)",
    )
    option(
        parser,
        "--window SECONDS",
        f"how far to look back (default {JUDGED_SECONDS:g})",
        seconds_between(60.0, 3600.0),
        default=JUDGED_SECONDS,
    )
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Return 1 where the doctor would warn of what makes it slow, else 0; 3 where it is not known.

    A hang, a loss that is NaN, and a rank that the others wait for are worth a warning too.
    """
    if args.target and not args.via and _is_file(args, args.target):
        ranks = _of_file(args)
    else:
        import asyncio

        with contextlib.ExitStack() as stack:
            ranks = asyncio.run(_ask(args, *_place(args), stack))
    from .. import output, time_document, time_report

    if args.json:
        print(output.dump(time_document.document(args.target or "", ranks)))
    else:
        width = shutil.get_terminal_size((output.FILE_WIDTH, 24)).columns
        print("\n".join(time_report.text(ranks, width)))
    one = time_document.rank_to_report(ranks)
    if one.standstill is not None or any(each.lost for each in ranks):
        return ExitStatus.WARNINGS
    if not one.ledger.sure and not one.judged and not one.parts:
        return ExitStatus.UNCHECKED
    warned = any(each.warns for each in ranks)
    return ExitStatus.WARNINGS if warned or one.late is not None else ExitStatus.OK


def _is_file(args: argparse.Namespace, target: str) -> bool:
    """Return whether a file is meant, which may be missing. A job may be called by its script."""
    if target.isdigit():  # a PID needs nothing that reads files
        return False
    if target.endswith(".py") and (os.sep not in target or os.path.isfile(target)):
        return False
    from .. import past_trainers

    missing = is_missing_file(target) and not remote.is_remote(args, target)
    return missing or past_trainers.is_past(target)


def _place(args: argparse.Namespace) -> tuple[remote.Target, str]:
    """Return where to look, and the name of a job there, "" for none. Raises BadTarget."""
    text = args.target
    bare = text is not None and not text.isdigit() and not remote.is_remote(args, text)
    if text is None and not args.via:
        return remote.Target("local", ""), ""
    if bare:
        job = os.path.basename(text) if text.endswith(".py") else text
        return remote.Target("local", text), job
    return remote.one_place(args, text), ""


# ── of a running trainer ──


async def _ask(
    args: argparse.Namespace, place: remote.Target, job: str, stack: contextlib.ExitStack
) -> list[TrainerTime]:
    import asyncio
    from functools import partial

    from .. import one_trainer
    from ..trainers_of import trainers_of
    from ..watched_host import NoLook

    until = monotonic() + WHOLE_SECONDS
    one_trainer.check_exists(place, NoAnswer)
    async with one_trainer.host_at(args, place, stack) as there:
        loading = asyncio.create_task(asyncio.to_thread(_load))  # while the agent starts
        trainers = await trainers_of(
            there,
            place,
            "why",
            job,
            NoAnswer,
            at_once=args.no_look,
            words_for=partial(remote.words_for, args, place),
        )
        ranks = [there.reach(trainer) for trainer in trainers[:MAX_REQUESTS]]
        if place.is_remote:
            until = monotonic() + WHOLE_SECONDS
        close = 0.0 if args.no_look else LOOK_SECONDS
        problems, missing = await _request_ledgers(
            ranks, close, until, until - WHOLE_SECONDS + QUICK_SECONDS
        )
        looks: Mapping[int, tuple[Look | None, str]] = {}
        works: Mapping[int, tuple[UsefulWork | None, str]] = {}
        await loading
        if close and not all(problems):
            from .. import look, work

            if not args.json:
                look.announce(ranks[0])
                work.announce()
            line = ProgressLine(sys.stderr, not args.json)
            line.say(f"looking for {window_text(close)}")
            by_id = {one.trainer.id: one for one in ranks}
            try:
                looks, works = await _look_and_count(by_id, close, until)
                again, _ = await _request_ledgers(ranks, 0.0, until, until)
            finally:
                line.clear()
            problems = [
                before or (now and f"it did not answer again: {now}")
                for before, now in zip(problems, again, strict=True)
            ]
        with contextlib.suppress(NoLook):
            await there.until(partial(_told_of_losses, ranks), PROCESSES_SECONDS)
        reports = _time_reports(args, place, there, ranks, problems)
        if missing:
            reports = [_noted(one, one.note or LATE_READINGS) for one in reports]
        return [
            _with_answers(one, looks.get(rank.trainer.id), works.get(rank.trainer.id))
            for one, rank in zip(reports, ranks, strict=True)
        ]


def _with_answers(
    one: TrainerTime,
    seen: tuple[Look | None, str] | None,
    counted: tuple[UsefulWork | None, str] | None,
) -> TrainerTime:
    if one.standstill is not None and one.standstill.stalled:
        from ..look import in_a_hang

        return replace(one, look=in_a_hang(seen), work=in_a_hang(counted))
    return replace(one, look=seen, work=counted)


async def _look_and_count(
    ranks: Mapping[int, ProbedTrainer], close: float, until: float
) -> tuple[
    dict[int, tuple[Look | None, str]],
    dict[int, tuple[UsefulWork | None, str]],
]:
    """Trace the GPU of each rank, and count a step of each, while samples are taken for so long.

    A trainer does one of them at a time, so it counts afterwards, on all ranks in the same steps.
    Without a GPU there is nothing to trace, and a step that would be too long then is counted
    while samples are taken.
    """
    import asyncio

    from .. import look, work
    from ..watched_host import of_each

    began, left = monotonic(), until - AFTER_WORK_SECONDS - monotonic()

    def for_look(one: ProbedTrainer) -> float:
        room = max(left - work.needed_seconds(one), look.one_step_seconds(one))
        return min(until - AFTER_LOOK_SECONDS - began, room)

    async def traced(one: ProbedTrainer) -> tuple[Look | None, str]:
        return await look.take(one, for_look(one))

    async def counted(one: ProbedTrainer) -> tuple[UsefulWork | None, str]:
        return await work.take(one, until - AFTER_WORK_SECONDS - monotonic())

    async def both(
        one: ProbedTrainer,
    ) -> tuple[tuple[Look | None, str], tuple[UsefulWork | None, str]]:
        return await traced(one), await counted(one)

    early = {
        key: one
        for key, one in ranks.items()
        if not one.trainer.definition.cuda and work.needed_seconds(one) > left - close
    }
    others = {key: one for key, one in ranks.items() if key not in early}
    found, looks, _ = await asyncio.gather(
        of_each(early, both), of_each(others, traced), asyncio.sleep(close)
    )
    works = await of_each(others, counted)
    looks |= {key: seen for key, (seen, _) in found.items()}
    return looks, works | {key: known for key, (_, known) in found.items()}


def _told_of_losses(ranks: Sequence[ProbedTrainer], host: HostView, seconds: float) -> bool:
    """Return whether the loss of each trainer is known, or has been looked for in its log."""
    asked = {one.trainer.id for one in ranks}
    return all(
        one.process is not None or one.gone is not None or one.number("loss") is not None
        for one in host.trainers
        if one.id in asked
    )


def _load() -> None:
    """Import what the answer needs."""
    from .. import time_report, trainer_times, tune_offer  # noqa: F401


async def _request_ledgers(
    ranks: Sequence[ProbedTrainer], close_seconds: float, until: float, quick_until: float
) -> tuple[list[str], bool]:
    """Have trainers tell of their time, and of their readings at last. Return why each did not.

    Both are asked at once: a trainer whose collector holds the interpreter answers late. Return
    too whether something has not come: readings are waited for no longer than ``quick_until``,
    once all have told of their time. Without ``close_seconds``, neither is a trainer that has told
    of its last minutes before.
    """
    import asyncio

    patience = min(ANSWER_SECONDS, max(1.0, until - monotonic()))
    times = [asyncio.ensure_future(_ask_for_time(one, close_seconds, patience)) for one in ranks]
    if close_seconds:
        return await asyncio.gather(*times), False
    readings = [asyncio.ensure_future(_remembered(one, patience)) for one in ranks]
    await asyncio.wait([*times, *readings], timeout=max(0.0, quick_until - monotonic()))
    known = [one.done() or not _has_told(rank) for one, rank in zip(times, ranks, strict=True)]
    needed = [one for one, needs in zip(times, known, strict=True) if needs]
    problems = await asyncio.gather(*needed)
    left = max(LEAST_WAIT_SECONDS, quick_until - monotonic())
    _, late = await asyncio.wait([*times, *readings], timeout=left)
    for one in late:
        one.cancel()
    said = iter(problems)
    return [next(said) if needs else "" for needs in known], bool(late)


def _has_told(one: ProbedTrainer) -> bool:
    """Return whether a trainer has told of its last minutes, as its probe does without a question.

    It does so with its first readings.
    """
    host = one.store.view().host
    trainers = host.trainers if host is not None else ()
    return any(trainer.minutes for trainer in trainers if trainer.id == one.trainer.id)


async def _ask_for_time(one: ProbedTrainer, close_seconds: float, patience: float) -> str:
    """Ask a trainer for its time, and store the answer. Return why there was none."""
    from ...store.pending_requests import SourceError
    from .. import one_trainer

    args: dict[str, Any] = {"trainer": one.number}
    args |= {"close_seconds": close_seconds} if close_seconds else {}
    try:
        answer = await one.source.request("time", args, patience)
    except SourceError as error:
        return one_trainer.refusal(error.code, error.what, one.trainer.definition.pid)
    one.store.remember(one.source.key, one.trainer.id, "time", answer.value)
    return clean(str(answer.value.get("problem") or ""), 200)


async def _remembered(one: ProbedTrainer, patience: float) -> None:
    """Have a trainer tell its readings of the last minutes, for what changed in them."""
    from ...store.pending_requests import SourceError

    with contextlib.suppress(SourceError):
        answer = await one.source.request("recent", {"trainer": one.number}, patience)
        one.store.remember(one.source.key, one.trainer.id, "recent", answer.value)


def _time_reports(
    args: argparse.Namespace,
    place: remote.Target,
    there: WatchedHost,
    ranks: Sequence[ProbedTrainer],
    problems: Sequence[str],
) -> list[TrainerTime]:
    from .. import trainer_times, tune_offer
    from ..trainers_of import name_of_job

    key = there.source.key
    host = there.store.view().host
    assert host is not None
    now = {trainer.id: trainer for trainer in host.trainers}
    history = trainer_times.history_of(there.store, key)
    living = [now.get(one.trainer.id, one.trainer) for one in ranks]
    job = host.job_of(living[0])
    everyone = living if len(living) > 1 or job is None else job.trainers
    late = trainer_times.late_of(everyone, host, history, args.window)
    reports = []
    for one, problem in zip(ranks, problems, strict=True):
        trainer = now.get(one.trainer.id, one.trainer)
        itself = remote.words_for(args, place, trainer.definition.pid)
        # a job is asked again as it was asked; another place may need more than its name
        named = args.target if len(ranks) > 1 and not place.is_remote else None
        again = f"gpuscope why {quote(named) if named else itself}"
        note = problem if trainer.minutes else ""
        tune = "" if place.is_remote else tune_offer.offer(trainer)
        if trainer.gone is not None:
            from ...model.job_ends import has_ended, is_out_of_sight

            # A process that is taking itself down is still there when its probe has gone.
            note = "It has ended meanwhile, or its probe was detached."
            if not is_out_of_sight(trainer.gone):
                note = f"It {has_ended(trainer.gone)}."
        told = trainer_times.of_trainer(trainer, host, history, args.window, again, note, late)
        tune = "" if told.urgent else tune
        if told.urgent or told.standstill is not None:
            # not as typed: the doctor takes the name of a script for its file
            told = _noted(told, told.note or f"Evidence and other fixes: gpuscope doctor {itself}")
        reports.append(replace(told, tune=tune))
    if not any(one.is_known for one in reports):
        raise _unknown(next(filter(None, problems), ""), reports[0].pid)
    mates = [t for t in host.trainers if _is_mate(t, ranks[0].trainer)]
    if len(ranks) == 1 and mates and not reports[0].note:
        others = f"It is one of {len(mates) + 1} ranks {'there' if place.is_remote else 'here'}"
        # a job elsewhere cannot be asked by its name
        name = "" if place.is_remote or job is None else name_of_job(host, job)
        more = f"; all of them: gpuscope why {quote(name)}" if name else "."
        reports[0] = _noted(reports[0], others + more)
    return reports


def _is_mate(trainer: TrainerView, of: TrainerView) -> bool:
    if trainer.id == of.id or trainer.gone is not None or not of.definition.job:
        return False
    return trainer.definition.job == of.definition.job


def _noted(one: TrainerTime, note: str) -> TrainerTime:
    return replace(one, note=note)


def _unknown(problem: str, pid: int) -> NoAnswer:
    if "\n" in problem:
        return NoAnswer(problem)
    return NoAnswer(
        "the time of this training is not known yet.",
        problem or "the probe has only just started to measure",
        f"gpuscope why {pid}    again, after the first steps",
    )


# ── of one that has ended ──


def _of_file(args: argparse.Namespace) -> list[TrainerTime]:
    from ...store.past_file import LAST_SECONDS
    from .. import past_trainers, trainer_times

    name = clean(args.target, 200)
    past = past_trainers.read(args.target, max(LAST_SECONDS, args.window))
    jobs = past.jobs
    if not jobs:
        raise NoAnswer(
            past.problem or f"{name} contains no trainer.",
            next="gpuscope ps    names the black boxes of trainers that ended here",
        )
    found: list[list[TrainerTime]] = []
    for key, host, job in jobs:
        history = trainer_times.history_of(past.store, key)
        longest = trainer_times.of_job(job, host, history, args.window, "gpuscope why PID")
        found.append([one for one in longest if one.is_known])
    known = [longest for longest in found if longest]
    if not known:
        stepped = any(t.number("step") for _, _, job in jobs for t in job.trainers)
        why = (
            "the training ended, or the recording did, within seconds of its first step"
            if stepped
            else "the training ended before its first optimizer step"
        )
        raise NoAnswer(
            f"{name}: nothing in it says where the time went.",
            why,
            f"gpuscope doctor {quote(args.target)}    says what else it shows",
        )
    hang = [ranks for ranks in known if any(one.standstill is not None for one in ranks)]
    told = max(hang or known, key=lambda ranks: sum(one.ledger.seconds for one in ranks))
    notes = [f"Its end: {past.ended}."] if past.ended else []
    notes += [past.problem] if past.problem else []
    if len(known) > 1:
        which = "one that hangs" if hang else "longer one" if len(known) == 2 else "longest one"
        notes.append(f"It holds {len(known)} jobs; this is the {which}.")
    if hang:  # the last, so that nothing follows the command that is to be copied
        notes.append(f"What to do about the hang: gpuscope doctor {quote(args.target)}")
    return [_noted(one, " ".join(notes)) for one in told]
