"""Trials that are known beforehand, for the runner of ``gpuscope tune``: a grid, and turns."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence

from gpuscope.lab.config import ConfigError, LabConfig
from gpuscope.lab.ledger import Entry
from gpuscope.lab.rules import refusal
from gpuscope.lab.run_facts import RunFacts
from gpuscope.lab.toggles import Value
from gpuscope.lab.tune.findings import CandidateRow, Trial
from gpuscope.text.numbers import number

BATCH_FACTORS = (0.5, 1.0, 2.0, 4.0)
END_SECONDS = 0.5
"""A trial takes at most so long to end. In older ledgers it took up to 3 s, of which a grid is not
thought to be slower today.
"""


class Plan:
    """Takes the place of a search: it asks for every configuration, ``repeats`` times.

    The repeats are in turns, and each round begins with another configuration, so that a machine
    that becomes slower slows all of them alike. Several runners may follow one plan, each on a card
    of its own: whoever is free takes the next configuration, or with ``whole_rounds`` the next
    round, whose runs can then be compared with each other.
    """

    def __init__(
        self,
        configs: Sequence[LabConfig],
        repeats: int,
        purpose: str,
        whole_rounds: bool = False,
    ) -> None:
        self.configs = list(dict.fromkeys(configs))
        self.baseline = self.configs[0]
        self.rows: list[CandidateRow] = []
        self._found: dict[Trial, Entry] = {}
        rounds: list[list[Trial]] = []
        for repeat in range(repeats):
            first = repeat % len(self.configs)
            turn = (*self.configs[first:], *self.configs[:first])
            rounds.append([Trial(config, repeat, purpose) for config in turn])
        parts = rounds if whole_rounds else [[trial] for turn in rounds for trial in turn]
        self._waiting = deque(parts)

    def run(self) -> Generator[Trial, Entry, None]:
        """Ask for one run after the other, and keep their entries."""
        while self._waiting:
            for trial in self._waiting.popleft():
                self._found[trial] = yield trial

    @property
    def entries(self) -> dict[LabConfig, list[Entry]]:
        """The entries of each configuration, by repeat."""
        found: dict[LabConfig, list[Entry]] = {config: [] for config in self.configs}
        for trial in sorted(self._found, key=lambda trial: trial.repeat):
            found[trial.config].append(self._found[trial])
        return found


def grid(
    base: LabConfig,
    batch: int,
    facts: Callable[[LabConfig], RunFacts],
    without: Collection[str] = (),
) -> tuple[list[LabConfig], int]:
    """Return every combination of the switches that can run, and how many rules refused.

    ``batch`` is the micro-batch of ``base``. The effective batch stays. max-autotune is left out:
    each of its runs would take minutes. So are the switches ``without``, which do nothing here.
    """
    cuda = facts(base).device_type == "cuda"
    total = batch * base.accumulate
    sizes = [int(batch * factor) for factor in BATCH_FACTORS if batch * factor >= 1]
    axes: dict[str, Sequence[Value]] = {
        "amp": ("off", "bf16"),
        "tf32": (False, True) if cuda else (False,),
        "compile": ("off", "default", "reduce-overhead") if cuda else ("off", "default"),
        "fused": (None,) if base.factory else (None, True),  # a factory brings its own
        "channels_last": (False, True) if base.has_convolutions else (False,),
        "batch": [size for size in sizes if total % size == 0],
    }
    axes = {name: values for name, values in axes.items() if name not in without}
    found: list[LabConfig] = []
    refused = 0
    for values in itertools.product(*axes.values()):
        change = dict(zip(axes, values, strict=True))
        if change["amp"] != "off" and change["tf32"]:
            continue  # its products are no longer float32's
        assert isinstance(change["batch"], int)
        change["accumulate"] = total // change["batch"]
        try:
            config = LabConfig.from_mapping({**base.to_mapping(), **change})
        except ConfigError:
            refused += 1
            continue
        if refusal(config, facts(config)) is None:
            found.append(config)
        else:
            refused += 1
    return found, refused


def seconds_of(entry: Entry) -> float:
    """Return the seconds that a run of a grid takes."""
    spent = entry.environment
    longer = (number(spent.get("end_seconds")) or 0.0) - END_SECONDS
    return (number(spent.get("tune_seconds")) or 0.0) - max(0.0, longer)
