"""What a user reads of an error."""

from __future__ import annotations

import copy

from gpuscope import __version__
from gpuscope.errors import UserError, other_format


def test_an_error_says_what_why_and_what_next():
    error = UserError("The model was not traced.", "it never ends.", "--timeout 300", "timeout")
    assert str(error) == "The model was not traced.\nWhy: it never ends.\nNext: --timeout 300"
    assert (error.args, error.code) == (
        ("The model was not traced.", "it never ends.", "--timeout 300"),
        "timeout",
    )
    assert str(UserError("No GPU.")) == "No GPU."


def test_a_file_of_another_format_is_said_to_be_one_with_what_to_do():
    error = other_format("a.gsr", 2, 1, "9.0", "gpuscope record b.gsr")
    assert error.sentence == (
        f"a.gsr has format 2, written by gpuscope 9.0. This is gpuscope {__version__}, which reads "
        "format 1: use the gpuscope that wrote it; or gpuscope record b.gsr"
    )
    assert other_format("a.gsr", 0, 1).what == "a.gsr has format 0."


def test_a_copy_says_the_same():
    assert str(copy.copy(UserError("a", "b", "c"))) == "a\nWhy: b\nNext: c"
