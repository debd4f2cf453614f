"""The probe is loaded into a running trainer in small pieces with pauses.

The modules are the same as from files.
"""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from gpuscope.attach import inject_payload
from gpuscope.attach.probe_source import probe_sources
from tests.fakes.collecting import collector_off
from tests.fakes.program import python

ROOT = Path(__file__).parents[2]
STEPS = """
import gc, hashlib, json, os, sys, tempfile, time
from gpuscope.attach import inject_payload

heap = [{"a": number, "b": [number]} for number in range(200_000)]  # as a trainer with torch has
gc.collect()
full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)

data = b"x" * 4096  # hashlib gives the interpreter back while it hashes so much, as torch does in each operation

def train(seconds, until=lambda: True):
    ends = [time.monotonic()]
    while ends[-1] - ends[0] < seconds or not until():
        for _ in range(400):
            hashlib.sha256(data).digest()
        ends.append(time.monotonic())
    return ends

def load(number):
    folder = tempfile.mkdtemp()
    _, sources, done = (folder + "/" + name for name in inject_payload.names("x"))
    body = json.loads(inject_payload.sources())
    body["digest"] = str(number)  # loaded anew each time
    with open(sources, "w") as file:
        json.dump(body, file)
    script = inject_payload.script(folder, "x")
    before = train(0.2)
    begin = time.monotonic()
    exec(compile(script, "<gpuscope>", "exec"), {})
    during = train(1.0, lambda: os.path.exists(done))
    answer = json.load(open(done))
    assert answer["problem"] == "", answer
    sys._gpuscope_probe.detach()
    usual = (len(before) - 1) / (before[-1] - before[0])
    return sum(end < answer["ready"] for end in during) / (answer["ready"] - begin) / usual

shares = []
while len(shares) < 6 and max(shares, default=0.0) <= 0.6:  # on a busy machine others take from both sides of it
    shares.append(load(len(shares)))
print(json.dumps([shares, full]))
"""  # noqa: E501
OBJECTS = """
import gc, json, os, sys, tempfile, time
import torch
from gpuscope.attach import inject_payload

torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())
folder = tempfile.mkdtemp()
_, sources, done = (folder + "/" + name for name in inject_payload.names("x"))
with open(sources, "wb") as file:
    file.write(inject_payload.sources())
code = compile(inject_payload.script(folder, "x"), "<gpuscope>", "exec")
gc.collect()
before = len(gc.get_objects())
exec(code, {})
while not os.path.exists(done):
    time.sleep(0.01)
after = len(gc.get_objects())
assert json.load(open(done))["problem"] == ""
print(json.dumps([before, after - before]))
"""


@pytest.mark.slow
def test_a_trainer_keeps_most_of_the_interpreter_while_the_probe_is_loaded():
    # That is most of the steps that it usually makes in that time; loaded without pauses it is left
    # with a twentieth. Nor does the load set off a collection of all its objects, which takes a
    # quarter of a second in a large process.
    done = python("-c", STEPS, cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    shares, full_collections = json.loads(done.stdout)
    assert max(shares) > 0.6, shares
    assert full_collections == []


@pytest.mark.slow
def test_what_a_load_leaves_is_little_beside_what_torch_has():
    # CPython looks through all objects once those that are new and stay are a quarter of the old
    # ones: a load of 1.3 % brings that forward once in 20 loads. The ledger of time is 0.1 % of it.
    pytest.importorskip("torch")
    done = python("-c", OBJECTS, cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    before, more = json.loads(done.stdout.splitlines()[-1])
    assert 0 < more < 0.0135 * before, (before, more)


@pytest.mark.slow
@collector_off()
def test_the_pieces_of_each_module_are_the_module():
    for name, content in probe_sources().items():
        source = content.decode()
        pieces = inject_payload.pieces(source)
        assert "".join(text for _, text in pieces) == source, name
        again = [node for before, text in pieces for node in ast.parse("\n" * before + text).body]
        whole = ast.parse(source).body
        assert [ast.dump(node, include_attributes=True) for node in again] == [
            ast.dump(node, include_attributes=True) for node in whole
        ], f"{name}: the same statements at the same lines"
        for _, text in pieces:
            assert (
                len(ast.parse(text).body) == 1
                or text.count("\n") <= inject_payload.PIECE_LINES + 10
            )


def test_two_statements_of_one_line_stay_together():
    source = "a = 1; b = 2\n" * 3 + "@staticmethod\n# between\ndef f():\n    '''x\ny = 3\n'''\n"
    assert inject_payload.pieces(source, 0) == [
        (0, "a = 1; b = 2\n"),
        (1, "a = 1; b = 2\n"),
        (2, "a = 1; b = 2\n"),
        (3, "@staticmethod\n# between\ndef f():\n    '''x\ny = 3\n'''\n"),
    ]
