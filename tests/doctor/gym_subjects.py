"""List what the gym runs.

That is the pitfalls of ``demos/pitfalls`` with their cures, and the healthy controls beside this
file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.lab import pitfalls
from gpuscope.lab.pitfalls import PitfallScripts

PITFALLS = {one.id: one for one in pitfalls.load()}
HEALTHY = Path(__file__).parent / "healthy"
KINDS = ("message", "live", "script")


@dataclass(frozen=True)
class Subject:
    """A script with how it is run, and the row of the table that names it.

    ``named`` is "" for a healthy one.
    """

    name: str
    script: Path
    kinds: tuple[str, ...]
    named: str = ""
    gpus: int = 0
    nproc: int = 0
    words: tuple[str, ...] = ()
    live_words: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    alone: bool = False
    """It wants the whole card."""
    look: bool = False
    """Its device is looked at before the doctor is asked: what it names only a look sees."""
    after: float = 0.0
    """Seconds to wait before the first look: for what only shows in time."""
    attach: bool = False
    """The probe of ``gpuscope run`` may not start by itself: it is attached, as the doctor says."""

    def argv(self, python: str, words: Sequence[str]) -> list[str]:
        torchrun = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(self.nproc),
        ]
        return [python, *(torchrun if self.nproc else ()), str(self.script), *words]


SHORT = {
    "mixed-devices": "--steps 3",
    "model-left-on-cpu": "--steps 40",
    "inputs-on-wrong-gpu": "--steps 20",
    "out-of-memory": "--steps 50",
    "cuda-slower-than-cpu": "--steps 4000",
    "slow-input": "--steps 20",
    "fp16-underflow": "--steps 60",
    "dataparallel-gil": "--steps 40",
    "dataparallel-autocast": "--steps 40",
    "dataparallel-on-cpu": "--steps 5",
    "wrapped-model-attribute": "--steps 30",
    "ddp-no-process-group": "--steps 5",
    "ddp-no-environment": "--steps 5",
    "ddp-no-sampler": "--steps 1 --epochs 2",
    "wrong-backend": "--steps 20",
    "dataparallel-odd-batch": "--epochs 2",
    "timing-without-synchronize": "--steps 40",
    "first-compiled-step": "--steps 1 --backend aot_eager",
    "accumulation-not-divided": "--steps 10",
    "convolution-speed": "--steps 100",
    "not-reproducible": "--steps 20",
    "deprecated-cuda-amp": "--steps 3",
    "empty-cache-live-tensors": "--rounds 3",
    "checkpoint-pause": "--steps 20",
    "validation-pause": "--steps 40",
    "garbage-collection": "--steps 20",
    "recompiles": "--steps 20 --backend aot_eager",
    "ddp-no-sync": "--steps 20",
    "straggler": "--steps 24",
    "fp32-products": "--steps 60",
    "host-bound": "--steps 100",
    "synchronising-reads": "--steps 200",
    "copies-to-host": "--steps 60",
    "allocator-retries": "--steps 60",
    "small-batch": "--steps 100",
}
"""What makes a script end soon, for its output."""
LONG = {
    "ddp-no-sampler": "--epochs 100000",
    "first-compiled-step": "--steps 100000000 --backend aot_eager",
    "out-of-memory": "--steps 100000 --every 1000",  # it ends soon after its first evaluation
    "recompiles": "--seconds 300 --backend aot_eager",
}
"""What keeps it running while it is looked at. The others train for five minutes.

