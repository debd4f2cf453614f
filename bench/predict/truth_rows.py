"""Write the committed table of real runs.

It is ``tests/data/predict-h200.jsonl``, made by ``truth.py`` on an H200.

``python -m bench.predict.truth_rows RAW.jsonl… > tests/data/predict-h200.jsonl`` shortens what a
run has written. The first line says what it was measured on. A row has the toggles that differ from
the defaults and, in bytes,

``peak_allocated_bytes``, ``peak_reserved_bytes``
    the maxima over steps 1–3 of a fresh process; building the model is no part of the first
``outside_torch_bytes``
    of the process at the end, as NVML says, without what torch has reserved
``phase_peaks``
    peak allocated within forward, backward, optimizer of steps 1, 2, 3 (with accumulation more of the first two)
``skipped_steps``, ``taken_steps``
    by the grad scaler: gradients overflowed, so that the optimizer's state came later. Peaks and ``phase_peaks`` are
    then of more steps, until two were taken; a row without ``taken_steps`` is of three steps whatever was skipped
"""  # noqa: E501

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from .truth_table import Config

TABLE = Path(__file__).parents[2] / "tests" / "data" / "predict-h200.jsonl"
_KEPT = (
    "parameters",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "skipped_steps",
)
_SAME = ("torch", "cuda", "cudnn", "driver", "device_name")
_DEFAULTS = {field.name: field.default for field in fields(Config)}


def short(row: dict[str, Any]) -> dict[str, Any]:
    """One row as it is committed."""
    toggles = {key: row[key] for key in _DEFAULTS if key in row and row[key] != _DEFAULTS[key]}
    readings = [
        reading
        for reading in row["outside"].values()
        if reading.get("outside_torch_bytes") is not None
    ]
    taken = (
        {"taken_steps": row["taken_steps"]} if row["skipped_steps"] and "taken_steps" in row else {}
    )
    return {
        "name": row["name"],
        **toggles,
        **{key: row[key] for key in _KEPT},
        **taken,
        "outside_torch_bytes": max(reading["outside_torch_bytes"] for reading in readings),
        "phase_peaks": [phase["peak_allocated_bytes"] for phase in row["phases"]],
    }


def rows(path: Path = TABLE) -> list[dict[str, Any]]:
    """Return the committed rows with all their toggles.

    Each row also has the host's ``torch`` and ``driver_reserved_bytes``.
    """
    about, *found = (json.loads(line) for line in path.read_text().splitlines())
    toggles = {
        key: value for key, value in _DEFAULTS.items() if key not in ("gib", "stacks", "record")
    }
    host = {key: about[key] for key in ("torch", "driver_reserved_bytes")}
    return [{**toggles, "error": None, **host, **row} for row in found]


def made(paths: Iterable[Path]) -> Iterable[str]:
    raw = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    good = [
        row
        for row in raw
        if not row.get("error") and row["outside"] and not row["name"].endswith("unrecorded")
    ]
    first = good[0]
    driver = {
        reading["driver_reserved_bytes"]
        for row in good
        for reading in row["outside"].values()
        if reading
    }
    yield json.dumps({**{key: first[key] for key in _SAME}, "driver_reserved_bytes": max(driver)})
    for row in good:
        yield json.dumps(short(row), separators=(",", ":"))


if __name__ == "__main__":
    for line in made(Path(argument) for argument in sys.argv[1:]):
        print(line)
