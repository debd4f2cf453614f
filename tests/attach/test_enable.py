"""``gpuscope enable`` and ``disable`` work in real environments.

They are tried with the Pythons of this machine and real trainers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.attach import enable, enable_files, enable_target
from gpuscope.cli import main as cli
from tests.attach.test_run import fake_torch, frames_request, give_torch
from tests.fakes import pythons
from tests.fakes.probe_client import TRAINING, Reader, environment, lines_of_ours, sockets, wait_for
from tests.fakes.program import program

FILES = {enable_files.PTH, enable_files.ZIP}


def make(path: Path, python: str = sys.executable) -> Path:
    """A new environment without pip; its site-packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", path], check=True)
    (site,) = (path / "lib").glob("python*/site-packages")
    return site


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The site-packages of a new environment that is the active one."""
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    monkeypatch.delenv("GPUSCOPE", raising=False)
    return make(tmp_path / "venv")


def said(capsys, *words: str, code: int = 0) -> str:
    """What a verb printed, on both streams; its exit code is checked."""
    found = cli.main(list(words))
    streams = capsys.readouterr()
    assert found == code, streams
    return streams.out + streams.err


def start(python: Path | str, *words: str, **more: str | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, "-u", *words],
        env=environment(**{"PYTHONPATH": None, **more}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(python: Path | str, *words: str, **more: str | None) -> tuple[int, str, str]:
    process = start(python, *words, **more)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ── the files ─────────────────────────────────────────────────────────────────────────────────────


def test_two_files_come_and_exactly_these_go(site, capsys):
    (site / "theirs.py").write_text("x = 1\n")
    before = listing(site)
    dry = said(capsys, "enable", "--dry-run")
    assert listing(site) == before
    assert all(str(site / name) in dry for name in FILES)
    assert "not enabled" in said(capsys, "enable", "--status", code=1)
    assert cli.main(["enable", "--json"]) == 64, "--status was forgotten: nothing is written"
    assert "--json goes with --status" in capsys.readouterr().err
    assert listing(site) == before
    first = said(capsys, "enable")
    assert "$VIRTUAL_ENV" in first
    assert "No torch is installed yet" in first
    after = listing(site)
    assert set(after) - set(before) == FILES
    assert said(capsys, "enable").startswith("Already enabled")
    assert listing(site) == after
    status = json.loads(said(capsys, "enable", "--status", "--json"))
    assert status["places"] == [
        {
            "folder": str(site),
            "state": "intact",
            "reason": None,
            "version": "0.1.0",
            "allow_attach": False,
        }
    ]
    said(capsys, "disable", "--dry-run")
    assert listing(site) == after
    gone = said(capsys, "disable")
    assert all(str(site / name) in gone for name in FILES)
    assert listing(site) == before
    assert "Nothing to do" in said(capsys, "disable")


def test_the_pth_is_one_line_of_code_that_names_no_directory(site, capsys):
    said(capsys, "enable")
    text = (site / enable_files.PTH).read_text()
    title, facts, line, end = text.split("\n")
    assert (title[0], facts[0], end) == ("#", "#", "")
    assert line.startswith("import sys; exec(")
    assert str(site) not in text
    assert str(site).encode() not in (site / enable_files.ZIP).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("change", ["content", "symlink", "directory"])
def test_what_somebody_changed_is_reported_and_left_alone(site, capsys, name, change):
    said(capsys, "enable")
    path = site / name
    if change == "content":
        path.write_bytes(path.read_bytes() + b"# mine\n")
    elif change == "symlink":
        shutil.move(path, site.parent / "aside")
        path.symlink_to(site.parent / "aside")
    else:
        path.unlink()
        path.mkdir()
    before = listing(site)
    assert "changed" in said(capsys, "enable", "--status", code=2)
    for verb in ("enable", "disable"):
        text = said(capsys, verb, code=2)
        assert f"rm {site / enable_files.PTH} {site / enable_files.ZIP}" in text
    assert listing(site) == before


@pytest.mark.slow
def test_half_of_it_is_said_and_mended(site, capsys):
    said(capsys, "enable")
    (site / enable_files.ZIP).unlink()
    assert "incomplete" in said(capsys, "enable", "--status", code=2)
    said(capsys, "enable")
    assert "enabled" in said(capsys, "enable", "--status")
    (site / enable_files.PTH).unlink()
    assert "the zip's owner is unknown" in said(capsys, "disable", code=2)
    said(capsys, "enable")
    (site / enable_files.ZIP).unlink()
    said(capsys, "disable")
    assert listing(site) == {}


@pytest.mark.slow
def test_another_version_is_renewed_whole(site, capsys, monkeypatch):
    with monkeypatch.context() as old:
        old.setattr(enable_files, "__version__", "0.0.9")
        old.setattr(
            enable_files,
            "_LATER",
            enable_files._LATER.replace("import os", "import os  # as it was then"),
        )
        said(capsys, "enable")
    before = listing(site)
    assert "another version of gpuscope: update it with  gpuscope enable (gpuscope 0.0.9)" in said(
        capsys, "enable", "--status", code=1
    )
    kept = os.open(site / enable_files.PTH, os.O_RDONLY)
    assert said(capsys, "enable").startswith("Renewed")
    assert os.pread(kept, 1 << 20, 0) == before[enable_files.PTH]  # replaced, not written into
    os.close(kept)
    assert set(listing(site)) == FILES
    assert said(capsys, "enable").startswith("Already")
    assert "may attach" in said(capsys, "enable", "--allow-attach")
    assert (
        json.loads(said(capsys, "enable", "--status", "--json"))["places"][0]["allow_attach"]
        is True
    )
    said(capsys, "disable")
    assert listing(site) == {}


def test_what_claims_to_be_ours_without_the_seal_is_not():
    enabled = enable_files.Enabled("9", "cpython-311", "s", "z", False)
    content = enable_files.pth_bytes(enabled)
    assert enable_files.parse(content) == enabled
    for hostile in (
        content.replace(b"import sys; ", b"import sys, x; "),
        content.replace(b'"9"', b'"8"'),
        content + b"import x\n",
        b"",
        b"\xff",
        b"#\n# []\n\n",
        b"#\n# {}\n\n",
        b"#\n# " + b"[" * 60_000 + b"\nx\n",
    ):
        assert enable_files.parse(hostile) is None


# ── which environment ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_gpuscopes_own_environment_is_not_prepared_by_accident(tmp_path, monkeypatch, capsys):
    site = make(tmp_path / "own")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "own"))
    assert "gpuscope's own environment and has no torch" in said(capsys, "enable", code=2)
    assert listing(site) == {}
    fake_torch(tmp_path)
    (site / "torch.pth").write_text(f"{tmp_path / 'lib'}\n")
    assert "gpuscope's own environment)" in said(capsys, "enable")


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/not/there", "no such program"),
        ("/bin/true", "does not answer as a Python 3"),
        ("/bin/false", "exit code 1"),
        ("/etc", "without bin/python"),
        ("/etc/hostname", "cannot be started"),
    ],
)
def test_what_is_no_python_is_refused_with_the_next_command(python, message, capsys):
    for verb in ("enable", "disable"):
        text = said(capsys, verb, "--python", python, code=2)
        assert message in text
        assert "  " in text.rstrip()


def test_no_python_at_all_is_said(monkeypatch, capsys):
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/not/there")
    assert "gpuscope enable --python /path/to/python" in said(capsys, "enable", code=2)


def prefix(path: Path, python: str) -> Path:
    """An installation by itself, as conda makes one, of links to another; its Python."""
    real = Path(os.path.realpath(python))
    (library,) = (real.parent.parent / "lib").glob(f"{real.name}")
    (path / "bin").mkdir(parents=True)
    shutil.copy(real, path / "bin/python")
    inside = path / "lib" / library.name
    inside.mkdir(parents=True)
    for entry in library.iterdir():
        if entry.name not in ("site-packages", "EXTERNALLY-MANAGED"):
            (inside / entry.name).symlink_to(entry)
    for entry in (real.parent.parent / "lib").glob("libpython*"):
        (path / "lib" / entry.name).symlink_to(entry)
    (inside / "site-packages").mkdir()
    return path / "bin/python"


@pytest.fixture
def conda(tmp_path):
    python = pythons.find(12) or pythons.find(10)
    if python is None or not list(
        (Path(os.path.realpath(python)).parent.parent / "lib").glob("python3.*/os.py")
    ):
        pytest.skip("needs a Python 3.12 or 3.10 with its library beside it")
    return prefix(tmp_path / "conda", python)


@pytest.mark.slow
def test_conda_and_a_system_that_is_managed(conda, monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "home"))
    (site,) = (tmp_path / "conda/lib").glob("python*/site-packages")
    assert "$CONDA_PREFIX" in said(capsys, "enable")
    assert set(listing(site)) == FILES
    said(capsys, "disable")
    (site.parent / "EXTERNALLY-MANAGED").write_text("[externally-managed]\n")
    text = said(capsys, "enable", code=2)
    assert f"gpuscope enable --python {conda} --user" in text
    assert listing(site) == {}
    said(capsys, "enable", "--user")
    (mine,) = (tmp_path / "home/lib").glob("python*/site-packages")
    assert set(listing(mine)) == FILES
    assert "for your account:  gpuscope disable --user" in said(capsys, "disable")
    assert str(mine) in said(capsys, "enable", "--status")
    code = "import sys; print(type(sys.meta_path[0]).__name__)"
    assert ended(conda, "-c", code, PYTHONUSERBASE=str(tmp_path / "home"))[1] == "GpuscopeEnabled\n"
    assert (
        ended(conda, "-I", "-c", code, PYTHONUSERBASE=str(tmp_path / "home"))[1]
        != "GpuscopeEnabled\n"
    )
    said(capsys, "disable", "--user")
    assert listing(mine) == {}
    said(capsys, "enable", "--break-system-packages")
    assert set(listing(site)) == FILES


@pytest.mark.slow
def test_an_environment_that_uv_made_and_starts(tmp_path, monkeypatch, capsys):
    uv = pythons.uv()
    if uv is None:
        pytest.skip("no uv here, and none could be had from the package index")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    words = [
        uv,
        "venv",
        "-q",
        "--offline",
        "--no-config",
        "--python",
        sys.executable,
        str(tmp_path / "project/.venv"),
    ]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    inside = tmp_path / "project/.venv"
    (site,) = (inside / "lib").glob("python*/site-packages")
    assert "uv = " in (inside / "pyvenv.cfg").read_text()
    fake_torch(tmp_path)
    (site / "lib.pth").write_text(f"{tmp_path / 'lib'}\n")
    before = listing(site)
    said(capsys, "enable", "--python", str(inside))
    assert set(listing(site)) - set(before) == FILES
    starter = [
        uv,
        "run",
        "-q",
        "--offline",
        "--no-config",
        "--no-project",
        "--directory",
        str(tmp_path / "project"),
        "python",
        "-u",
        "-c",
        STEPS,
    ]
    process = subprocess.Popen(
        starter,
        env=environment(PYTHONPATH=None, UV_CACHE_DIR=str(tmp_path / "cache")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "False ['_gpuscope_on_import', '_gpuscope_probe']\n", (
            process.stderr.read()
        )
        tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
        (trainer,) = [int(word) for task in tasks for word in task.read_text().split()]
        reader = Reader(wait_for(lambda: sockets(trainer), 20)[0])
        assert reader.until(lambda: (reader.value("step") or 0) > 5, 20)
        assert reader.trainer().origin == "enable"
        reader.close()
    finally:
        os.killpg(process.pid, 9)
        process.communicate()
    said(capsys, "disable", "--python", str(inside))
    assert listing(site) == before


def test_a_venv_has_no_user_site(site, capsys):
    text = said(capsys, "enable", "--user", code=2)
    assert "does not read the user's site-packages" in text
    assert "Without --user:  gpuscope enable" in text


def test_a_directory_that_cannot_be_written_is_refused_with_what_works_instead(site):
    package = Path(enable.__file__)
    if os.geteuid() == 0 and not all(folder.stat().st_mode & 0o001 for folder in package.parents):
        pytest.skip(f"another user cannot read {package.parents[2]}")
    shared = Path("/tmp") / f"gpuscope-test-enable-{os.getpid()}"  # where another user may look
    site.parents[3].rename(shared)
    try:
        found = enable_target.find(str(shared / "venv"), {})
        for folder, _, _ in os.walk(shared):
            os.chmod(folder, 0o555)
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                enable.plan(found, False, False, False, True)
                os.write(write_end, b"nothing refused")
            except BaseException as error:
                os.write(write_end, f"{type(error).__name__}: {error}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        text = os.read(read_end, 4096).decode()
        assert text.startswith("CannotEnable: ")
        assert "is not writable. For one training:  gpuscope run SCRIPT" in text
        os.close(read_end)
        os.close(write_end)
    finally:
        for folder, _, _ in os.walk(shared):
            os.chmod(folder, 0o755)
        shutil.rmtree(shared)


# ── other programs of the environment ─────────────────────────────────────────────────────────────

LOOK = """
import sys
print(sorted(m for m in sys.modules if "site" not in m), sys.path, sys.argv, sys.flags)
import importlib.util
print("torch" in sys.modules)
"""


@pytest.mark.slow
def test_a_program_without_torch_notices_nothing(site, capsys):
    python = site.parents[2] / "bin/python"
    bare = ended(python, "-c", LOOK)
    said(capsys, "enable")
    assert ended(python, "-c", LOOK) == bare
    assert ended(python, "-S", "-c", "import sys; print(len(sys.meta_path))")[1] == "3\n"
    strict = ended(python, "-X", "dev", "-W", "error", "-c", "pass")
    assert strict == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "bits", "missing", "unreadable code"])
def test_a_broken_zip_is_silent_and_torch_is_as_without_us(site, capsys, tmp_path, damage):
    fake_torch(tmp_path)
    (site / "lib.pth").write_text(f"{tmp_path / 'lib'}\n")
    said(capsys, "enable")
    archive = site / enable_files.ZIP
    content = archive.read_bytes()
    if damage == "cut":
        archive.write_bytes(content[: len(content) // 2])
    elif damage == "bits":
        archive.write_bytes(bytes(byte ^ (index % 7 == 0) for index, byte in enumerate(content)))
    elif damage == "missing":
        archive.unlink()
    else:
        pth = site / enable_files.PTH
        pth.write_text(pth.read_text().replace("import hashlib", "import not_there"))
    python = site.parents[2] / "bin/python"
    code = (
        "import torch, sys; print(torch.__version__, [m for m in sys.modules if 'gpuscope' in m])"
    )
    assert ended(python, "-c", code) == (0, "2.1.0 []\n", "")
    _, out, err = ended(python, "-c", code, GPUSCOPE_DEBUG="1")
    assert out == "2.1.0 []\n"
    assert err.startswith("gpuscope: not watching: ")
    assert len(err.splitlines()) == 1


STEPS = """
import sys, time, torch
from torch.optim.optimizer import Optimizer
optimizer = Optimizer()
optimizer.step()
print(any(type(f).__name__ in ("GpuscopeEnabled", "OnImport") for f in sys.meta_path),
      sorted({m.partition(".")[0] for m in sys.modules if "gpuscope" in m}), flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    optimizer.step()
    time.sleep(0.01)
"""


def seen(process: subprocess.Popen[str], python: str) -> str:
    """The origin of the probe in ``process``, once it has counted steps; then it is taken out."""
    reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
    reader.until(lambda: (reader.value("step") or 0) > 5, 60)
    trainer = reader.trainer()
    assert trainer.python_version.startswith(python)
    assert reader.answer(frames_request("detach")).value == {}
    reader.close()
    return str(trainer.origin)


@pytest.mark.slow
@pytest.mark.parametrize("minor", pythons.MINORS)
def test_under_every_python(minor, tmp_path, capsys):
    """A torch of our own making, with the one registration that matters."""
    python = pythons.find_or_skip(minor)
    fake_torch(tmp_path)
    site = make(tmp_path / "venv", python)
    (site / "lib.pth").write_text(f"{tmp_path / 'lib'}\n")
    inside = tmp_path / "venv/bin/python"
    assert pythons.starts(inside, minor), f"an environment of this python3.{minor} does not start"
    said(capsys, "enable", "--python", str(tmp_path / "venv"))
    process = start(inside, "-I", "-c", STEPS, GPUSCOPE_DEBUG="1")
    try:
        assert process.stdout.readline() == "False ['_gpuscope_on_import', '_gpuscope_probe']\n", (
            process.stderr.read()
        )
        assert seen(process, f"3.{minor}.") == "enable"
        # Nothing is read from the zip later on: it may be replaced, or go.
        assert not [path for path in os.listdir(f"/proc/{process.pid}/fd") if "zip" in path]
    finally:
        process.kill()
        _, err = process.communicate()
    assert err == ""
    first = STEPS.partition("end =")[0]
    for words, more in ((("-S",), {"PYTHONPATH": str(tmp_path / "lib")}), ((), {"GPUSCOPE": "0"})):
        assert ended(inside, *words, "-c", first, **more) == (0, "False []\n", "")


@pytest.mark.slow
def test_a_copied_environment_works_and_run_goes_first(site, capsys, tmp_path):
    fake_torch(tmp_path)
    (site / "lib.pth").write_text(f"{tmp_path / 'lib'}\n")
    said(capsys, "enable")
    shutil.copytree(site.parents[2], tmp_path / "copy", symlinks=True)
    shutil.rmtree(site.parents[2])
    python = tmp_path / "copy/bin/python"
    version = ".".join(map(str, sys.version_info[:2]))
    starter = f"import sys; sys.path.insert(0, {str(Path(cli.__file__).parents[2])!r}); "
    starter += "from gpuscope.cli.commands.run import main; main(sys.argv[1:])"
    for words, origin in (
        (["-c", STEPS], "enable"),
        (["-c", starter, "--", str(python), "-u", "-c", STEPS], "run"),
    ):
        process = start(python if origin == "enable" else sys.executable, *words)
        try:
            assert process.stdout.readline().startswith("False ['_gpuscope"), process.stderr.read()
            assert seen(process, version) == origin
        finally:
            process.kill()
            process.communicate()


PRCTL = """
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>
#include <sys/syscall.h>
int prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
    if (option == 0x59616d61) dprintf(2, "ptracer %ld %lu %lu %lu\\n", (long) a, b, c, d);
    return syscall(SYS_prctl, option, a, b, c, d);
}
"""


@pytest.mark.slow
def test_who_may_trace_a_trainer_is_its_owners_choice(site, capsys, tmp_path):
    """Through a prctl of our own that shows what it is asked: this kernel may have no Yama."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc to look at prctl")
    (tmp_path / "prctl.c").write_text(PRCTL)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", tmp_path / "p.so", tmp_path / "prctl.c"], check=True
    )
    fake_torch(tmp_path)
    (site / "lib.pth").write_text(f"{tmp_path / 'lib'}\n")
    code = (
        "import sys, os, torch\nfrom torch.optim.optimizer import Optimizer\n"
        "print('ready', file=sys.stderr)\n"
    )
    code += (
        "Optimizer().step()\nsys.stderr.write('stepped\\n')\nif os.fork() == 0:\n"
        "    Optimizer().step()\n"
    )
    code += "    os._exit(0)\nos.wait()\nsys._gpuscope_probe.detach()\n"
    said(capsys, "enable", "--allow-attach")
    python = site.parents[2] / "bin/python"
    _, _, err = ended(python, "-c", code, LD_PRELOAD=str(tmp_path / "p.so"))
    anyone, nobody = "ptracer -1 0 0 0", "ptracer 0 0 0 0"
    assert err.splitlines() == ["ready", anyone, "stepped", anyone, nobody]
    said(capsys, "enable")
    _, _, err = ended(python, "-c", code, LD_PRELOAD=str(tmp_path / "p.so"))
    assert err.splitlines() == ["ready", "stepped"]


