"""XID errors are heard for the right device, named in words, and sent once.

Shutting down is not held up.
"""

from __future__ import annotations

import time

from gpuscope.agent.picture import Collector
from gpuscope.collect.nvml import Nvml
from gpuscope.collect.nvml_inventory import ranges
from gpuscope.collect.xid import (
    HARDWARE,
    OTHER,
    PROGRAM,
    XIDS,
    xid_advice,
    xid_cause,
    xid_words,
)
from gpuscope.wire import frames
from tests.fakes.nvml import FakeNvml
from tests.fakes.waiting import until


def test_an_error_is_counted_and_told_once() -> None:
    fake = FakeNvml(gpus=2)
    with fake.install():
        collector = Collector(5.0, directories=[])
        collector.start()
        until(lambda: len(fake.registered) == 2, 10)
        fake.xid(1, 79)
        told: list[tuple[str, int]] = []

        def heard() -> bool:
            picture = collector.picture()
            told.extend(picture.xids)
            return bool(told) and picture.devices[1].readings["last_xid"] == 79

        until(heard, 10)
        assert told == [(fake.gpus[1].uuid, 79)]
        picture = collector.picture()
        assert picture.xids == []
        assert [device.readings["xid_count"] for device in picture.devices] == [0, 1]
        none = picture.devices[0].readings["last_xid"]
        assert isinstance(none, frames.Unknown), "there is no error of number 0"
        assert none.text.startswith("no XID error")
        collector.stop()
        nvml = collector.nvml._nvml
        assert nvml is not None
        until(lambda: fake.event_sets == 0, 10)
        until(lambda: not collector.busy, 10)


def test_a_device_that_refuses_says_so_and_the_other_is_heard() -> None:
    fake = FakeNvml(gpus=2)
    fake.fail("nvmlDeviceRegisterEvents", 0, "NotSupported")
    with fake.install():
        nvml = Nvml.open()
        watch = nvml.xid_watch()
        assert watch.open()
        assert watch.why_not.keys() == {0}
        assert watch.why_not[0].code == frames.NOT_SUPPORTED
        fake.xid(1, 31)
        event = watch.wait()
        assert event is not None
        assert (event.device, event.code) == (1, 31)
        assert watch.wait() is None
        watch.close()
        assert nvml.close()


def test_a_driver_without_events_is_no_busy_loop() -> None:
    fake = FakeNvml(gpus=1)
    fake.missing("nvmlEventSetCreate")
    with fake.install():
        watch = Nvml.open().xid_watch()
        assert not watch.open()
        assert "nvmlEventSetCreate" in watch.why_not[0].text
        began = time.monotonic()
        assert watch.wait() is None
        assert time.monotonic() - began > 0.5


def test_words() -> None:
    assert "fallen off the bus" in xid_words(79)
    assert "XID 999:" in xid_words(999)
    assert xid_advice(999) == ""
    assert "program" in xid_advice(31)
    assert "program" not in xid_advice(109)
    assert all(one.words and one.then for one in XIDS.values())
    assert {one.cause for one in XIDS.values()} == {HARDWARE, OTHER, PROGRAM}
    assert xid_cause(999) == OTHER


def test_ranges_of_cores() -> None:
    assert ranges([0b1011, 1]) == "0-1,3,64"
    assert ranges([0, 0]) == ""
