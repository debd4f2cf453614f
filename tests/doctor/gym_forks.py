"""Runs scripts in forks of one process that has imported torch: dozens of trainings for the price of one import."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from .gym import Answer, ask_here, by_live, by_message, by_script, environment
from .gym_subjects import Subject

SECONDS = 60.0
SERVER = """
import json, os, runpy, signal, sys, traceback
import gpuscope, gpuscope.probe
import torch, torch.distributed, torch.nn.parallel, torch.utils.data
torch.optim.AdamW([torch.zeros(1)])  # the first optimizer imports the compiler

def become(argv, variables, output, watch):
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.setsid()
    os.dup2(file, 1), os.dup2(file, 2)
    os.environ.update(variables)
    sys.argv, code = argv, 0
    sys.path[0] = os.path.dirname(argv[0])
    os.chdir(sys.path[0])
    if watch:
        gpuscope.watch()
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    what, *words = json.loads(line)
    if what == "fork":
        answer = os.fork()
        if not answer:
            become(*words)
    else:
        pid, status = os.waitpid(words[0], os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if pid else None
    print(json.dumps(answer), flush=True)
"""


class Run:
    """One script that was started: ``pids`` of its ranks, the first of them asked about."""

    def __init__(self, forks: Forks, pids: list[int], output: Path) -> None:
        self.forks, self.pids, self.output = forks, pids, output
        self._codes: dict[int, int] = {}

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def alive(self) -> bool:
        for pid in self.pids:
            if pid not in self._codes:
                code = self.forks.say("poll", pid)
                if code is not None:
                    self._codes[pid] = code
        return len(self._codes) < len(self.pids)

    def wait(self, seconds: float) -> str:
        """Its output, once it has ended. Raises :class:`AssertionError` where that takes longer."""
        until = time.monotonic() + seconds
        while self.alive():
            assert time.monotonic() < until, f"not done in {seconds:g} s: {self.text[-2000:]}"
            time.sleep(0.02)
        return self.text

    def end(self) -> None:
        for pid in self.pids:
            if pid not in self._codes:
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        until = time.monotonic() + 10
        while self.alive() and time.monotonic() < until:
            time.sleep(0.01)


class Forks:
    """``variables``: of the environment of all of them."""

    def __init__(self, folder: Path, **variables: str | None) -> None:
        self.folder, self._count, self._lock = folder, 0, threading.Lock()
        self._runs: list[Run] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], env=environment(PYTHONUNBUFFERED=None, **variables), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def say(self, *words: Any) -> Any:
        with self._lock:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(json.dumps(words) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        assert answer, "the process that forks has ended"
        return json.loads(answer)

    def start(self, subject: Subject, words: Sequence[str], watch: bool) -> Run:
        """As python or torchrun would start it; with ``watch`` the probe is in it."""
        ranks: list[dict[str, str]] = [{}]
        if subject.nproc:
            common = {"WORLD_SIZE": str(subject.nproc), "LOCAL_WORLD_SIZE": str(subject.nproc)}
            common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
            ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(subject.nproc)]
        self._count += 1
        output = self.folder / f"{self._count}-{subject.name.replace(' ', '-')}.txt"
        argv = [str(subject.script), *words]
        pids = [self.say("fork", argv, {**subject.variables, **rank}, str(output), watch) for rank in ranks]
        run = Run(self, pids, output)
        self._runs.append(run)
        return run

    def end(self) -> None:
        for run in self._runs:
            run.end()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def examined(forks: Forks, subject: Subject) -> list[Answer]:
    """By all the ways that are meant for it. A healthy one runs once, for its figures and for its output."""
    answers, output = [], None
    if "script" in subject.kinds:
        answers.append(by_script(subject, ask_here))
    if "live" in subject.kinds:
        run = forks.start(subject, subject.live_words, watch=True)
        try:
            until = time.monotonic() + SECONDS
            while run.alive() and not run.text and time.monotonic() < until:
                time.sleep(0.05)
            answers.append(by_live(replace(subject, after=0.0), run.pids[0], run.alive, asking=ask_here))
            output = run.text
        finally:
            run.end()
    if "message" in subject.kinds:
        text = output if output is not None else forks.start(subject, subject.words, watch=False).wait(SECONDS)
        answers.append(by_message(subject, text, ask_here))
    return answers


def all_of(subjects: Sequence[Subject], folder: Path, beside: int = 8) -> list[Answer]:
    """All of them on the CPU, ``beside`` each other: so many trainings want every core all the time."""
    ask_here("-", text="Traceback (most recent call last):\nRuntimeError: CUDA error")  # imports all that it needs
    forks = Forks(folder, CUDA_VISIBLE_DEVICES="")
    try:
        with ThreadPoolExecutor(beside) as pool:
            return [answer for found in pool.map(lambda one: examined(forks, one), subjects) for answer in found]
    finally:
        forks.end()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
