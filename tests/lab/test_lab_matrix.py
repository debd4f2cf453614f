"""A sweep's configurations, from the command line and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.lab.config import TOGGLES, ConfigError, LabConfig
from gpuscope.lab.matrix import (
    UNSET,
    combinations,
    interleaved,
    label,
    once,
    read_file,
    vary_of,
    varying,
)


def test_every_toggle_can_be_varied() -> None:
    for toggle in TOGGLES:
        if toggle.yes_no:
            values = ["on", "off"]
        elif toggle.choices:
            values = list(toggle.choices[:2])
        else:
            values = [str(toggle.minimum), str(toggle.minimum + 1)]
        values += [UNSET] if toggle.unset else []
        found = vary_of([f"{toggle.flag}={','.join(values)}"])
        cells = combinations(LabConfig(), found)
        assert len(cells) == len(values)
        assert len({getattr(cell, toggle.name) for cell in cells}) == len(values)


def test_combinations_in_order_the_last_toggle_fastest() -> None:
    cells = combinations(LabConfig(model="mlp-tiny"), vary_of(["amp=off,bf16", "batch=8,16,8"]))
    names = varying(cells)
    assert [label(cell, names) for cell in cells] == [
        "amp=off batch=8",
        "amp=off batch=16",
        "amp=bf16 batch=8",
        "amp=bf16 batch=16",
    ]
    assert {cell.model for cell in cells} == {"mlp-tiny"}


def test_the_same_toggle_twice_adds_values() -> None:
    assert vary_of(["batch=1,2", "batch=2,4", "set-to-none=off"]) == {
        "batch": [1, 2, 4],
        "set_to_none": [False],
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("amp", "has no values"),
        ("amp=", "cannot be ''"),
        ("amp=fp8", "cannot be 'fp8'"),
        ("nope=1", "no lab setting 'nope'"),
        ("batch=0", "cannot be '0'"),
        ("batch=1e3", "cannot be '1e3'"),
        ("seed=unset", "cannot be unset"),
        ("=", "no lab setting"),
    ],
)
def test_bad_words_are_answered(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        vary_of([word])


def test_too_many_combinations_are_refused_before_they_are_made() -> None:
    vary = vary_of(
        [f"seed={','.join(map(str, range(200)))}", f"batch={','.join(map(str, range(1, 200)))}"]
    )
    with pytest.raises(ConfigError, match="39,800 combinations"):
        combinations(LabConfig(), vary)


def test_interleaving_goes_there_and_back() -> None:
    order = interleaved(3, 3)
    assert order == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert len(set(order)) == 9


def written(folder: Path, text: str) -> Path:
    path = folder / "matrix.toml"
    path.write_text(text)
    return path


def test_a_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'repeats = 5\n[base]\nmodel = "mlp-tiny"\nset-to-none = false\n[vary]\n'
        'amp = ["off", "bf16"]\n'
        'workers = ["unset", 0]\n[[cell]]\noptimizer = "sgd"\n[[cell]]\noptimizer = "sgd"\n',
    )
    found = read_file(path, LabConfig(steps=7, device="cpu"))
    assert found.repeats == 5
    assert len(found.cells) == 5, "the second [[cell]] is the same as the first"
    assert {(cell.model, cell.steps, cell.device, cell.set_to_none) for cell in found.cells} == {
        ("mlp-tiny", 7, "cpu", False)
    }
    assert [cell.workers for cell in found.cells[:4]] == [None, 0, None, 0]
    assert found.cells[4].optimizer == "sgd"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("repeats = 'x'", "repeats cannot be"),
        ("[base]\nnope = 1", "no lab setting 'nope'"),
        ("[vary]\namp = ['fp8']", "cannot be 'fp8'"),
        ("[vary]\namp = []", "has no values"),
        ("[vary]\namp = [[1]]", "cannot be"),
        ("vary = 3", r"\[vary\] must be a table"),
        ("cell = 3", r"\[\[cell\]\]"),
        ("base = []", r"\[base\] must be a table"),
        ("bse = 1", "has no key 'bse'"),
        ("[", "is not TOML"),
        ("a = " + "[" * 5000, "is not TOML"),
        ("x" * 70_000, "larger than"),
    ],
)
def test_bad_files_are_answered(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_file(written(tmp_path, text), LabConfig())


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(tmp_path / "none", LabConfig())
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_file(tmp_path / "bytes", LabConfig())


def test_labels_tell_cells_apart() -> None:
    cells = combinations(LabConfig(), vary_of(["foreach=on,off,unset", "model=gpt,my.module:make"]))
    labels = [label(cell, varying(cells)) for cell in cells]
    assert len(set(labels)) == 6
    assert "model=my.module:make foreach=unset" in labels
    assert label(cells[0], []) == "(defaults)"
    assert once([*cells, *cells]) == cells
