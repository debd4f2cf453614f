"""A search asks whether configurations fit: one child with torch answers all of them."""

from __future__ import annotations

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.predict.fits import Fits
from gpuscope.process.line_child import LineChild
from gpuscope.text.units import GIB, MIB


@pytest.mark.slow
def test_one_child_predicts_what_fits_and_what_does_not(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    started: list[object] = []
    start = LineChild.__init__

    def counted(self: LineChild, *words: object, **more: object) -> None:
        started.append(words)
        start(self, *words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(LineChild, "__init__", counted)
    with Fits((9, 0), 512 * MIB) as fits:
        small = fits(LabConfig(model="conv-small", device="cuda", channels_last=True))
        large = fits(LabConfig(model="gpt-large", device="cuda"))
        again = fits(LabConfig(model="gpt-large", device="cuda"))
        unknown = fits(LabConfig(model="no_such_module:factory", device="cuda"))
    assert small is not None
    assert small.outcome == "fits"
    assert large is not None
    assert large.outcome == "does_not_fit"
    assert large.bytes > GIB
    assert again is large
    assert unknown is None
    assert len(started) == 1


def test_nothing_is_said_of_a_cpu_or_without_a_limit():
    config = LabConfig(model="mlp-tiny")
    with Fits(None, GIB) as of_a_cpu, Fits((9, 0), None) as without_limit:
        assert of_a_cpu(config) is None
        assert without_limit(config) is None