# ── a real training ───────────────────────────────────────────────────────────────────────────────

TRAIN = """
import subprocess
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.ones(16)
class Out(torch.utils.data.IterableDataset):
    def __iter__(self): return iter([torch.ones(16)] * 4)
if __name__ == "__main__":
    for batch in DataLoader(Data(), batch_size=2, num_workers=2): step()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    try:
        import gpuscope
    except ImportError:
        print("no gpuscope here", flush=True)
    train()
"""


@pytest.mark.slow
def test_a_training_started_afterwards_is_in_ps_without_any_change(site, capsys, tmp_path):
    give_torch(site, tmp_path)
    said(capsys, "enable")
    (tmp_path / "train.py").write_text(TRAINING + TRAIN)
    process = start(site.parents[2] / "bin/python", str(tmp_path / "train.py"))
    try:
        assert process.stdout.readline() == "no gpuscope here\n", process.stderr.read()
        wait_for(lambda: sockets(process.pid), 90)
        said(capsys, "disable")  # what runs keeps its probe
        shown = program("ps", "--json", "--timeout", "20").stdout
        (row,) = [row for row in json.loads(shown)["processes"] if row["pid"] == process.pid]
        assert row["trainer"]["origin"] == "enable"
        assert row["trainer"]["script"] == str(tmp_path / "train.py")
        assert row["trainer"]["step"] >= 4
    finally:
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert lines_of_ours(err) == []  # torch has warnings of its own
    for path in sockets(process.pid):
        path.unlink()
