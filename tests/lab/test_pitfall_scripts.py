"""The pitfall scripts: each really commits its pitfall, and the cured one beside it does not.

Each is a fork of one process that has imported torch. Those that need GPUs are in
``test_pitfall_scripts_gpu.py``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from gpuscope.lab import pitfalls
from gpuscope.lab.pitfalls import PitfallScripts
from tests.fakes.forked_scripts import Ended, Run, Scripts

pytestmark = pytest.mark.slow

PITFALLS = {one.id: one for one in pitfalls.load()}
SECONDS = 120


def start(scripts: Scripts, one: PitfallScripts, cured: bool, *words: str) -> Run:
    """One process, or as many as torchrun would start."""
    return scripts.start(
        one.id, one.script(cured), words, nproc=one.processes(cured), variables=one.variables()
    )


@pytest.fixture(scope="module")
def on_cpu() -> Iterator[Scripts]:
    """Where no CUDA device is seen."""
    pytest.importorskip("torch")
    with tempfile.TemporaryDirectory() as folder:
        scripts = Scripts(Path(folder), CUDA_VISIBLE_DEVICES="")
        yield scripts
        scripts.end()


def loss_against_first(ended: Ended) -> float:
    return ended.last(r"loss ([-+.\dena]+) of the first")


def fp16_underflow(faulty: Ended, cured: Ended) -> None:
    assert faulty.last(r"zero gradients (\d+)%") > 95
    assert loss_against_first(faulty) > 0.9
    assert cured.last(r"zero gradients (\d+)%") < 20
    assert loss_against_first(cured) < 0.5


def slow_input(faulty: Ended, cured: Ended) -> None:
    """For each second of work, the cured one waits for less than half as long.

    The share of the wait alone depends on how fast the work is: where it takes next to no time,
    two workers halve the wait, and it is still most of a step.
    """
    waited = [one.last(r"waited for input (\d+)%") for one in (faulty, cured)]
    assert waited[0] > 50
    for_each_second = [share / (100.5 - share) for share in waited]
    assert for_each_second[1] < for_each_second[0] / 2


def dataparallel_on_cpu(faulty: Ended, cured: Ended) -> None:
    assert "training on 0 devices in parallel" in faulty.text
    assert "module.0.weight" in faulty.text
    assert "module." not in cured.text
    assert faulty.last(r"loss ([\d.]+)") == cured.last(r"loss ([\d.]+)")  # it does nothing


def wrapped_model_attribute(_: Ended, cured: Ended) -> None:
    assert "the checkpoint fits a new model" in cured.text


def pauses(word: str) -> Callable[[Ended, Ended], None]:
    """The faulty one spends much of its time so, the cured one a small part of that."""

    def check(faulty: Ended, cured: Ended) -> None:
        shares = [one.last(rf"{word} (\d+)% of the time") for one in (faulty, cured)]
        assert shares[0] > 20
        assert shares[1] < shares[0] / 2

    return check


def recompiles(faulty: Ended, cured: Ended) -> None:
    slow = [one.last(r"slow steps (\d+)%") for one in (faulty, cured)]
    assert slow[0] > 80
    assert slow[1] < 50


def fewer_milliseconds(faulty: Ended, cured: Ended) -> None:
    each = [one.last(r"([\d.]+) ms a step") for one in (faulty, cured)]
    assert each[1] < 0.9 * each[0]


def straggler(faulty: Ended, cured: Ended) -> None:
    """One rank has more than twice the work of the other, the cured ones have as much each.

    The work is what each rank uses of the processor: both see the same other load.
    """
    first, last = faulty.cpu_seconds
    assert last > 1.8 * first, faulty.cpu_seconds
    first, last = cured.cpu_seconds
    assert first == pytest.approx(last, rel=0.3), cured.cpu_seconds
    for one in (faulty, cured):
        assert one.last(r"([\d.]+) ms a step") > 0


def trains(_: Ended, cured: Ended) -> None:
    assert cured.last(r"loss ([\d.]+)") > 0


def ddp_no_sampler(faulty: Ended, cured: Ended) -> None:
    """The first samples of both ranks in each epoch, and how many steps an epoch takes."""
    seen = {}
    for name, ended in (("faulty", faulty), ("cured", cured)):
        found = re.findall(
            r"epoch (\d) rank (\d): (\d+) steps, first samples ((?:\d+ ){4}\d+)", ended.text
        )
        assert len(found) == 4, ended.text
        seen[name] = {(epoch, rank): {*samples.split()} for epoch, rank, _, samples in found}
        assert {int(steps) for _, _, steps, _ in found} == {64 if name == "faulty" else 32}
    for epoch in "01":
        assert seen["faulty"][epoch, "0"] == seen["faulty"][epoch, "1"]
        assert not seen["cured"][epoch, "0"] & seen["cured"][epoch, "1"]
    assert seen["cured"]["0", "0"] != seen["cured"]["1", "0"]  # set_epoch


def first_compiled_step(faulty: Ended, cured: Ended) -> None:
    assert faulty.last(r": ([\d.]+) times as long") > 50
    assert cured.last(r": ([\d.]+) times as long") < 20


def accumulation_not_divided(faulty: Ended, cured: Ended) -> None:
    first = [float(re.findall(r"gradient ([\d.]+)", one.text)[0]) for one in (faulty, cured)]
    assert first[0] == pytest.approx(8 * first[1], rel=0.01)
    assert not loss_against_first(faulty) < 1  # larger, infinite, or not a number
    assert loss_against_first(cured) < 0.1


def deprecated_cuda_amp(faulty: Ended, cured: Ended) -> None:
    assert "FutureWarning" in faulty.text
    assert "FutureWarning" not in cured.text
    assert re.search(r"logits in torch\.b?float16", cured.text)


Check = Callable[[Ended, Ended], None]
ANYWHERE: dict[str, tuple[Check, str]] = {
    "slow-input": (slow_input, "--steps 20"),
    "fp16-underflow": (fp16_underflow, "--steps 60"),
    "dataparallel-on-cpu": (dataparallel_on_cpu, "--steps 5"),
    "wrapped-model-attribute": (wrapped_model_attribute, "--steps 30"),
    "ddp-no-process-group": (trains, "--steps 5"),
    "ddp-no-environment": (trains, "--steps 5"),
    "ddp-no-sampler": (ddp_no_sampler, "--steps 1 --epochs 2"),
    # no C++ compiler needed
    "first-compiled-step": (first_compiled_step, "--steps 1 --backend aot_eager"),
    "accumulation-not-divided": (accumulation_not_divided, "--steps 10"),
    "deprecated-cuda-amp": (deprecated_cuda_amp, "--steps 3"),
    "checkpoint-pause": (pauses("saving"), "--steps 200"),
    "validation-pause": (pauses("validating"), "--steps 400"),
    "garbage-collection": (pauses("collecting"), "--steps 400"),
    "recompiles": (recompiles, "--steps 12 --backend eager"),
    "ddp-no-sync": (fewer_milliseconds, "--steps 100"),
    "straggler": (straggler, "--steps 24"),
}


def shown(one: PitfallScripts, check: Check, faulty: Ended, cured: Ended) -> None:
    """Check that the faulty script fails or speaks as the index says.

    The cured one does neither; then comes what else ``check`` asks.
    """
    assert not any(cured.codes), cured.text
    if one.shows_as == "error":
        assert any(faulty.codes), faulty.text
        assert one.expect in faulty.text
        assert "Traceback" not in cured.text
    else:
        assert not any(faulty.codes), faulty.text
    if one.shows_as != "figures":
        assert one.expect in faulty.text
        assert one.expect not in cured.text
    check(faulty, cured)


TIMED = {
    "slow-input",
    "first-compiled-step",
    "checkpoint-pause",
    "validation-pause",
    "garbage-collection",
    "recompiles",
    "ddp-no-sync",
}
"""What they show are shares of time. Whatever else runs here makes a faulty one and its cure more
alike, never less.
"""


def committed(
    scripts: Scripts,
    one: PitfallScripts,
    check: Check,
    words: str,
    timed: Collection[str] = TIMED,
    at_once: bool = False,
) -> None:
    """Runs both and looks; of those that are ``timed`` the best of three counts.

    With ``at_once`` the two run at the same time.
    """
    for tries_left in (2, 1, 0):
        try:
            faulty = start(scripts, one, False, *words.split())
            ended = None if at_once else faulty.wait(SECONDS)
            cured = start(scripts, one, True, *words.split())
            shown(one, check, ended or faulty.wait(SECONDS), cured.wait(SECONDS))
            return
        except AssertionError:
            if one.id not in timed or not tries_left:
                raise


@pytest.mark.parametrize("name", ANYWHERE)
def test_it_shows_on_the_cpu_and_the_cure_cures(name: str, on_cpu: Scripts):
    committed(on_cpu, PITFALLS[name], *ANYWHERE[name])


def test_what_needs_a_gpu_says_so_and_ends_with_3(on_cpu: Scripts):
    asked = [
        (one, cured)
        for one in PITFALLS.values()
        for cured in (False, True)
        if one.needs_gpus(cured)
    ]
    assert len(asked) > 20
    for one, cured in asked:
        ended = start(on_cpu, one, cured).wait(SECONDS)
        assert {*ended.codes} == {3}, (one.id, ended.text)
        assert re.search("needs (a|two) CUDA GPU", ended.text), one.id
