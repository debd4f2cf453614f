"""What is set before torch is imported, and what torch tells of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.lab import machine
from gpuscope.lab.config import LabConfig
from tests.fakes.program import python

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


def prepared(
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, int],
    given: dict[str, str],
    **toggles: object,
) -> dict[str, str]:
    monkeypatch.setattr(machine, "_torch_version", lambda: version)
    environ = dict(given)
    machine.prepare(LabConfig(**toggles), environ)  # type: ignore[arg-type]
    return environ


@pytest.mark.parametrize(
    ("version", "given", "on", "after"),
    [
        ((2, 13), {}, False, {}),
        ((2, 13), {}, True, {NEW: "expandable_segments:True"}),
        ((2, 8), {}, True, {OLD: "expandable_segments:True"}),
        (
            (2, 11), {OLD: "max_split_size_mb:64,expandable_segments:False"}, True,
            {NEW: "max_split_size_mb:64,expandable_segments:True"},
        ),
        ((2, 11), {NEW: "expandable_segments:True"}, False, {NEW: "expandable_segments:False"}),
    ],
)  # fmt: skip
def test_expandable_segments_are_on_or_off_as_the_toggle_says(
    version: tuple[int, int],
    given: dict[str, str],
    on: bool,
    after: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert prepared(monkeypatch, version, given, expandable_segments=on) == after


def test_deterministic_gives_cublas_its_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"
    assert prepared(monkeypatch, (2, 13), {}, deterministic=True) == {name: ":4096:8"}
    assert prepared(monkeypatch, (2, 13), {name: ":16:8"}, deterministic=True) == {name: ":16:8"}
    assert prepared(monkeypatch, (2, 13), {name: ":0:0"}, deterministic=True) == {name: ":4096:8"}
    assert prepared(monkeypatch, (2, 13), {}, deterministic=False) == {}


def test_the_environment_is_set_before_torch_is_imported() -> None:
    """An import hook in the worker's own process writes what stands there when torch comes."""
    code = (
        "import os, sys\n"
        "class Hook:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            sys.stderr.write(os.environ.get('CUBLAS_WORKSPACE_CONFIG', '-') + ' ')\n"
        "            sys.stderr.write(os.environ.get('PYTORCH_ALLOC_CONF', '-'))\n"
        "            sys.stderr.flush()\n"
        "            os._exit(0)\n"
        "sys.meta_path.insert(0, Hook())\n"
        "from gpuscope.lab import worker\n"
        'worker.main(["--config", \'{"deterministic": true, "expandable_segments": true}\'])\n'
    )
    pytest.importorskip("torch")
    done = python("-c", code)
    assert done.stderr == ":4096:8 expandable_segments:True"


def test_the_facts_of_this_machine() -> None:
    torch = pytest.importorskip("torch")
    from gpuscope.lab.parallel import World

    world = World(0, 1, 0, "", torch.device("cpu"))
    found = machine.facts(LabConfig(compile="default"), world)
    assert found.device_type == "cpu"
    assert found.cores >= 1
    assert found.torch_version == torch.__version__
    assert found.free_bytes is not None
    assert found.free_bytes[0] > 1 << 20
    assert found.has_compiler is not None
    assert machine.facts(LabConfig(), world).has_compiler is None
    (device,) = machine.devices(LabConfig(), world)
    assert (device["rank"], device["device"], device["uuid"]) == (0, "cpu", None)
    assert device["name"]
