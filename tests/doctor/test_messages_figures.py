"""Figures speak for causes.

Each rule on them fires, and fills its sentence in with the message's own sizes.
"""

from __future__ import annotations

import pytest

from gpuscope.doctor.messages import examine, figures, tables

from . import message_templates as say
from .message_templates import GIB, MIB

FULL = {
    "asked": 90 * MIB,
    "total": 22 * GIB,
    "held": 20 * GIB,
    "free": 30 * MIB,
    "spare": 200 * MIB,
}
MPS = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 1.25 GiB, other allocations: 2.50 "
    "GiB, max allowed: {most:.2f} GiB). Tried to allocate 6.00 GiB on private pool."
)
POOLED = (
    "Allocation on device 0 would exceed allowed memory. (out of memory)\n"
    "Currently allocated     : 2.00 GiB\n"
    "Requested               : 128.00 MiB\nDevice limit            : 11.75 GiB\n"
    "Free (according to CUDA): 0 bytes"
)


def smi(*rows: tuple[int, int]) -> str:
    """The lines of nvidia-smi's table with (MiB used, load) of each device."""
    return "\n".join(
        f"| 30%  40C  P2  90W / 350W | {used}MiB / 24000MiB | {busy}%  Default |"
        for used, busy in rows
    )


# Rule → (text, pitfall, a part of its evidence)
CASES = {
    "oom.request-over-capacity": (
        say.oom("2.5", **{**FULL, "asked": 30 * GIB}),
        "reduce-seq-length-or-resolution",
        "one request of 30.0 GiB on a GPU of 22.0 GiB",
    ),
    "oom.fraction": (
        say.oom("1.4", **{**FULL, "held": GIB, "free": 20 * GIB}, allowed=2 * GIB),
        "memory-fraction-cap",
        "the process may use 2.00 GiB of 22.0 GiB; 20.0 GiB are free",
    ),
    "oom.single-allocation": (
        say.oom("1.4", **{**FULL, "asked": 5 * GIB}, backend="XPU"),
        "single-allocation-limit",
        "one allocation of 5.00 GiB",
    ),
    "oom.single-allocation.memory-free": (
        say.oom("1.4", **{**FULL, "free": GIB}, backend="XPU"),
        "single-allocation-limit",
        "1.00 GiB are free and 90.0 MiB were refused",
    ),
    "oom.system-fallback": (
        say.oom("2.5", **{**FULL, "held": 25 * GIB}),
        "reduce-batch-size",
        "25.0 GiB allocated on a GPU of 22.0 GiB",
    ),
    "oom.other-process.rest": (POOLED, "other-process-holds-gpu", "9.75 GiB of 11.8 GiB"),
    "oom.other-process": (
        say.oom("2.5", **{**FULL, "held": 9 * GIB}, own=9 * GIB, others=((47, 12 * GIB),)),
        "other-process-holds-gpu",
        "(holders: process 47 12.0 GiB)",
    ),
    "oom.other-library": (
        say.oom("2.5", **{**FULL, "held": GIB}, own=20 * GIB),
        "empty-cache",
        "outside torch's allocator",
    ),
    "driver.refused": (
        say.oom("2.5", **{**FULL, "held": 18 * GIB, "free": 3 * GIB}),
        "host-memory-limit",
        "3.00 GiB are free and 90.0 MiB were refused",
    ),
    "oom.fragmentation": (
        say.oom("2.5", **{**FULL, "held": 18 * GIB, "spare": 3 * GIB}),
        "expandable-segments",
        "3.00 GiB reserved but unallocated, 90.0 MiB asked for",
    ),
    "oom.fragmentation.would-fit": (
        say.oom("2.5", **{**FULL, "asked": 500 * MIB, "spare": 600 * MIB}),
        "expandable-segments",
        "600 MiB reserved but unallocated, 500 MiB asked for: in one piece it would have fit",
    ),
    "oom.fragmentation.beside-others": (
        say.oom("2.5", **{**FULL, "held": GIB, "spare": 3 * GIB}, own=21 * GIB),
        "expandable-segments",
        "3.00 GiB reserved but unallocated",
    ),
    "oom.fragmentation.slight": (
        say.oom("2.5", **{**FULL, "held": 19 * GIB, "spare": GIB}),
        "expandable-segments",
        "1.00 GiB reserved but unallocated",
    ),
    "oom.graph-pools": (
        say.oom("2.5", **{**FULL, "held": 18 * GIB, "spare": 2 * GIB}, pools=2 * GIB),
        "compile-mode",
        "2.00 GiB are idle in private pools",
    ),
    "oom.mps": (
        MPS.format(most=13.5),
        "mps-watermark-ratio",
        "torch holds 1.25 GiB, others 2.50 GiB",
    ),
    "oom.mps.request-over-watermark": (
        MPS.format(most=4.5),
        "reduce-seq-length-or-resolution",
        "the watermark is at 4.50 GiB",
    ),
    "oom.mps.large-request": (
        MPS.format(most=13.5),
        "reduce-seq-length-or-resolution",
        "the watermark is at 13.5 GiB",
    ),
    "memory.growth": (
        "\n".join(f"epoch 7 step {step} loss 0.9 mem {30 + step}.00 GiB" for step in range(40)),
        "detach-loss-accumulation",
        "from 35.0 GiB to 69.0 GiB",
    ),
    "loss.fp16": (
        "precision fp16\nstep 1 loss 0.9\nstep 2 loss nan",
        "bf16-instead-of-fp16",
        'the log says "fp16"',
    ),
    "loss.diverged": (
        "\n".join(f"step {step} loss {loss}" for step, loss in enumerate((2, 2.1, 1.9, 80, "nan"))),
        "not-finite",
        "before it the loss grew from 2.05 to 80",
    ),
    "loss.sudden": (
        "\n".join(f"step {step} loss {loss}" for step, loss in enumerate((2, 2.1, 1.9, "inf"))),
        "not-finite",
        "the last finite loss is 1.9 at step 2, and nothing grew before it",
    ),
    "loss.turned": (
        "step 1 loss 0.9\nstep 2 loss nan",
        "not-finite",
        "the last finite loss is 0.9 at step 1; too few were printed",
    ),
    "loss.from-start": ("step 1 loss nan", "not-finite", "no finite loss is printed before it"),
    "loss.once": (
        "step 1 loss 0.9\nstep 2 loss nan\nstep 3 loss 0.8",
        "not-finite",
        "and later losses are finite again",
    ),
    "smi.first-device-above-all": (
        smi((23000, 97), (90, 0)),
        "dp-imbalance-gpu0",
        "23000 of 24000 MiB used at 97 %",
    ),
    "smi.held-and-idle": (
        smi((90, 0), (20000, 0)),
        "kill-zombie-process",
        "20000 of 24000 MiB used at 0 %",
    ),
    "smi.held": (
        smi((90, 0), (20000, 97)),
        "other-process-holds-gpu",
        "20000 of 24000 MiB used at 97 %",
    ),
}


def test_every_rule_has_a_case():
    assert set(CASES) == set(tables.figure_rules())


@pytest.mark.parametrize("name", CASES)
def test_the_rule_fires_with_its_sentence(name, monkeypatch):
    text, pitfall, says = CASES[name]
    asked, votes = [], figures.votes
    monkeypatch.setattr(
        figures,
        "votes",
        lambda rule, *rest, **more: asked.append(rule) or votes(rule, *rest, **more),
    )
    found = {one.pitfall: one for one in examine(text.split("\n"))[0]}
    assert name in asked
    assert any(says in line.text for line in found[pitfall].evidence), found[pitfall].evidence
    rule = tables.figure_rules()[name]
    assert found[pitfall].cause in {rule.cause or rule.id, *(vote.cause for vote in rule.votes)}
