"""The examples of docs/protocol.md are frames, and every kind has one.

What is said of limits holds.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from gpuscope.store import decode as viewer
from gpuscope.wire import codec, frames

PAGE = (Path(__file__).parent.parent.parent / "docs" / "protocol.md").read_text()
EXAMPLES = [
    line
    for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


def test_every_example_is_a_frame_without_unknown_fields():
    for example in EXAMPLES:
        frame = codec.decode(example.encode())
        assert viewer.decode(example.encode()) == frame
        assert set(json.loads(example)) <= {"k", *frames.NAMES[type(frame)]}, example
        if isinstance(frame, frames.Def):
            for kind, cls in frames.DEFINITIONS.items():
                assert set(json.loads(example).get(kind, {})) <= set(frames.NAMES[cls]), example


def test_every_kind_and_every_definition_has_an_example():
    found = [codec.decode(example.encode()) for example in EXAMPLES]
    assert {type(frame) for frame in found} == {*frames.KINDS.values(), frames.Request}
    defined = [frame for frame in found if isinstance(frame, frames.Def)]
    assert {kind for d in defined for kind in frames.DEFINITIONS if getattr(d, kind)} == set(
        frames.DEFINITIONS
    )


def test_the_enumerations_are_complete():
    for word in (*frames.REQUESTS, *frames.CODES, *frames.EXCLUSIVE):
        assert f"`{word}`" in PAGE
    for table in frames.TABLES:
        assert f"`{table}` " in PAGE
