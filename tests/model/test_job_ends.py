"""How an end is judged by its reason."""

from __future__ import annotations

import pytest

from gpuscope.model.job_ends import End, how_it_ended
from gpuscope.store.view import Gone


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("killed by signal 9", End("killed", "bad", "SIGKILL; often the kernel's OOM killer")),
        ("killed by signal 15", End("killed", "bad", "SIGTERM")),
        ("killed by signal 99", End("killed", "bad", "signal 99")),
        (
            "died without cleanup (SIGTERM, SIGKILL, crash or os._exit)",
            End("ended", "muted", "how is not known"),
        ),
        ("not seen any more", End("ended", "muted", "not seen any more")),
    ],
)
def test_what_a_signal_ended_is_killed_and_the_signal_is_named(reason: str, end: End):
    assert how_it_ended(Gone(1.0, 2.0, reason)) == end


def test_a_signal_that_the_user_sent_from_here_is_no_crash():
    assert how_it_ended(Gone(1.0, 2.0, "killed by signal 9"), "SIGKILL").word == "stopped"
