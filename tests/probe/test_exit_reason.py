"""How a trainer ended is not forgotten when it is looked for by two threads at once."""

from __future__ import annotations

import sys
import threading

from gpuscope.probe import exit_reason


def test_an_exception_that_the_probe_is_about_to_describe_is_still_how_it_ended(monkeypatch):
    ended, told = [], []
    watch = exit_reason.Endings(told.append, ended.append)
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Exception):
        def __str__(self) -> str:
            if threading.current_thread().name == "probe":
                begun.set()
                go_on.wait(20)
            return "slow"

    monkeypatch.setattr(sys, "last_exc", None, raising=False)
    monkeypatch.setattr(sys, "last_value", Slow(), raising=False)
    # a test of notebooks may have run in this process
    monkeypatch.setattr(exit_reason, "is_interactive", lambda: False)
    probe = threading.Thread(target=watch.look, name="probe")
    probe.start()
    try:
        assert begun.wait(20)
        watch._ended({"how": "exit"})
    finally:
        go_on.set()
        probe.join()
    assert [one["how"] for one in ended] == ["exception"]
    assert len(told) == 1
