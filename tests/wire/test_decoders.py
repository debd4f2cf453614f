"""Both decoders: the same frames come out, and whatever goes in, only WireError leaves."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuscope.store import decode as viewer
from gpuscope.wire import codec, frames
from gpuscope.wire.clean import clean
from gpuscope.wire.codec import WireError, encode
from gpuscope.wire.frames import KINDS, MAX_LINE_BYTES, MAX_STRING_CHARS
from tests.fakes import wire
from tests.fakes.cases import each

DECODERS = pytest.mark.parametrize(
    "decode", [codec.decode, viewer.decode], ids=["stdlib", "viewer"]
)
FIELDS = [
    "id",
    "e",
    "m",
    "q",
    "n",
    "t",
    "v",
    "data",
    "text",
    "value",
    "gpu",
    "proc",
    "why",
    "g",
    "h",
    "a",
    "args",
    "size",
]
UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def strings(value: Any) -> list[str]:
    """Every string inside a frame."""
    if isinstance(value, str):
        return [value]
    if is_dataclass(value):
        return [s for f in fields(value) for s in strings(getattr(value, f.name))]
    if isinstance(value, dict):
        return [s for item in value.items() for part in item for s in strings(part)]
    return [s for part in value for s in strings(part)] if isinstance(value, list) else []


def cleaned(value: Any) -> Any:
    """The same, its strings cleaned: what the viewer makes of what the stdlib decoder gives."""
    if isinstance(value, str):
        return clean(value)
    if is_dataclass(value):
        value = copy.copy(value)
        for f in fields(value):
            setattr(value, f.name, cleaned(getattr(value, f.name)))
        return value
    if isinstance(value, dict):
        return {clean(key): cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list) else value


@each("kind", wire.BY_KIND)
def test_what_is_encoded_is_decoded(kind):
    @settings(max_examples=25, deadline=None)
    @given(wire.BY_KIND[kind])
    def check(frame):
        line = encode(frame)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert codec.decode(line) == frame
        assert viewer.decode(line) == cleaned(frame)

    check()


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_wire_error(data):
    for decode in (codec.decode, viewer.decode):
        with pytest.raises(WireError):
            decode(data)


@given(
    st.sampled_from([*KINDS, "r"]),
    st.dictionaries(st.sampled_from(FIELDS), wire.ANY_JSON, max_size=6),
)
@example("s", {"q": 1, "m": 2, "g": [[1, True, None, "x", 2.5], []]})
@example("def", {"id": 1, "gpu": {"uuid": "x", "index": 0}, "proc": None})
@example("result", {"id": 1, "value": {"a": [[[[[[[[[[1]]]]]]]]]]}})
def test_on_any_json_both_decoders_agree(kind, body):
    head = {"r": "rate"} if kind == "r" else {"k": kind}
    line = json.dumps({**head, **body}, separators=(",", ":")).encode()
    try:
        frame = codec.decode(line)
    except WireError:
        with pytest.raises(WireError):
            viewer.decode(line)
    else:
        # only the viewer looks into the base64
        if not (isinstance(frame, frames.Blob) and frame.data):
            assert viewer.decode(line) == cleaned(frame)


@given(wire.FRAMES, st.data())
def test_a_damaged_line_raises_only_wire_error(frame, data):
    line = bytearray(encode(frame))
    at = data.draw(st.integers(0, len(line) - 1))
    line[at] = data.draw(st.integers(0, 255))
    for decode in (codec.decode, viewer.decode):
        try:
            decode(bytes(line))
        except WireError:
            pass


HOSTILE = {
    "100k brackets": b"[" * 100_000,
    "100k brackets in a known field": b'{"k":"result","id":1,"value":{"a":' + b"[" * 100_000,
    "100k brackets in an unknown field": b'{"k":"bye","zz":' + b"[" * 100_000,
    "600 digits": b'{"k":"ping","t":0,"m":1,"q":1,"id":%s}' % (b"9" * 600),
    "600 digits in a row": b'{"k":"s","q":1,"m":2,"g":[[1,%s]]}' % (b"9" * 600),
    "600k digits": b'{"k":"s","q":1,"m":%s}' % (b"9" * 600_000),
    "65 bits": b'{"k":"s","q":1,"m":9223372036854775808}',
    "NaN": b'{"k":"s","q":1,"m":2,"g":[[1,NaN]]}',
    "Infinity": b'{"k":"ping","t":Infinity}',
    "beyond a double": b'{"k":"s","q":1,"m":2,"g":[[1,1e999]]}',
    "invalid UTF-8": b'{"k":"bye","why":"\xff\xfe"}',
    "control character": b'{"k":"bye","why":"\x1b"}',
    "too long": b'{"k":"bye","why":"' + b"a" * MAX_LINE_BYTES + b'"}',
    "float id": b'{"k":"ack","id":1.5}',
    "boolean id": b'{"k":"ack","id":true}',
    "no id": b'{"k":"ack"}',
    "two entities": b'{"k":"def","id":1,"use":{"proc":1,"gpu":2},"proc":{"pid":1}}',
    "no entity": b'{"k":"def","id":1}',
    "foreign request": b'{"r":"shell","id":1}',
    "kind of another type": b'{"k":7}',
    "two frames": b'{"k":"bye"}{"k":"bye"}',
    "empty": b"",
    "too many elements": b'{"k":"s","q":1,"m":2,"g":[%s]}' % b",".join([b"[]"] * 17_000),
    "too wide a row": b'{"k":"s","q":1,"m":2,"g":[[%s]]}' % b",".join([b"1"] * 17_000),
    "nested too deeply": b'{"k":"result","id":1,"value":{"a":%s1%s}}' % (b"[" * 12, b"]" * 12),
}


@DECODERS
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lines_are_refused(decode, name):
    line = HOSTILE[name]
    if name == "600 digits":
        line = line.replace(b'"ping"', b'"ack"')
    with pytest.raises(WireError) as caught:
        decode(line)
    assert len(str(caught.value)) < 200
    assert type(caught.value) is WireError


@DECODERS
def test_what_is_odd_but_harmless_is_taken(decode):
    assert decode(b'{"k":"bye","why":"a","why":"b"}') == frames.Bye("b")
    assert decode(b' {"why" : "x", "k" : "bye"} \r\n') == frames.Bye("x")
    assert decode(b'{"k":"bye","new_field":{"a":[1]},"why":"x"}') == frames.Bye("x")
    assert decode(b'{"k":"bye","why":"\\ud800 \\udc00x"}') == frames.Bye("\ufffd \ufffdx")
    assert decode(b'{"k":"bye","why":"\\ud83d\\ude00"}') == frames.Bye("😀")
    assert decode(b'{"k":"ping","t":3}') == frames.Ping(3.0)


@DECODERS
def test_a_long_string_is_cut_and_the_frame_kept(decode):
    frame = decode(encode(frames.Bye("x" * 10_000)))
    assert len(frame.why) == MAX_STRING_CHARS


@given(st.text(max_size=40), st.sampled_from(["bye", "event", "proc", "why", "value", "cols"]))
@example("\x1b]52;c;aGk=\x07", "proc")
@example("\x9b31m\u202eevil", "why")
@example("a\u200bb\u2066c\ufeff", "value")
@example("a\x7fb", "bye")
@example("a\x7fb", "why")
def test_no_unsafe_character_leaves_the_viewers_decoder(text, where):
    frame = {
        "bye": lambda: frames.Bye(text),
        "event": lambda: frames.Event(1, "oom", 2, text, {text: text}),
        "proc": lambda: frames.Def(1, proc=frames.ProcDef(1, user=text, command=text, name=text)),
        "why": lambda: frames.Sample(1, 2, g=[[1, text]], why=[[1, "c", "lost", text]]),
        "value": lambda: frames.Result(1, {text: [{"x": text}]}),
        "cols": lambda: frames.Hello(host=text, cols={text: [text]}, requests=[text]),
    }[where]()
    for found in strings(viewer.decode(encode(frame))):
        assert not UNSAFE.search(found)
        assert len(found) <= MAX_STRING_CHARS


@given(st.text(max_size=60), st.integers(0, 40))
def test_clean_is_bounded_and_settled(text, limit):
    once = clean(text, limit)
    assert len(once) <= limit
    assert not UNSAFE.search(once)
    assert clean(once, limit) == once


def test_clean_shows_what_was_there():
    assert clean("a\x1b[2J\x00\x7f\x85b") == r"a\x1b[2J\x00\x7f\x85b"
    assert clean("line\nbreak\t") == r"line\x0abreak\x09"
    assert clean("x\u202ey\ud800z\u200b") == "x\ufffdy\ufffdz\ufffd"
    assert clean("größe 日本語 👍🏽 é") == "größe 日本語 👍🏽 é"
    assert clean("abcdef", 4) == "abc…"


def test_encode_mends_what_json_cannot_say():
    sample = frames.Sample(1, 2, g=[[1, float("nan"), float("inf"), 1.5]])
    assert codec.decode(encode(sample)).g == [[1, None, None, 1.5]]
    assert codec.decode(encode(frames.Bye("x\ud800y"))) == frames.Bye("x\ufffdy")
    with pytest.raises(WireError, match="over the limit"):
        encode(frames.Bye("x" * MAX_LINE_BYTES))
    with pytest.raises(WireError, match="TypeError"):
        encode(frames.Result(1, {"x": object()}))


def test_blob_data_must_be_base64():
    for data in ("a", "ab=c", "äöü", "a b="):
        with pytest.raises(WireError):
            viewer.decode(
                json.dumps(
                    {"k": "blob", "id": 1, "n": 0, "data": data}, separators=(",", ":")
                ).encode()
            )


def test_event_data_is_not_a_place_for_long_strings():
    line = encode(frames.Event(1, "note", 2, data={"x": "y" * 100_000}))
    assert len(codec.decode(line).data["x"]) == MAX_STRING_CHARS
