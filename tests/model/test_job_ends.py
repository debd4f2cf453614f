"""How an end is judged by its reason."""

from __future__ import annotations

import pytest

from gpuscope.model.job_ends import End, counts_text, end_of_box, has_ended, how_it_ended
from gpuscope.store.view import Gone
from gpuscope.wire.frames import NO_LAST_WORDS

SILENT = End("ended", "warn", "a signal, a crash or os._exit", "without an error message")


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("killed by signal 9", End("killed", "bad", "often the kernel's OOM killer", "by SIGKILL")),
        ("killed by signal 11", End("killed", "bad", how="by SIGSEGV")),
        ("killed by signal 15", End("killed", "muted", how="by SIGTERM")),
        ("killed by signal 1", End("killed", "muted", how="by SIGHUP")),
        ("killed by signal 99", End("killed", "bad", how="by signal 99")),
        (NO_LAST_WORDS, SILENT),
        ("exited", End("ended", "muted", "how is not known")),
        ("exited: the program has ended", End("ended", "ok")),
        ("exited: exit code 3", End("failed", "bad", "exit code 3")),
        ("exited: ValueError: no labels", End("failed", "bad", "ValueError: no labels")),
        ("exited: MemoryError", End("out of memory", "bad", "MemoryError")),
        (
            "exited: RuntimeError: CUDA out of memory. Tried",
            End("out of memory", "bad", "RuntimeError: CUDA out of memory. Tried"),
        ),
        (
            "exited: torch.distributed.elastic.multiprocessing.api.SignalException: got 15",
            End(
                "stopped",
                "muted",
                "torch.distributed.elastic.multiprocessing.api.SignalException: got 15",
                "by a signal",
            ),
        ),
        ("not seen any more", End("ended", "muted", "not seen any more")),
    ],
)
def test_an_end_is_called_by_what_is_known_of_it(reason: str, end: End):
    assert how_it_ended(Gone(1.0, 2.0, reason)) == end


def test_a_signal_that_the_user_sent_from_here_is_no_crash():
    assert how_it_ended(Gone(1.0, 2.0, "killed by signal 9"), "SIGKILL").word == "stopped"


@pytest.mark.parametrize(
    ("last_words", "sentence"),
    [
        (None, SILENT.sentence),
        ({"how": "exit", "code": 3}, "failed: exit code 3"),
        (
            {"how": "exit", "oom": True},
            "out of memory: it ended right after an out-of-memory error",
        ),
        ({"how": "exception", "type": "KeyboardInterrupt"}, "stopped by Ctrl-C"),
        (
            {"how": "exception", "type": "MemoryError", "stack": [["/home/a/train.py", 7, "f"]]},
            "out of memory: MemoryError (at /home/a/train.py:7 f)",
        ),
        (
            {"how": "exception", "type": "AssertionError", "stack": [["/home/a/t.py", 7, "f"]]},
            "failed: AssertionError (at /home/a/t.py:7 f)",
        ),
        (
            {"how": "exception", "type": "KeyError", "message": "'x'\nmore", "stack": []},
            "failed: KeyError: 'x'",
        ),
    ],
)
def test_a_black_box_says_the_same_of_an_end_as_an_agent(last_words, sentence: str):
    assert end_of_box(last_words).sentence == sentence


def test_ends_are_counted_the_gravest_first():
    reasons = [
        "exited: the program has ended",
        "exited: KeyError: 1",
        "killed by signal 9",
        NO_LAST_WORDS,
    ]
    ends = [how_it_ended(Gone(1.0, 2.0, reason)) for reason in [*reasons, "exited: KeyError: 2"]]
    said = (
        "2 failed, 1 killed by SIGKILL, 1 ended without an error message, 1 ended without an error"
    )
    assert counts_text(ends) == said
    assert counts_text(ends, brief=True) == said.replace(" by SIGKILL", "")
    assert counts_text([]) == ""


def test_after_a_name_an_end_is_a_sentence():
    assert has_ended(Gone(1.0, 2.0, "exited: the program has ended")) == "has ended"
    assert has_ended(Gone(1.0, 2.0, NO_LAST_WORDS)) == f"has {SILENT.sentence}"
    assert has_ended(Gone(1.0, 2.0, "killed by signal 15")) == "has ended: killed by SIGTERM"
