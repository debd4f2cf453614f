"""A dozen hosts are reached over a real OpenSSH server at once, and some fail.

They are connected a few at a time, and none delays another. With 64: ``python -m bench.fleet.ssh``.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes import ssh_fleet, sshd

HOSTS = 12
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(sshd.why_not()), reason=sshd.why_not() or "-"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    with ssh_fleet.fleet(tmp_path_factory.mktemp("fleet"), HOSTS) as made:
        # healthy, on one starved core: half a minute
        return asyncio.run(ssh_fleet.connect(made, 120.0, 1.0))


def test_all_that_work_are_there_and_the_server_never_saw_too_many_at_once(found):
    assert len(found["live"]) == found["sampled"] == HOSTS
    assert found["dropped"] == 0, "more than eight connected at once"


def test_no_host_waits_for_a_slow_or_a_dead_one(found):
    assert found["last_seconds"] is not None, "the slow one was let go before they were live"
    assert found["last_seconds"] < found["slow_seconds"]


def test_those_that_fail_say_why_and_only_a_key_that_is_refused_ends_it(found):
    state, text = found["failing"]["refused"]
    assert (state, "permission denied. Next: ssh" in text) == ("ended", True)
    assert {name: found["failing"][name][0] for name in ("silent", "closed")} == {
        "silent": "connecting",
        "closed": "connecting",
    }
    assert "trying again" in found["failing"]["closed"][1]
