"""Run the gym's trainings in forks of one process that has imported torch.

The forks are those of ``tests/fakes/forked_scripts.py``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.fakes.forked_scripts import Run, Scripts

from .gym import Answer, ask_here, by_live, by_message, by_script
from .gym_subjects import Subject

SECONDS = 60.0
LIVE_SECONDS = 150.0
"""How long a cause may take to show: eight trainings share the cores with other tests."""


def start(scripts: Scripts, subject: Subject, words: Sequence[str], watch: bool) -> Run:
    """As python or torchrun would start it; with ``watch`` the probe is in it."""
    return scripts.start(
        subject.name,
        subject.script,
        words,
        nproc=subject.nproc,
        watch=watch,
        cwd=subject.script.parent,
        variables=subject.variables,
    )


def examined(scripts: Scripts, subject: Subject) -> list[Answer]:
    """By all the ways that are meant for it.

    What it prints is that of a run which came to its end: of one that is looked at alive it would
    be cut off anywhere, in the middle of what a log tells only as a whole.
    """
    answers = []
    if "script" in subject.kinds:
        answers.append(by_script(subject, ask_here))
    if "live" in subject.kinds:
        run = start(scripts, subject, subject.live_words, watch=True)
        try:
            until = time.monotonic() + SECONDS
            while run.alive() and not run.text and time.monotonic() < until:
                time.sleep(0.05)
            answer = by_live(
                replace(subject, after=0.0),
                run.processes[0].pid,
                run.alive,
                limit=LIVE_SECONDS,
                asking=ask_here,
            )
            answer.output = f"{'running' if run.alive() else 'ended'}: {run.text}"
            answers.append(answer)
        finally:
            run.end()
    if "message" in subject.kinds:
        answers.append(
            by_message(
                subject,
                start(scripts, subject, subject.words, watch=False).wait(SECONDS).text,
                ask_here,
            )
        )
    return answers


def all_of(subjects: Sequence[Subject], folder: Path, beside: int = 8) -> list[Answer]:
    """Run all of them on the CPU, ``beside`` each other.

    So many trainings want every core all the time.
    """
    # imports all that it needs
    ask_here("-", text="Traceback (most recent call last):\nRuntimeError: CUDA error")
    scripts = Scripts(folder, CUDA_VISIBLE_DEVICES="")
    try:
        with ThreadPoolExecutor(beside) as pool:
            return [
                answer
                for found in pool.map(lambda one: examined(scripts, one), subjects)
                for answer in found
            ]
    finally:
        scripts.end()
