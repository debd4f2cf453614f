"""Frames for tests.

Here are a small scene of two devices and a job, and hypothesis strategies for every kind of frame.
"""

from __future__ import annotations

import base64
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from gpuscope.store.store import Store
from gpuscope.wire import frames
from gpuscope.wire.frames import COLUMNS, DEFINITIONS, KINDS, REQUESTS, Def, Hello, Sample

SECOND = 1_000_000_000
COLS = {table: list(columns) for table, columns in COLUMNS.items()}


def heard(*said: frames.Frame) -> Store:
    """A store that has heard these frames from its source ``k``."""
    store = Store()
    store.add_source("k", "label")
    for frame in said:
        store.apply("k", frame, 1.0)
    return store


# ── a scene ───────────────────────────────────────────────────────────────────────────────────────


def hello(**changes: Any) -> Hello:
    values: dict[str, Any] = {
        "host": "node-1",
        "boot": "boot-1",
        "pid": 77,
        "t": 1_000_000.0,
        "m": 100 * SECOND,
        "hz": 2.0,
        "cols": COLS,
        "requests": ["rate", "cancel"],
    }
    return Hello(**{**values, **changes})


def row(number: int, table: str, **readings: Any) -> list[Any]:
    """A row with the given columns, null in the others."""
    assert set(readings) <= set(COLUMNS[table]), readings
    return [number, *(readings.get(column) for column in COLUMNS[table])]


def definitions() -> list[Def]:
    """Return the definitions of a small scene.

    Devices are 1 and 2, processes 3 and 4 with one use each (5, 6), two ranks of a job 7 and 8,
    allocators 9 and 10.
    """
    proc, trainer = frames.ProcDef, frames.TrainerDef
    return [
        Def(0, host=frames.HostDef(cpu_count=8)),
        Def(1, gpu=frames.GpuDef("GPU-a", 0, name="H200", total_bytes=1000)),
        Def(2, gpu=frames.GpuDef("GPU-b", 1, name="H200", total_bytes=1000)),
        Def(
            3, proc=proc(30, 300, user="ann", command="python -u /data/train.py --lr 1", mine=True)
        ),
        Def(
            4, proc=proc(40, 400, user="ann", command="python -u /data/train.py --lr 1", mine=True)
        ),
        Def(5, use=frames.UseDef(3, 1)),
        Def(6, use=frames.UseDef(4, 2)),
        Def(
            7,
            trainer=trainer(
                40, 400, proc=4, rank=1, world_size=2, job="run-1", script="/data/train.py"
            ),
        ),
        Def(
            8,
            trainer=trainer(
                30, 300, proc=3, rank=0, world_size=2, job="run-1", script="/data/train.py"
            ),
        ),
        Def(9, alloc=frames.AllocDef(8, 0, uuid="GPU-a", gpu=1)),
        Def(10, alloc=frames.AllocDef(7, 0, uuid="GPU-b")),
    ]


def sample(q: int, **changes: Any) -> Sample:
    """Tick ``q``: half a second each. Every value grows with q."""
    m = 100 * SECOND + q * SECOND // 2
    values: dict[str, Any] = {
        "h": [row(0, "h", cpu_percent=10.0 + q)],
        "g": [row(i, "g", used_bytes=100 * i + q, utilization_percent=50.0) for i in (1, 2)],
        "p": [row(i, "p", cpu_percent=1.0 * q, rss_bytes=10 + q) for i in (3, 4)],
        "u": [row(i, "u", used_bytes=90 + q) for i in (5, 6)],
        "t": [row(i, "t", step=q, step_seconds=0.25, step_age_seconds=0.1) for i in (7, 8)],
        "a": [row(i, "a", allocated_bytes=60 + q, reserved_bytes=80 + q) for i in (9, 10)],
    }
    return Sample(q, m, **{**values, **changes})


def session(
    seconds: int = 10, key_every: int = 4, ends: bool = False
) -> list[tuple[float, frames.Frame]]:
    """Frames of a session with their times: two samples a second, and key frames.

    With ``ends`` the second trainer ends at 15.25 s.
    """
    said: list[tuple[float, frames.Frame]] = [(0.0, hello()), *((0.0, d) for d in definitions())]
    ended: set[int] = set()
    for q in range(1, seconds * 2):
        if q % (key_every * 2) == 0:
            alive = [d for d in definitions() if d.id not in ended]
            moment = 100 * SECOND + q * SECOND // 2
            said.append((q / 2, frames.Key(q, moment, 1_000_000.0 + q / 2, len(alive))))
            said.extend((q / 2, d) for d in alive)
        said.append((q / 2, sample(q)))
        if ends and q == 30:
            said.append((15.25, frames.Event(4, "gone", 115 * SECOND, "ended")))
            ended = {4, 6, 7, 10}
    return said


# ── every frame there can be ──────────────────────────────────────────────────────────────────────

INTS = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.one_of(st.none(), st.booleans(), INTS, FLOATS, TEXTS)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS,
    float: FLOATS,
    bool: st.booleans(),
    str: TEXTS,
    Any: ANY_JSON,
}


def _of(hint: Any) -> st.SearchStrategy[Any]:
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint in DEFINITIONS.values():
        return _built(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list:
        return st.lists(_of(arguments[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(TEXTS, _of(arguments[1]), max_size=3)
    return st.one_of(*(st.none() if option is type(None) else _of(option) for option in arguments))


def _built(cls: type[Any], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{f.name: given.get(f.name, _of(hints[f.name])) for f in fields(cls)})


_CHUNKS = st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode())
_DEFS = st.one_of(
    *(
        st.builds(lambda number, value, kind=kind: Def(number, **{kind: value}), INTS, _built(cls))
        for kind, cls in DEFINITIONS.items()
    )
)
BY_KIND: dict[str, st.SearchStrategy[Any]] = {
    **{kind: _built(cls) for kind, cls in KINDS.items()},
    "def": _DEFS,
    "blob": _built(frames.Blob, data=_CHUNKS),
    "request": _built(frames.Request, r=st.sampled_from(REQUESTS)),
}
FRAMES = st.one_of(*BY_KIND.values())
