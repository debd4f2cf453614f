"""Free text comes without names.

Nothing of them stays, and a long word takes no longer than its length asks for.
"""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuscope.wire.redact import Redactor

FILES = "py|ipynb|sh|pt|pth|ckpt|pkl|bin|safetensors|log|out|txt|csv|json|ya?ml|toml"
IN_PATH = r"[^\s'\",;:()\[\]<>]"
PLAIN_PATH = re.compile(rf"(?<![\w.<])(?:~\w*|\.{{0,2}})/{IN_PATH}+|{IN_PATH}+\.(?:{FILES})\b")
PLAIN_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|[\w.+-]+@[\w.-]+")
"""What is to be hidden, tried at every character: the plain rule, which takes the square of a
word's length.
"""
PIECES = st.sampled_from(
    [
        "a",
        "B7",
        "é",
        ".",
        "-",
        "+",
        "@",
        "/",
        "~",
        "=",
        "<",
        ">",
        " ",
        ",",
        "'",
        ".py",
        ".yaml",
        ".log",
        "1.2.3.4",
        "a@b",
        "a@b+c@d",
        "~ann",
        "../x",
        "/data/run 1",
        "https://h/x.pt",
        "@torch.no_grad()",
    ]
)
TEXTS = st.lists(PIECES, max_size=16).map("".join)


@given(TEXTS)
@example("1.2.3.4-ann@corp")
@example("ann@b+c@d")
@example("--file=/home/ann/x.py:3")
def test_no_address_stays_that_the_plain_rule_would_find(text):
    said = Redactor().text(text)
    assert not PLAIN_ADDRESS.search(said.replace("<address>", " ").replace("<path>", " ")), said


@given(
    st.lists(
        st.sampled_from(["a", "=", "-", ".", "/", "~", "<", " ", "(", ".py", ".pt", "x.tomlx"])
    ).map("".join)
)
def test_paths_are_those_of_the_plain_rule(text):
    assert Redactor().text(text) == PLAIN_PATH.sub("<path>", text)


@given(TEXTS, st.sampled_from(["ann", "gpu-node-7", "10.0.0.1", "train.py", "a+b"]))
def test_a_known_name_is_replaced_between_whatever_stands_around_it(text, name):
    redactor = Redactor()
    pseudonym = redactor.hide("user", name)
    assert f" {pseudonym} " in redactor.text(f"{text} {name} {text}")
    assert pseudonym in redactor.text(name)


def test_words_that_name_nobody_stay():
    text = (
        "step 3/10: loss 0.25 at 12:30, torch 2.13.0 on cuda:0 uses 1.5 GiB (87 %) @ 300 W, "
        "a.b, x-y, <unset>"
    )
    assert Redactor().text(text) == text


@pytest.mark.parametrize("piece", ["a", ".", "-+", "a@", "@", "~a", "=~", "1.", "a.p"])
def test_a_long_word_takes_its_length_and_not_the_square_of_it(piece):
    # Eight times the length is about 8 times the work where it is linear, 64 times where it is not.
    def work(length: int) -> float:
        text = (piece * length)[:length]
        took = []
        for _ in range(3):
            begun = time.process_time()
            Redactor().text(text)
            took.append(time.process_time() - begun)
        return min(took)

    short, long = work(5_000), work(40_000)
    assert long < 24 * short + 0.02, (short, long)
