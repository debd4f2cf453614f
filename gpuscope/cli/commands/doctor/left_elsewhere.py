"""Examine what a dead job left on another host: ``user@host:DIR``, or ``slurm:JOB`` after its end.

A script goes through ssh and sends the files back, of long logs the parts that matter. They are
examined in a temporary folder here, and nothing is written there.
"""

from __future__ import annotations

import argparse
import re
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath

from ....attach import left_files
from ....attach.targets import SLURM, SSH, BadTarget, Target, checked_host, prefix_words
from ....attach.transport import through_prefix, through_ssh
from ....doctor import dead
from ....doctor.finding import Report
from ....process import child
from ....text.units import MIB
from ....wire.clean import clean

SECONDS = 600.0
ASK_SECONDS = 30.0
MOST_BYTES = 200 * MIB
"""The most bytes that are taken of the answer, which gzip has packed."""
MOST_UNPACKED = 600 * MIB
_PLACE = re.compile(r"(?P<host>[^@/\s:]+(?:@[^@/\s:]+)?):(?P<folder>[/~.].*)")
_PATH = re.compile(r"^\s*(StdOut|StdErr|WorkDir|LogDir)=(\S.*?)\s*$", re.M)
FIELDS = "JobID,State,ExitCode,NodeList,End,Start,MaxRSS,ReqMem,Timelimit"
"""The end comes before the start, because a line's first time is taken for that of its message."""


def is_place(text: str) -> bool:
    """Return whether a target names a folder or a file on another host."""
    return _PLACE.fullmatch(text) is not None and not Path(text).exists()


def examine(text: str, args: argparse.Namespace) -> Report:
    """Return the verdict on the job whose files are at ``user@host:DIR``."""
    match = _PLACE.fullmatch(text)
    if match is None:
        return Report(problems=(f"{clean(text, 200)}: not a folder on another host.",))
    try:
        target = Target(SSH, text, host=checked_host(match["host"], clean(text, 100)))
        return _examine_files(target, [match["folder"]], "-", args, clean(text, 200))
    except BadTarget as error:
        return Report(problems=(str(error),))


def examine_slurm(target: Target, args: argparse.Namespace) -> Report:
    """Return the verdict on a job of Slurm that has ended, from its logs and from ``sacct``."""
    job = target.job.partition(".")[0]
    name = clean(target.text, 200)
    if not (target.host or args.via or shutil.which("sacct") or shutil.which("scontrol")):
        there = f"gpuscope doctor slurm:{job}@LOGIN-NODE, or gpuscope doctor LOGS"
        return Report(problems=(f"{name}: Slurm's sacct is not on this host. Next: {there}",))
    words = ["sacct", "--jobs", job, "--parsable2", f"--format={FIELDS}"]
    account = child.ask(_words_to(target, words, args), ASK_SECONDS, keep_terminal=True)
    known = child.ask(
        _words_to(target, ["scontrol", "show", "job", job], args), ASK_SECONDS, keep_terminal=True
    )
    paths = dict(_PATH.findall(known.output.decode("utf-8", "replace")))
    if not paths:  # minutes after the end, slurmctld forgets a job, and only the accounting has it
        paths = _from_accounting(target, job, args)
    if not account.output.strip() and not paths:
        why = account.last_words or account.failure or "Slurm knows no such job"
        return Report(problems=(f"{name}: {clean(why, 200)}. Next: gpuscope doctor LOGS",))
    places = [paths[key] for key in ("StdOut", "StdErr") if key in paths]
    folder = paths.get("LogDir") or paths.get("WorkDir")
    extra = {f"sacct-{job}.txt": account.output}
    return _examine_files(
        target,
        list(dict.fromkeys([*places, *([folder] if folder else [])])),
        job,
        args,
        name,
        extra,
    )


def _from_accounting(target: Target, job: str, args: argparse.Namespace) -> dict[str, str]:
    """Return the folder in which a job was started, below which Slurm writes its output."""
    words = ["sacct", "--jobs", job, "--parsable2", "--noheader", "--allocations"]
    words = _words_to(target, [*words, "--format=WorkDir"], args)
    answer = child.ask(words, ASK_SECONDS, keep_terminal=True).output.decode("utf-8", "replace")
    folder = next((line.strip() for line in answer.splitlines() if line.startswith("/")), "")
    return {"WorkDir": folder} if folder else {}


def _words_to(target: Target, words: Sequence[str], args: argparse.Namespace) -> list[str]:
    """Return the words that run a command on a target's login node, or here."""
    there = list(words)
    if target.host:
        there = through_ssh(target.host, there, prefix_words(args.ssh_command))
    return through_prefix(prefix_words(args.via), there) if args.via else there


def _examine_files(
    target: Target,
    paths: Sequence[str],
    job: str,
    args: argparse.Namespace,
    name: str,
    extra: dict[str, bytes] | None = None,
) -> Report:
    folder = Path(tempfile.mkdtemp(prefix="gpuscope-job-"))
    try:
        problems = [] if not paths else _bring(target, paths, job, args, folder)
        for file, data in (extra or {}).items():
            if data.strip():
                (folder / file).write_bytes(data)
        report = dead.examine([folder], name, here=False) if any(folder.iterdir()) else Report()
        return report + Report(problems=tuple(f"{name}: {text}" for text in problems))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bring(
    target: Target, paths: Sequence[str], job: str, args: argparse.Namespace, folder: Path
) -> list[str]:
    """Bring the files here, and return what went wrong."""
    marker = f"gpuscope {secrets.token_hex(8)}"
    python = args.remote_python or "python3"
    words = [python, "-", marker, job if target.kind == SLURM else "-", *paths]
    script = Path(left_files.__file__).read_bytes()
    answer = child.ask(
        _words_to(target, words, args), SECONDS, max_bytes=MOST_BYTES, input=script,
        keep_terminal=True,
    )  # fmt: skip
    _, found, packed = answer.output.partition(b"\n" + marker.encode() + b"\n")
    if not found:
        why = answer.last_words or answer.failure or "it did not answer"
        return [f"its files could not be read there ({clean(why, 200)})."]
    try:
        count = unpack(packed, folder)
    except (tarfile.TarError, OSError, EOFError) as error:
        return [f"only a part of its files came ({clean(str(error), 200)})."]
    return [] if count else ["there are no files at that place."]


def unpack(packed: bytes, folder: Path) -> int:
    """Unpack the regular files of a tar below a folder, wherever their names point to.

    Raises OSError, EOFError and TarError.
    """
    count = size = 0
    with tarfile.open(fileobj=BytesIO(packed), mode="r|gz") as tar:
        for entry in tar:
            parts = [part for part in PurePosixPath(entry.name).parts if part not in ("/", "..")]
            size += max(entry.size, 0)
            source = tar.extractfile(entry) if entry.isreg() and parts else None
            if source is None or size > MOST_UNPACKED:
                continue
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read())
            count += 1
    return count
