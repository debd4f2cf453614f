"""The zips that travel have the same bytes for the same sources.

They are kept privately, and usable where nothing is installed.
"""

from __future__ import annotations

import ast
import io
import os
import stat
import subprocess
import sys
import zipfile

import pytest

from gpuscope.attach import bundle
from tests.fakes import pythons


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpuscope"


def names(content):
    return set(zipfile.ZipFile(io.BytesIO(content)).namelist())


def test_equal_sources_make_equal_bytes():
    assert bundle.probe_zip_bytes() == bundle.probe_zip_bytes()


def test_the_agent_holds_what_it_needs_and_nothing_of_the_viewer():
    found = names(bundle.zipped(bundle.agent_contents(), compress=True))
    assert {
        "__main__.py",
        "pynvml.py",
        "gpuscope/wire/codec.py",
        "gpuscope/collect/nvml.py",
    } <= found
    rooms = {
        name.split("/")[1] for name in found if name.startswith("gpuscope/") and name.count("/") > 1
    }
    assert rooms == {
        "wire",
        "process",
        "text",
        "collect",
        "agent",
        "attach",
        "probe",
    }  # the last two: to put a probe in
    assert "gpuscope/store/decode.py" not in found


def test_whatever_the_agent_imports_travels_with_it():
    """Imports within functions, too: a thread that lacks one ends, and says so to nobody."""
    contents = bundle.agent_contents()
    viewers_own = {"gpuscope/notebook/extension", "gpuscope/paths"}  # never asked for by an agent
    for path, source in contents.items():
        if not path.startswith("gpuscope/"):
            continue
        folders = path.split("/")[:-1]
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = folders[: len(folders) - node.level + 1]
                module = "/".join(base + (node.module.split(".") if node.module else []))
                of_a_package = contents.get(f"{module}/__init__.py", b"").decode()
                lacks = [
                    one.name
                    for one in node.names
                    if f"{module}/{one.name}.py" not in contents
                    and one.name not in of_a_package
                    and f"{module}/{one.name}/__init__.py" not in contents
                ]
                whole = f"{module}.py" in contents or module in viewers_own
                assert whole or not lacks, (path, node.lineno, module, lacks)


def test_nothing_travels_that_nothing_there_imports():
    contents = bundle.agent_contents()
    begins = {"main", "as_sent", "inject_worker", "injected", "pynvml"}  # started by their names
    imported = {
        name
        for path, source in contents.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for name in [(node.module or "").split(".")[-1], *(one.name for one in node.names)]
    }
    modules = {os.path.basename(path)[: -len(".py")] for path in contents} - {"__init__"}
    assert modules - imported - begins == {"__main__"}


def test_the_probe_travels_under_another_name():
    found = names(bundle.probe_zip_bytes())
    assert found
    assert all(name.startswith("_gpuscope_probe/") for name in found)
    assert "_gpuscope_probe/__init__.py" in found


def test_all_of_the_probe_loads_from_its_zip_under_its_other_name(tmp_path):
    """That it loads under every Python is said of its files (test_hygiene.py)."""
    python = pythons.find(8) or sys.executable
    (tmp_path / "probe.zip").write_bytes(bundle.probe_zip_bytes())
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'probe.zip')!r}); import _gpuscope_probe\n"
        "import importlib, zipfile\n"
        "names = [n for n in zipfile.ZipFile(sys.path[0]).namelist() if n.endswith('.py')]\n"
        "for n in names: importlib.import_module(n[:-3].replace('/__init__', '').replace('/', "
        "'.'))\n"
        "assert 'gpuscope' not in sys.modules"
    )
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_local_agent_is_kept_and_found_again(cache):
    argv = bundle.local_agent_argv(2.0)
    assert argv[:2] == [sys.executable, "-I"]
    assert argv[3:] == ["--hz", "2"]
    path = argv[2]
    assert os.path.dirname(path) == str(cache)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    made = os.stat(path).st_mtime_ns
    assert bundle.local_agent_argv(0.5)[2:] == [path, "--hz", "0.5"]
    assert os.stat(path).st_mtime_ns == made
    assert os.listdir(cache) == [os.path.basename(path)]


@pytest.mark.slow
def test_a_damaged_or_foreign_file_in_the_cache_is_replaced(cache):
    path = bundle.local_agent_zip()
    whole = os.path.getsize(path)
    with open(path, "r+b") as stream:
        stream.truncate(1000)
    assert os.path.getsize(bundle.local_agent_zip()) == whole
    os.chmod(path, 0o666)
    assert stat.S_IMODE(os.stat(bundle.local_agent_zip()).st_mode) == 0o600
    os.unlink(path)
    os.symlink("/etc/passwd", path)
    assert not os.path.islink(bundle.local_agent_zip())


def test_old_zips_go_and_new_ones_of_others_stay(cache):
    cache.mkdir(parents=True)
    for name, age in (("agent-old.zip", 8 * 86400), ("agent-new.zip", 3600), ("other", 9 * 86400)):
        (cache / name).write_bytes(b"")
        then = os.stat(cache / name).st_mtime - age
        os.utime(cache / name, (then, then))
    path = bundle.local_agent_zip()
    assert sorted(os.listdir(cache)) == sorted(["agent-new.zip", "other", os.path.basename(path)])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["file in its place", "open to others"])
def test_where_there_is_no_cache_a_private_file_does(tmp_path, monkeypatch, how):
    base = tmp_path / "cache"
    if how == "file in its place":
        base.write_text("")
    else:
        base.mkdir()
        (base / "gpuscope").mkdir()
        (base / "gpuscope").chmod(0o777)
    code = (
        "import sys, os; from gpuscope.attach import bundle; p = bundle.local_agent_zip(); "
        "print(p, oct(os.stat(p).st_mode & 0o777), os.path.getsize(p) > 1000)"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(base), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    path, mode, whole = done.stdout.split()
    assert (mode, whole) == ("0o600", "True"), done.stderr
    assert path.startswith(str(tmp_path))
    assert not os.path.exists(path)  # gone with the process that made it


def test_it_starts_without_compiling_anything(cache, tmp_path):
    original = zipfile.ZipFile(bundle.local_agent_zip())
    with zipfile.ZipFile(tmp_path / "agent.zip", "w") as changed:
        for name in original.namelist():
            changed.writestr(
                name, "this is no Python" if name.endswith(".py") else original.read(name)
            )
    done = subprocess.run(
        [sys.executable, "-I", tmp_path / "agent.zip", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "standard input" in done.stdout, done.stderr
