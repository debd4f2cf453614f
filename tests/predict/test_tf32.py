"""Whose TF32: torch's own defaults for a user's training, the lab's switch for the lab's models."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.cli.commands.predict import verb as predict_verb
from gpuscope.predict.child import Tracer
from gpuscope.predict.request import Request, Traced
from tests.fakes import forking, probe_client

pytestmark = pytest.mark.slow

pytest.importorskip("torch")


def asked(*words: str) -> Request:
    parser = ArgumentParser()
    predict_verb.add_arguments(parser)
    args: Namespace = parser.parse_args(list(words))
    return predict_verb.request_of(args, predict_verb.model_of(args, list(args.target)), None)


@pytest.mark.parametrize(
    ("words", "tf32"),
    [(("a.b:c",), None), (("a.b:c", "--tf32"), True), (("a.b:c", "--no-tf32"), False),
     (("--model", "conv-small"), False), (("--model", "conv-small", "--tf32"), True)],
)  # fmt: skip
def test_a_switch_that_nobody_turned_is_torchs_own_or_the_labs(words, tf32):
    assert asked(*words).tf32 is tf32


def workspaces(traced: Traced) -> list[int]:
    """Bytes of each, in order."""
    table = traced.trace.owner_table
    return [
        size
        for size, owner in zip(traced.trace.sizes, traced.trace.owners, strict=True)
        if table[owner].category == "workspace"
    ]


def test_convolutions_of_torchs_defaults_use_tf32_and_products_do_not(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    request = Request("bench.predict.families_vision:resnet50", batch=4, optimizer="sgd")
    with Tracer() as tracer:
        own, on, off = (
            workspaces(tracer.trace(replace(request, tf32=value), 120))
            for value in (None, True, False)
        )
    assert own == on != off


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_a_program_that_sets_convolutions_alone_by_the_newer_switch_is_understood(precision):
    """In a process of its own: torch cannot be asked by the older switch from then on."""
    code = (
        f"import torch; torch.backends.cudnn.conv.fp32_precision = {precision!r}\n"
        "from gpuscope.predict.tracing.convolution_sizes import tf32_allowed; print(tf32_allowed())"
    )
    done = forking.completed(code, probe_client.environment())
    assert done.stdout.strip() == str(precision == "tf32"), done.stderr