Whoever looks ends them; on a busy machine a cause can need a minute to show.
"""


LOOKED_AT = (
    "fp32-products", "host-bound", "synchronising-reads", "copies-to-host", "small-batch",
    "allocator-retries",
)  # fmt: skip
"""Those that a look at the GPU names; they have the card for themselves, as their share of its time
is what they are about."""
AFTER = {
    "empty-cache-live-tensors": 45.0,
    "out-of-memory": 0.0,
    "checkpoint-pause": 16.0,
    "validation-pause": 16.0,
    "garbage-collection": 16.0,
    "recompiles": 16.0,
    "ddp-no-sync": 16.0,
    **dict.fromkeys(LOOKED_AT, 6.0),
}
"""Seconds that a script runs before the first look, where they are not four."""


SEEN_LATER = ("straggler",)
"""Those that one question does not name: who is slower shows after windows of a minute, in the
screens and in ``bench.stragglers``."""


def of_pitfall(one: PitfallScripts, cured: bool) -> Subject:
    """The script of a pitfall, or the cured one, which must be healthy by the same ways."""
    return Subject(
        name=one.id + (" cured" if cured else ""),
        script=one.script(cured),
        kinds=() if one.id in SEEN_LATER else one.evidence,
        named="" if cured else one.named,
        gpus=one.needs_gpus(cured),
        nproc=one.processes(cured),
        words=tuple(SHORT[one.id].split()),
        live_words=tuple(LONG.get(one.id, "--seconds 300").split())
        if "live" in one.evidence
        else (),
        variables=one.variables(),
        alone=one.id in ("out-of-memory", "cuda-slower-than-cpu", *LOOKED_AT)
        and not (cured and one.gpus_cured == 0),
        look=one.id in LOOKED_AT,
        after=AFTER.get(one.id, 4.0),
    )


_HEAD = re.compile(
    r'"""Healthy: (?P<what>[^"]+?)\n\nCries wolf: (?P<why>[^"]+?)\n\nRuns: (?P<runs>[^"\n]+)\n"""'
)


@dataclass(frozen=True)
class Control:
    """A healthy training: what it is, and why a careless doctor would cry wolf."""

    name: str
    script: Path
    what: str
    why: str
    gpus: int
    nproc: int
    words: dict[str, str]
    alone: bool
    attach: bool


def controls() -> list[Control]:
    """Those in the folder, as their first lines say: ``Runs: attach gpus=1 nproc=2 seconds=…``."""
    found = []
    for script in sorted(HEALTHY.glob("[!_]*.py")):
        head = _HEAD.match(script.read_text(encoding="utf-8"))
        assert head, f"{script.name} does not say what it is"
        runs = head["runs"].split()
        words = dict(word.split("=", 1) for word in runs if "=" in word)
        found.append(
            Control(
                name=script.stem.replace("_", "-"),
                script=script,
                what=" ".join(head["what"].split()),
                why=" ".join(head["why"].split()),
                gpus=int(words.pop("gpus", "0")),
                nproc=int(words.pop("nproc", "0")),
                words=words,
                alone="alone" in runs,
                attach="attach" in runs,
            )
        )
    return found


def of_control(one: Control) -> Subject:
    return Subject(
        name=one.name,
        script=one.script,
        kinds=KINDS,
        gpus=one.gpus,
        nproc=one.nproc,
        words=("--steps", one.words.get("steps", "40")),
        live_words=("--seconds", one.words.get("seconds", "300")),
        alone=one.alone,
        after=float(one.words.get("after", "4")),
        attach=one.attach,
    )


def pitfall_subjects() -> list[Subject]:
    return [of_pitfall(one, cured) for one in PITFALLS.values() for cured in (False, True)]


def control_subjects() -> list[Subject]:
    return [of_control(one) for one in controls()]


def subjects(only: Sequence[str] = ()) -> list[Subject]:
    """All of them, in the order of the index; ``only`` those whose names begin so."""
    found = pitfall_subjects() + control_subjects()
    return [one for one in found if not only or one.name.startswith(tuple(only))]


def meant_for(subject: Subject, gpus: int) -> bool:
    """Whether this number of GPUs is the one to show it on. Of ranks: two, one for each."""
    if gpus == 0:
        return subject.gpus == 0
    two = subject.gpus == 2 or subject.nproc == 2 or subject.name.startswith("wrapped-model")
    return two == (gpus == 2)
