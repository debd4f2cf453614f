"""Sort the ranks of a job before it is judged: failed, waiting, made to end, or silent."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from functools import cached_property

from ...model.job_ends import killed_by
from ...snapshot.model import Frame
from ...text.ranges import named_ranges
from ...wire.clean import limited
from ..finding import Evidence
from . import rules
from .collect import LOOSE
from .desync import Compared, compare
from .model import Call, Failure, Job, Moment, Rank

COLLECTIVE = re.compile(
    r"distributed/(?:distributed_c10d|_functional_collectives|nn/functional)\.py|nn/parallel/distributed\.py"
    r"|algorithms/join\.py|fsdp/_|autograd/(?:graph|__init__)\.py|torch/cuda/(?:__init__|streams)\.py"
)
"""Files of torch in which a rank waits for others; gradients are reduced during backward."""
_WAITS = re.compile(
    r"^(?:all_?reduce|broadcast\w*|barrier|monitored_barrier|all_?gather\w*|reduce_?scatter\w*|reduce"
    r"|gather\w*|scatter\w*|all_?to_?all\w*|i?send|i?recv|batch_isend_irecv|wait|synchronize"
    r"|_all_gather\w*|_reduce_scatter\w*|_engine_run_backward|run_backward)$"
)
_SOURCE_FILE = re.compile(
    r"(?:\[[EWIF]\d{4} [\d:.]+ )?\[?(?:enforce fail at )?/?[\w./-]+\.(?:cc|cpp|h|cu):\d+\]\s?"
)
_SAID_OF_EVERY_CUDA_ERROR = re.compile(
    r"\s+(?:Search for `cuda\w+' in https?:|CUDA kernel errors might be asynchronously).*", re.S
)
POINT_TO_POINT = frozenset(("send", "recv", "isend", "irecv", "batch_isend_irecv"))
"""The calls of torch with which one rank gives data to another."""
LOADER = re.compile(
    r"__getitem__|__next__|__iter__|collate|dataload|dataset|_next_data|_try_get|fetch|sampler|read_shard"
    r"|prefetch|(?:get|next|make|fetch|read|load|open|parse|decode|tokeni[sz]e|download|wait(?:_for)?)_\w*"
    r"(?:batch|row|example|sample|input|shard|part|chunk|data|file|line|record|image|token)",
    re.I,
)


class Scene:
    """A job with what the rules ask of it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks = {n: rank for n, rank in sorted(job.ranks.items()) if n != LOOSE}
        self.loose = job.ranks.get(LOOSE) or Rank(LOOSE)
        self.world = max(job.world or 0, 1 + max(self.ranks, default=-1))
        self.listed = any(rank.exit is not None for rank in self.ranks.values())

    @cached_property
    def compared(self) -> Compared:
        """What the flight recorders show."""
        return compare(self.job)

    @cached_property
    def own_failures(self) -> dict[int, Failure]:
        """The exception of its own that ended each rank, for the ranks that have one."""
        found = {}
        for number, rank in self.ranks.items():
            failure = fatal(rank)
            if failure is not None and failure.means == "cause":
                found[number] = failure
            elif failure is not None and self._failed_before_it_waited(number, failure):
                failure.first, failure.means, failure.kind = 0, "cause", "before-waiting"
                failure.cause = rules.of_message(failure.text) or "dead.exception"
                found[number] = failure
        return found

    def _failed_before_it_waited(self, number: int, failure: Failure) -> bool:
        """Return whether an exception that only this rank has came before it waited for others.

        It then waited in a ``finally`` or a handler, where the others do not come.
        """
        first = failure.chain[0]
        if failure.first == 0 or re.match(r"(?:\w+\.)*(?:StopIteration|Empty)\b", first):
            return False
        others = [one for n, rank in self.ranks.items() if n != number for one in rank.failures]
        return bool(others) and not any(one.chain[0] == first for one in others)

    @cached_property
    def aborts(self) -> list[Failure]:
        """The errors that a thread of C++ raised, which ends its process by SIGABRT."""
        ranks = [*self.ranks.values(), self.loose]
        found = [one for rank in ranks for one in rank.failures if not one.frames]
        return [one for one in found if one.kind == "size" or one.means == "effect"]

    @cached_property
    def loose_causes(self) -> list[Failure]:
        """The exceptions that are a cause by themselves, and that no file gives to a rank."""
        return [one for one in self.loose.failures if one.means == "cause"]

    @cached_property
    def aborted(self) -> list[int]:
        """The ranks that ended by SIGABRT although nobody made them end."""
        return [
            number
            for number, rank in self.ranks.items()
            if rank.exit is not None and rank.exit.code == -signal.SIGABRT and rank.told is None
        ]

    @cached_property
    def waiting(self) -> set[int]:
        """The ranks that say that others failed them, or that are known to wait in a collective."""
        return {
            number
            for number, rank in self.ranks.items()
            if number not in self.own_failures and (rank.waited or waits(rank))
        }

    @cached_property
    def timed_out(self) -> bool:
        """Whether ranks waited until a time limit, and did not lose a connection at once."""
        return any(
            re.search(r"timed? ?out|timeout|monitoredBarrier", one.text, re.I)
            for rank in self.ranks.values()
            for one in rank.effects()
        )

    @cached_property
    def lost_connections(self) -> bool:
        """Whether ranks lost their connection to one that went away."""
        return any(
            re.search(r"Connection (?:closed|reset) by peer|Socket closed", one.text)
            for rank in self.ranks.values()
            for one in rank.effects()
        )

    @cached_property
    def silent(self) -> list[int]:
        """The ranks that neither failed by themselves nor said that they waited."""
        return [
            number
            for number in range(self.world)
            if number not in self.own_failures and number not in self.waiting
        ]

    @cached_property
    def hosts(self) -> dict[str, list[int]]:
        """The ranks of each host that something names."""
        found: dict[str, list[int]] = {}
        for number, rank in self.ranks.items():
            if rank.host:
                found.setdefault(rank.host, []).append(number)
        return found

    @cached_property
    def moments_of_trouble(self) -> bool:
        """Whether any message says that something failed, or that somebody ended the job."""
        return any(one.means in ("cause", "told") for one in self.job.all_moments())

    def moments(self, *rules: str) -> list[Moment]:
        """Return the messages that one of these rules found, the earliest first."""
        found = [one for one in self.job.all_moments() if one.rule in rules]
        return sorted(found, key=lambda one: one.time or 0.0)

    def get(self, number: int) -> Rank:
        """Return a rank, also one that left nothing."""
        return self.ranks.get(number) or Rank(number)


