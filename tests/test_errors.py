"""What a user reads of an error."""

from __future__ import annotations

import copy

from gpuscope.errors import UserError


def test_an_error_says_what_why_and_what_next():
    error = UserError("The model was not traced.", "it never ends.", "--timeout 300", "timeout")
    assert str(error) == "The model was not traced.\nWhy: it never ends.\nNext: --timeout 300"
    assert (error.args, error.code) == (
        ("The model was not traced.", "it never ends.", "--timeout 300"),
        "timeout",
    )
    assert str(UserError("No GPU.")) == "No GPU."


def test_a_copy_says_the_same():
    assert str(copy.copy(UserError("a", "b", "c"))) == "a\nWhy: b\nNext: c"
