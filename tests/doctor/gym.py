"""Run the pitfall gym.

Every script of ``demos/pitfalls`` and of ``tests/doctor/healthy`` is run for real, and the doctor
is asked as a user asks it: about what a script printed, about its process while it runs, about its
text.

``python -m tests.doctor.gym [--gpus N] [--only NAME,…] OUT`` runs what this machine has the GPUs
for and writes the table, every answer and every output to the folder OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.terminal import descendants
from tests.fakes import probe_client
from tests.fakes.program import program

from .gym_fixes import fixed_subjects
from .gym_subjects import Subject, meant_for, subjects

SECONDS = 120.0
FINE = "info"
"""What a healthy training may get at most."""


def environment(**more: str | None) -> dict[str, str]:
    """The tests' own, in which what this process imports can be imported too."""
    path = os.pathsep.join(filter(None, (str(probe_client.ROOT), os.environ.get("PYTHONPATH"))))
    return probe_client.environment(PYTHONPATH=path, **more)


# ── asking the doctor ─────────────────────────────────────────────────────────────────────────────


@dataclass
class Answer:
    """What the doctor said of one subject by one way, and how long that took."""

    subject: Subject
    kind: str
    document: dict[str, Any]
    seconds: float
    output: str = ""
    looks: int = 1

    @property
    def findings(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document.get("findings", [])
        return found

    @property
    def first(self) -> str:
        return str(self.findings[0]["pitfall"]) if self.findings else ""

    @property
    def loud(self) -> list[str]:
        """Findings of warning or worse, as ``pitfall (cause): title``."""
        return [
            f"{f['pitfall']} ({f['cause']}): {f['title']}"
            for f in self.findings
            if f["severity"] != FINE
        ]

    def wrong(self) -> str:
        """What is wrong with it, "" for nothing."""
        if not self.document:
            return f"no answer: {self.output[-600:]}"
        if self.kind == "live" and not self.document.get("examined"):
            return (
                f"nothing was examined in {self.looks} looks of {self.seconds:.0f} s: "
                f"{self.document.get('problems')}; the training {self.output[-600:]}"
            )
        if self.subject.named:
            said = [
                f"{f['severity']} {f['confidence']} {f['pitfall']} ({f['cause']})"
                for f in self.findings[:4]
            ]
            if self.first != self.subject.named:
                return (
                    f"{self.subject.named} is not named first: "
                    f"{said or self.document.get('problems')}"
                )
            return ""
        return "; ".join(self.loud)


def ask(*words: str, text: str | None = None, seconds: float = 60.0) -> tuple[dict[str, Any], str]:
    """``gpuscope doctor --json WORDS``: the document, and what went to standard error."""
    done = program(
        "doctor", "--json", *words, input=text, timeout=seconds, env=environment(), errors="replace"
    )
    try:
        return json.loads(done.stdout), done.stderr
    except ValueError:
        return {}, done.stdout + done.stderr


def ask_here(
    *words: str, text: str | None = None, seconds: float = 60.0
) -> tuple[dict[str, Any], str]:
    """The same without a process of its own: all that the verb does but print."""
    from gpuscope.cli.commands.doctor import targets as doctor_targets
    from gpuscope.doctor import report, table

    with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
        if text is not None:
            file.write(text)
            file.flush()
            words = (file.name,)
        settled = report.finish(doctor_targets.examine(words, False, 5.0), table.load())
    return json.loads(json.dumps(report.document(settled, report.exit_code(settled)))), ""


Asking = Callable[..., tuple[dict[str, Any], str]]


def by_script(subject: Subject, asking: Asking = ask) -> Answer:
    began = time.monotonic()
    document, error = asking(str(subject.script))
    return Answer(subject, "script", document, time.monotonic() - began, error)


def by_message(subject: Subject, output: str, asking: Asking = ask) -> Answer:
    began = time.monotonic()
    document, _ = asking("-", text=output)
    return Answer(subject, "message", document, time.monotonic() - began, output)


def by_live(
    subject: Subject, pid: int, alive: Callable[[], bool], limit: float = 40.0, asking: Asking = ask
) -> Answer:
    """Look at the process until the doctor has something to say.

    Somebody who waits for it does so. A healthy process is looked at once its steps are known, and
    again after ``subject.after`` seconds: what is worse counts.
    """
    began, looks = time.monotonic(), 0
    answer = Answer(subject, "live", {}, 0.0)
    while True:
        document, error = asking(str(pid), seconds=90)
        looks += 1
        gone = not alive()
        if document.get("examined") or not answer.document:
            answer = Answer(subject, "live", document, 0.0, error)
        answer.looks, answer.seconds = looks, time.monotonic() - began
        if subject.named:
            done = answer.first == subject.named
        else:
            known = bool(document.get("examined")) and not document.get("problems")
            done = bool(answer.loud) or (known and answer.seconds >= subject.after)
            if not done and known:
                time.sleep(max(0.0, min(5.0, subject.after - answer.seconds)))
        if done or gone or answer.seconds > limit + subject.after:
            return answer


# ── running ───────────────────────────────────────────────────────────────────────────────────────


def printed(subject: Subject, seconds: float = SECONDS) -> str:
    """Everything it prints, its errors too, without a probe."""
    done = subprocess.run(
        subject.argv(sys.executable, subject.words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**subject.variables),
        timeout=seconds,
        errors="replace",
    )
    return done.stdout


@contextmanager
def watched(subject: Subject, output: Path) -> Iterator[subprocess.Popen[str]]:
    """It runs under ``gpuscope run``; ended with the block."""
    command = [sys.executable, "-m", "gpuscope", "run", "--no-doctor", "--"]
    with output.open("w") as file:
        process = subprocess.Popen(
            [*command, *subject.argv(sys.executable, subject.live_words)],
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(**subject.variables),
            start_new_session=True,
        )
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process with every process it has started.

    torchrun's workers have sessions of their own, and what is left of one training would keep the
    GPUs busy under the next.
    """
    started = descendants(process.pid)
    for ending in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, ending)
            process.wait(8)
            break
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            pass
    for pid in started:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait(30)


def looked_at(subject: Subject, folder: Path, begun: float = 60.0) -> tuple[Answer, str]:
    """Start a subject under the probe, and look when it has begun to print.

    It gets time to end by itself where it is to fail. What it printed is returned too.
    """
    output = folder / f"{subject.name.replace(' ', '-')}.txt"
    with watched(subject, output) as process:
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < begun and not _own(output):
            time.sleep(0.1)
        if subject.named:
            time.sleep(subject.after)
        if subject.attach:
            attach(process.pid)
        if subject.look:
            take_a_look(process.pid)
        answer = by_live(subject, process.pid, lambda: process.poll() is None)
        if subject.named and "message" in subject.kinds:
            process.wait(60)
    return answer, _own(output)


def _own(output: Path) -> str:
    """What the script itself printed: what ``gpuscope run`` says before it is one line."""
    lines = output.read_text(errors="replace").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("gpuscope:"))


def attach(pid: int) -> None:
    """Start the probe of a process in which nothing starts it; one that has started stays."""
    words = [sys.executable, "-m", "gpuscope", "attach", str(pid), "--inject", "--yes"]
    subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment())


def take_a_look(pid: int) -> None:
    """Look at the device of a training, as who asks why it is slow does."""
    words = [sys.executable, "-m", "gpuscope", "why", str(pid), "--json"]
    subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment())


def examined(subject: Subject, folder: Path) -> list[Answer]:
    """By all the ways that are meant for it, in one run where that does."""
    answers, output = [], None
    if "script" in subject.kinds:
        answers.append(by_script(subject))
    if "live" in subject.kinds:
        answer, output = looked_at(subject, folder)
        answers.append(answer)
    if "message" in subject.kinds:
        answers.append(by_message(subject, printed(subject) if output is None else output))
    return answers


# ── on a machine with GPUs ────────────────────────────────────────────────────────────────────────


def run_all(
    chosen: Sequence[Subject], folder: Path, beside: int, told: Callable[[Answer], None]
) -> list[Answer]:
    """Run all subjects.

    First come those that need little of the card, ``beside`` each other, the slow ones first; then
    the others in turn.
    """

    def one(subject: Subject) -> list[Answer]:
        try:
            found = examined(subject, folder)
        except (subprocess.SubprocessError, OSError) as error:
            found = [Answer(subject, "none", {}, 0.0, f"{type(error).__name__}: {error}")]
        for answer in found:
            told(answer)
        return found

    together = sorted((s for s in chosen if not s.alone), key=lambda s: -s.after)
    with ThreadPoolExecutor(beside) as pool:
        answers = [answer for found in pool.map(one, together) for answer in found]
    return answers + [answer for subject in chosen if subject.alone for answer in one(subject)]


def line_of(answer: Answer) -> str:
    """One line of the table."""
    subject, wrong = answer.subject, answer.wrong()
    said = [
        f"{f['severity']} {f['confidence']} {f['pitfall']} ({f['cause']})"
        for f in answer.findings[:4]
    ]
    verdict = f"WRONG: {wrong}" if wrong else "ok"
    name = f"{subject.name:34} {answer.kind:8} {answer.seconds:5.1f} s x{answer.looks}"
    return f"{name} {verdict} | {'; '.join(said) or 'no finding'}"


def main() -> int:
    """0: everything is as it should be; 1: something is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument(
        "--only", default="", help="names, or how they begin, with commas between them"
    )
    parser.add_argument("--beside", type=int, default=2)
    args = parser.parse_args()
    folder = args.out / "outputs"
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [
        one for one in subjects([*filter(None, args.only.split(","))]) if meant_for(one, args.gpus)
    ]
    if args.gpus and not args.only:
        chosen += fixed_subjects(args.gpus, folder)
    lock, began = threading.Lock(), time.monotonic()
    with (args.out / "answers.jsonl").open("w") as file:

        def told(answer: Answer) -> None:
            row = {
                "name": answer.subject.name,
                "kind": answer.kind,
                "wrong": answer.wrong(),
                "seconds": answer.seconds,
                "looks": answer.looks,
                "document": answer.document,
                "output": answer.output[-4000:],
            }
            with lock:
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"{time.monotonic() - began:6.1f} {line_of(answer)}", flush=True)
                if answer.kind == "message":
                    (folder / f"{answer.subject.name.replace(' ', '-')}.message.txt").write_text(
                        answer.output
                    )

        answers = run_all(chosen, folder, args.beside, told)
    wrong = [answer for answer in answers if answer.wrong()]
    print(f"{len(answers)} answers, {len(wrong)} wrong, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