def fatal(rank: Rank) -> Failure | None:
    """Return the exception that ended a rank."""
    found = [one for one in rank.failures if one.means != "fact"]
    own = [one for one in found if one.means == "cause"]
    if not found:
        return None
    in_file = [one for one in found if one.source.endswith(".json")]
    last = in_file[-1] if in_file else found[-1]
    return last if last.means == "cause" or not own else own[-1]


def own_frame(frames: Sequence[Frame], innermost_last: bool) -> Frame | None:
    """Return the innermost frame of the user's own code."""
    ordered = frames[::-1] if innermost_last else frames
    return next((frame for frame in ordered if frame.own), None)


def collective_of(frames: Iterable[Frame]) -> str:
    """Return the collective that a stack is in, or nothing."""
    names = []
    for frame in frames:
        function = frame.function.rpartition(".")[2]
        if COLLECTIVE.search(frame.file) and _WAITS.match(function):
            names.append("backward" if "backward" in function else function)
    named = [name for name in names if name not in ("wait", "synchronize", "backward")]
    first = (named or names or [""])[0]
    return first[1:] if first in ("isend", "irecv") and first[1:] in named else first


def waits(rank: Rank) -> bool:
    """Return whether the last stack of a rank is inside a collective."""
    return bool(rank.stacks) and bool(collective_of(rank.stacks[0].frames))


def stands_at(rank: Rank) -> tuple[str, str, str]:
    """Return place, function and source of where a rank was last, as its stack shows it."""
    for stack in rank.stacks:
        frame = own_frame(stack.frames, innermost_last=False)
        if frame is not None:
            return frame.place, frame.function, stack.source
    return "", "", ""


def in_loader(rank: Rank) -> bool:
    """Return whether a rank's stack is in its input pipeline."""
    for stack in rank.stacks[:1]:
        frames = [frame for frame in stack.frames if not COLLECTIVE.search(frame.file)]
        return any(
            LOADER.search(frame.function) or re.search(r"data(?:loader|set)", frame.file, re.I)
            for frame in frames[:12]
        ) and not collective_of(stack.frames)
    return False


def in_torchs_loader(rank: Rank) -> bool:
    """Return whether a rank's stack is inside a DataLoader of torch."""
    return any("utils/data/" in frame.file for stack in rank.stacks[:1] for frame in stack.frames)


def names(numbers: Iterable[int]) -> str:
    """Return ``rank 5``, or ``ranks 0-4, 7``."""
    found = sorted(numbers)
    return named_ranges("rank", found)


def in_words(call: Call) -> str:
    """Return ``send to rank 2``, or ``recv from rank 1``."""
    if call.sends:
        return f"send to rank {call.target}"
    return f"recv from rank {call.source}"


def of_failure(failure: Failure, who: str = "") -> Evidence:
    """Return an exception as evidence, with the line of the user's own code that raised it."""
    frame = own_frame(failure.frames, innermost_last=True)
    at = f" at {frame.place} in {frame.function}" if frame is not None else ""
    return Evidence(f"{who + ': ' if who else ''}{short(failure.text)}{at}", failure.source)


def of_moment(moment: Moment) -> Evidence:
    """Return a message as evidence."""
    return Evidence(short(moment.text), moment.source)


def short(text: str, most: int = 240) -> str:
    """Return the beginning of a text in one line, without what torch adds to every such error."""
    text = _SAID_OF_EVERY_CUDA_ERROR.sub("", text)
    return limited(_SOURCE_FILE.sub("", " ".join(text.split())), most)


def host_of(scene: Scene, ranks: list[int]) -> str:
    """Return the host of these ranks, if they have one in common and the job has several."""
    hosts = {scene.get(number).host for number in ranks}
    return hosts.pop() if len(hosts) == 1 and len(scene.hosts) > 1 else ""


def code_text(code: int) -> str:
    """Return ``exit code 3``, or ``SIGKILL`` for a negative number."""
    return f"exit code {code}" if code >= 0 else killed_by(-code).how.removeprefix("by ")


def ended_text(code: int, ranks: Sequence[int]) -> str:
    """Return what follows the names of ranks: ``were killed by SIGKILL``."""
    be = "were" if len(ranks) > 1 else "was"
    return f"ended with {code_text(code)}" if code >= 0 else f"{be} {killed_by(-code).phrase}"
