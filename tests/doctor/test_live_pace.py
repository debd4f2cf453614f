"""Steps that became slower are a finding: since when, how much, and what else changed then."""

from __future__ import annotations

import re

from gpuscope.doctor.live import examine
from gpuscope.model.slowdown import of_trainers
from tests.model.test_slowdown import KEY, course, told


def judged(slow: bool):
    store, host = told(course(slow=slow))
    history = lambda *column: store.history(KEY, *column)  # noqa: E731
    report = examine(host, history)
    return host, history, [one for one in report.findings if one.cause == "live.slower"]


def test_it_says_since_when_how_much_and_what_changed():
    host, history, (finding,) = judged(slow=True)
    model = of_trainers(host.trainers, host, history)
    assert model is not None
    assert finding.title == f"Steps take {model.times}", "the doctor says what all screens say"
    assert re.search(r"1\.[56]\d times as long since \d\d:\d\d", finding.title)
    assert finding.pitfall == "slower-since"
    assert re.fullmatch(r"gpuscope why \d+", finding.verify)
    assert finding.severity == "warning"
    told_by = {one.text: one.source for one in finding.evidence}
    assert told_by["at that time: clock of GPU 0 1980 MHz → 1200 MHz"] == "nvml"
    assert told_by["at that time: pid 40 came to GPU 0"] == "nvml"
    assert any("compute and other code 80" in one for one in told_by)
    assert 0.3 < finding.effect.saved_share < 0.42


def test_a_steady_training_has_no_such_finding():
    assert judged(slow=False)[2] == []
