"""``gpuscope run``: real trainers in other processes, other environments, other Pythons."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuscope.attach import hook_directory, run
from gpuscope.errors import UsageError
from gpuscope.probe import rendezvous
from tests.fakes import pythons
from tests.fakes.cases import each
from tests.fakes.forked_scripts import free_port
from tests.fakes.probe_client import (
    ROOT,
    STEPS_OF_TWO_SECONDS,
    TRAINING,
    Reader,
    environment,
    lines_of_ours,
    sockets,
    wait_for,
)

SCRIPT = TRAINING + "import os\n"
PATIENCE = 600.0
"""Seconds that a trainer may take which starts Python with torch three times, however busy the
machine is: at a load of 25 on two cores such a one took up to 137 s, without gpuscope as with it.
"""


def gpuscope_run(*words: str, **more: str | None) -> subprocess.Popen[str]:
    """Start `gpuscope run` in a process of its own, as a user does.

    gpuscope is not importable in the trainer unless asked.
    """
    starter = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from gpuscope.cli.commands.run "
        "import main; "
    )
    starter += "sys.exit(main(sys.argv[1:]))"
    options: dict[str, str | None] = {
        "PYTHONPATH": None,
        "VIRTUAL_ENV": sys.prefix,
        "CONDA_PREFIX": None,
    }
    options.update(more)
    return subprocess.Popen(
        [sys.executable, "-c", starter, *words],
        env=environment(**options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(*words: str, **more: str | None) -> tuple[int, str, str]:
    process = gpuscope_run(*words, **more)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


# ── words ─────────────────────────────────────────────────────────────────────────────────────────


def environ_of(tmp_path: Path, *programs: str) -> dict[str, str]:
    (tmp_path / "bin").mkdir(exist_ok=True)
    for name in programs:
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return {"PATH": str(tmp_path / "bin")}


def test_python_is_the_environments_then_paths(tmp_path, monkeypatch):
    env = environ_of(tmp_path, "python3", "python")
    (tmp_path / "venv").mkdir()
    (tmp_path / "conda").mkdir()
    venv, conda = environ_of(tmp_path / "venv", "python"), environ_of(tmp_path / "conda", "python")
    venv_root, conda_root = str(tmp_path / "venv"), str(tmp_path / "conda")
    assert run.python(env) == str(tmp_path / "bin/python3")
    assert run.python({**env, "CONDA_PREFIX": conda_root}) == conda["PATH"] + "/python"
    assert (
        run.python({**env, "CONDA_PREFIX": conda_root, "VIRTUAL_ENV": venv_root})
        == venv["PATH"] + "/python"
    )
    assert run.python({**env, "VIRTUAL_ENV": "/not/there"}) == str(tmp_path / "bin/python3")
    monkeypatch.setattr(run, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="no python"):
        run.python({"PATH": "/not/there"})


def test_gpuscopes_own_python_is_taken_where_only_that_has_torch(tmp_path, monkeypatch):
    env = environ_of(tmp_path, "python3")

    def taken(environment):
        return run.command(["python", "-m", "train"], environment)[0]

    monkeypatch.setattr(run, "find_spec", lambda _: SimpleNamespace(origin="torch"))
    assert taken(env) == str(tmp_path / "bin/python3"), "it has torch too"
    (tmp_path / "bin/python3").write_text("#!/bin/sh\nexit 1\n")
    assert taken(env) == sys.executable
    assert taken({"PATH": "/not/there"}) == sys.executable
    monkeypatch.setattr(run, "find_spec", lambda _: None)
    assert taken(env) == str(tmp_path / "bin/python3")


def test_words_become_a_command(tmp_path, monkeypatch):
    env = environ_of(tmp_path, "python3", "torchrun")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    python, torchrun = str(tmp_path / "bin/python3"), str(tmp_path / "bin/torchrun")
    assert run.command(["train.py", "-m", "--", "--help"], env) == [
        python,
        "train.py",
        "-m",
        "--",
        "--help",
    ]
    assert run.command(["-m", "pkg.train", "--lr", "1"], env) == [
        python,
        "-m",
        "pkg.train",
        "--lr",
        "1",
    ]
    assert run.command(["--", "torchrun", "--nproc-per-node=2", "train.py"], env) == [
        torchrun,
        "--nproc-per-node=2",
        "train.py",
    ]
    assert run.command(["python3", "train.py"], env) == [python, "train.py"]


def test_python_in_front_of_a_script_is_the_one_that_the_script_alone_gets(tmp_path, monkeypatch):
    """A path, a version and what stands after -- are taken as they are."""
    env = environ_of(tmp_path, "python3", "python3.11")
    (tmp_path / "venv").mkdir()
    venv = environ_of(tmp_path / "venv", "python")["PATH"] + "/python"
    inside = {**env, "VIRTUAL_ENV": str(tmp_path / "venv")}
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    on_path = env["PATH"] + "/python3"
    for name in ("python", "python3"):
        for one in (env, inside):
            assert run.command([name, "train.py"], one) == run.command(["train.py"], one)
        assert run.command([name, "-u", "train.py"], inside) == [venv, "-u", "train.py"]
    assert run.command(["python3.11", "x.py"], inside)[0] == env["PATH"] + "/python3.11"
    assert run.command(["--", "python3", "x.py"], inside)[0] == on_path
    assert run.command([on_path, "train.py"], inside) == [on_path, "train.py"]


@pytest.mark.slow
def test_python_in_front_of_a_script_has_the_environments_packages(tmp_path):
    """Both forms give the same where the environment is not in PATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    (site / "only_there.py").write_text("")
    script = write(tmp_path / "train.py", "import only_there, sys; print(sys.prefix)")
    inside = {"VIRTUAL_ENV": str(tmp_path / "venv"), "PATH": os.defpath}
    for words in ([script], ["python", script], ["python3", script]):
        assert finished(*words, **inside)[:2] == (0, f"{tmp_path / 'venv'}\n")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["missing.py"],
        ["--", "missing-program"],
        *(pytest.param(words, marks=pytest.mark.slow) for words in (["--"], ["-m"], ["-X", "dev"])),
    ],
)
def test_what_cannot_run_is_a_usage_error_in_two_lines(words):
    code, out, err = finished(*words)
    assert (code, out) == (64, "")
    assert err.startswith("gpuscope run: ")
    assert len(err.splitlines()) == 2


def test_what_is_no_python_script_names_the_command_that_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = environ_of(tmp_path, "python3")
    files = {
        "train.sh": "#!/bin/bash\n",
        "train.py": "pass\n",
        "prog": "\x7fELF",
        "x.py": "#!/usr/bin/env pypy3\n",
    }
    for name, text in files.items():
        Path(name).write_text(text)
    os.makedirs("app/inner")
    Path("app/__main__.py").write_text("")
    for words, message in {
        ("train.sh",): r"not a Python script \(#!/bin/bash\).* gpuscope run -- train.sh",
        ("prog",): "gpuscope run -- prog",
        ("app/inner",): "directory without a __main__.py",
        ("--", "./train.py"): "not an executable file.* gpuscope run ./train.py",
        ("--", "app"): "is a directory",
    }.items():
        with pytest.raises(UsageError, match=message):
            run.command(list(words), env)
    for name in ("x.py", "train.py", "app"):
        assert run.command([name], env)[1] == name


def test_track_travels_to_the_probe_and_belongs_to_us_only_in_front(tmp_path, monkeypatch):
    env = environ_of(tmp_path, "python3")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    argv, found, _ = run.plan(["--no-doctor", "--track", "train.py"], env)
    assert argv[1:] == ["train.py"]
    assert found["GPUSCOPE_TRACK"] == "1"
    argv, found, _ = run.plan(["train.py", "--track"], env)
    assert argv[1:] == ["train.py", "--track"]
    assert "GPUSCOPE_TRACK" not in found


def test_history_travels_to_the_probe_and_belongs_to_us_only_in_front(tmp_path, monkeypatch):
    env = environ_of(tmp_path, "python3")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    for words in (["--history", "20000", "train.py"], ["--history=20000", "train.py"]):
        argv, found, line = run.plan(words, env)
        assert argv[1:] == ["train.py"]
        assert found["GPUSCOPE_HISTORY"] == "20000"
        assert "their overhead is measured and shown there" in line
    argv, found, line = run.plan(["train.py", "--history", "5"], env)
    assert argv[1:] == ["train.py", "--history", "5"]
    assert "GPUSCOPE_HISTORY" not in found
    assert "allocations" not in line
    for words in (
        ["--history"],
        ["--history", "train.py"],
        ["--history=-5", "train.py"],
        ["--history", "5"],
    ):
        with pytest.raises(UsageError):
            run.plan(words, env)


def test_help():
    code, out, _ = finished("--help")
    assert code == 0
    assert "gpuscope run [OPTIONS] -- COMMAND" in out


@each(
    ("argv", "option"),
    [
        (["/usr/bin/python3", "-I", "x.py"], "-I"),
        (["python3.11", "-uE", "x.py"], "-E"),
        (["python", "-X", "dev", "-S"], "-S"),
        (["python3", "-W", "ignore", "-um", "E"], None),
        (["python3", "x.py", "-I"], None),
        (["python3", "-c", "-I"], None),
        (["python3", "-WI", "x.py"], None),
        (["python3", "-Xfrozen_modules=off", "-s", "x.py"], None),
        (["torchrun", "-I"], None),
        (["python3", "--check-hash-based-pycs", "always", "-Es"], "-E"),
        (["python3", "-"], None),
        (["python3", "-mI"], None),
    ],
)
def test_options_that_keep_the_probe_out(argv, option):
    assert run.hiding_option(argv) == option


def test_pythonpath_is_kept_and_gets_no_empty_entry():
    assert run.environment({"PYTHONPATH": "/a:/b"}, "/hook")["PYTHONPATH"] == "/hook:/a:/b"
    assert run.environment({"PYTHONPATH": ""}, "/hook")["PYTHONPATH"] == "/hook"
    assert run.environment({}, "/hook")["PYTHONPATH"] == "/hook"
    assert run.environment({"PYTHONPATH": "/hook:/a"}, "/hook")["PYTHONPATH"] == "/hook:/a"


# ── the hook's directory ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(rendezvous, "BASE", str(tmp_path))
    return tmp_path


def test_the_hook_directory_is_private_complete_and_shared(base):
    path = Path(hook_directory.prepare())
    assert path.stat().st_mode & 0o777 == 0o700
    assert {p.name for p in path.iterdir()} == {"sitecustomize.py", "probe.zip"}
    before = path.stat().st_ino
    assert hook_directory.prepare() == str(path)
    assert path.stat().st_ino == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("damage", ["content", "extra", "missing", "mode", "symlink"])
def test_a_hook_directory_that_is_not_what_it_should_be_is_not_used(base, damage):
    path = Path(hook_directory.prepare())
    if damage == "content":
        (path / "sitecustomize.py").write_text("evil = 1\n")
    elif damage == "extra":
        (path / "torch.py").write_text("evil = 1\n")
    elif damage == "missing":
        (path / "probe.zip").unlink()
    elif damage == "mode":
        path.chmod(0o755)
    else:
        shutil.move(path, base / "moved")
        path.symlink_to(base / "moved")
    again = Path(hook_directory.prepare())
    assert again == path
    assert not again.is_symlink()
    assert hook_directory.is_intact(str(again), hook_directory.contents())


def test_of_ranks_that_start_at_once_none_takes_the_directory_away_from_another(base, monkeypatch):
    """While one makes its own, another has put its there, and its trainer is starting with it."""
    usual, theirs = tempfile.mkdtemp, []

    def mkdtemp(**where):
        monkeypatch.setattr(hook_directory.tempfile, "mkdtemp", usual)
        theirs.append(os.stat(hook_directory.prepare()).st_ino)
        return usual(**where)

    monkeypatch.setattr(hook_directory.tempfile, "mkdtemp", mkdtemp)
    path = Path(hook_directory.prepare())
    assert theirs == [path.stat().st_ino]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_broken_directory_that_two_put_aside_at_once_is_made_anew(base, monkeypatch):
    path = Path(hook_directory.prepare())
    (path / "probe.zip").unlink()
    usual = os.rename

    def rename(old, new):
        monkeypatch.setattr(hook_directory.os, "rename", usual)
        # which was a moment faster, and has not put its own there yet
        usual(path, base / "the other one's aside")
        usual(old, new)

    monkeypatch.setattr(hook_directory.os, "rename", rename)
    assert hook_directory.prepare() == str(path)
    assert hook_directory.is_intact(str(path), hook_directory.contents())


def test_no_safe_place_runs_the_trainer_anyway_and_says_why(base, tmp_path):
    os.mkdir(rendezvous.directory(), 0o755)
    script = write(tmp_path / "train.py", "")
    argv, env, line = run.plan([script], {"PATH": os.environ["PATH"]})
    assert argv[-1] == script
    assert "PYTHONPATH" not in env
    assert "0700" in line
    assert "without the probe" in line


# ── trainers ──────────────────────────────────────────────────────────────────────────────────────


def test_exit_code_arguments_stdin_and_stdout_are_the_trainers(tmp_path):
    script = write(
        tmp_path / "train.py", "import sys\nprint(sys.argv[1:], sys.stdin.read())\nsys.exit(3)"
    )
    process = gpuscope_run(script, "--epochs", "-m", "--", "x y")
    out, _ = process.communicate("hello", timeout=60)
    assert (process.returncode, out) == (3, "['--epochs', '-m', '--', 'x y'] hello\n")


def test_a_module_runs_as_python_runs_it(tmp_path, monkeypatch):
    (tmp_path / "pkg").mkdir()
    write(tmp_path / "pkg/__main__.py", "import sys\nprint(__package__, sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    assert finished("-m", "pkg", "-x")[:2] == (0, "pkg ['-x']\n")


def test_a_program_without_torch_sees_nothing_of_us(tmp_path):
    code = """
import sys
print([m for m in sys.modules if "gpuscope" in m])
print(sys.path)
print([m in sys.modules for m in ("torch", "threading", "dataclasses", "json")])
"""
    script = write(tmp_path / "x.py", code)
    bare = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment(PYTHONPATH=None)
    )
    _, out, err = finished(script)
    assert out.startswith("[]\n")
    assert out == bare.stdout
    assert len(err.splitlines()) == 1


def both(tmp_path: Path, code: str, *options: str, **more: str | None) -> tuple[int, str, str]:
    """Run a script bare and under `gpuscope run`.

    (code, stdout, stderr) are the same, but for the one line.
    """
    script = write(tmp_path / "train.py", code)
    bare = subprocess.run(
        [sys.executable, *options, script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(**{"PYTHONPATH": None, **more}),
    )
    status, out, err = finished("--", sys.executable, *options, script, **more)
    line, _, rest = err.partition("\n")
    assert line.startswith("gpuscope: watching pid ")
    assert (status, out, rest) == (bare.returncode, bare.stdout, bare.stderr)
    return status, out, rest


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", ["OSError('libcudart missing')", "ImportError('half way')", "KeyboardInterrupt"]
)
def test_a_torch_that_fails_to_import_fails_as_before(tmp_path, error):
    (tmp_path / "torch").mkdir()
    write(
        tmp_path / "torch/__init__.py",
        f"import warnings\nwarnings.warn('old', stacklevel=2)\nraise {error}",
    )
    both(tmp_path, "import torch")
    caught = "import sys\ntry:\n    import torch\nexcept BaseException as e:\n    print(repr(e))\n"
    _, out, _ = both(tmp_path, caught + "print('torch' in sys.modules)")
    assert out.endswith("False\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root")
@pytest.mark.parametrize("away", ["os.chroot('.')", "os.setgroups([]); os.setuid(65534)"])
def test_an_error_behind_a_chroot_or_a_change_of_user_looks_as_without_us(
    tmp_path, away, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    both(tmp_path, f"import os\n{away}\nraise ValueError('theirs')")


LEARN = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
print(sys.path, sys.flags, sys.argv, flush=True)
import torch
if "again" in sys.argv:  # after exec: the probe has begun anew, and no step is needed for that
    os._exit(7)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
for _ in range(5): step()
"""
TRACEBACKS = """
import traceback
class Data(torch.utils.data.Dataset):
    def __init__(self, get): self.get = get
    def __len__(self): return 8
    def __getitem__(self, index): return self.get(index)
def broken(index): raise KeyError("no sample")
def interrupted(index): os.kill(os.getpid(), signal.SIGINT)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
def scaled():
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    optimizer.param_groups[0]["lr"] = None
    scaler.step(optimizer)
def load(get, **options):
    for _ in torch.utils.data.DataLoader(Data(get), batch_size=2, **options): pass
for fail in (lambda: load(broken), lambda: load(broken, num_workers=1), scaled, lambda: load(interrupted)):
    try:
        fail()
    except BaseException:
        traceback.print_exc()
"""  # noqa: E501
ENDINGS = """
import atexit, gc
optimizer.param_groups[0]["lr"] = 0.001
gc.collect()  # the failed loader with its process, which its own traceback holds
atexit.register(step)
atexit.register(print, "late")
for target, args in ((step, ()), (sys.exit, (4,))):
    thread = threading.Thread(target=target, args=args)
    thread.start()
    thread.join()
def end(): sys.exit(3)
def again(): os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
for go_on in (end, again):
    if os.fork() == 0:
        step()
        go_on()
    print(os.wait()[1], flush=True)
load(interrupted)
"""
SETTINGS: dict[str, str | None] = {
    "PYTHONDEVMODE": "1",
    "PYTHONPATH": "/not there::/nor there",
    "TMPDIR": "/not/there",
    "HOME": None,
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONIOENCODING": "ascii",
}
"""How Python is started for it."""


@pytest.mark.slow
def test_a_trainer_ends_as_it_does_without_us(tmp_path):
    """It has the same settings of Python, tracebacks, threads, forks and ends."""
    pytest.importorskip("torch")
    status, out, _ = both(tmp_path, LEARN + TRACEBACKS + ENDINGS, "-s", **SETTINGS)
    assert out.count("sys.flags") == 2
    assert status == -signal.SIGINT
    assert [int(line) for line in out.splitlines() if line.isdigit()] == [3 << 8, 7 << 8]
    assert out.splitlines().count("late") == 2, (
        "of the fork that ends by itself, and of the trainer"
    )


def test_the_users_own_sitecustomize_still_runs(tmp_path):
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine/sitecustomize.py", "import builtins\nbuiltins.mine = __file__\n")
    code = "import sys\nprint(mine)\nprint(sys.modules['sitecustomize'].__file__)\n"
    code += "print(any(type(f).__name__ == 'OnImport' for f in sys.meta_path))"
    _, out, _ = finished(write(tmp_path / "x.py", code), PYTHONPATH=str(tmp_path / "mine"))
    path = str(tmp_path / "mine/sitecustomize.py")
    assert out == f"{path}\n{path}\nTrue\n"


def test_an_error_in_the_users_own_sitecustomize_is_shown_as_python_shows_it(tmp_path):
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine/sitecustomize.py", "import not_installed_here\n")
    script = write(tmp_path / "x.py", "print('ran')")
    code, out, err = finished(script, PYTHONPATH=str(tmp_path / "mine"))
    assert (code, out) == (0, "ran\n")
    assert "not_installed_here" in err


@pytest.mark.slow
@pytest.mark.parametrize("minor", [8, 13, 15])
def test_the_hook_under_older_and_newer_pythons(minor, tmp_path):
    """A torch of our own making has the one registration that matters: it is seen and counted.

    The probe itself runs under every Python in test_enable.py and test_inject.py.
    """
    python = pythons.find_or_skip(minor)
    fake_torch(tmp_path)
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine/sitecustomize.py", "import builtins\nbuiltins.mine = 1\n")
    code = """
import torch, time, sys
from torch.optim.optimizer import Optimizer
optimizer = Optimizer()
print(mine, flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    optimizer.step()
    time.sleep(0.01)
"""
    script = write(tmp_path / "train.py", code)
    process = gpuscope_run(
        "--",
        python,
        script,
        PYTHONPATH=f"{tmp_path / 'mine'}:{tmp_path / 'lib'}",
        GPUSCOPE_DEBUG="1",
    )
    try:
        assert process.stdout.readline() == "1\n", process.stderr.read()
        reader = Reader(wait_for(lambda: sockets(process.pid), 60, "a socket")[0])
        reader.until(lambda: (reader.value("step") or 0) > 5)
        assert reader.trainer().python_version.startswith(f"3.{minor}.")
        assert reader.answer(frames_request("detach")).value == {}
        reader.close()
        wait_for(lambda: not sockets(process.pid))
    finally:
        process.kill()
        _, err = process.communicate()
    assert len(err.splitlines()) == 1, err


def frames_request(name):
    from gpuscope.wire.frames import Request

    return Request(name, 1)


def fake_torch(tmp_path: Path) -> None:
    files = {
        "__init__.py": (
            "import torch.compiler, torch.nn, torch.optim.optimizer\n"
            "__version__, strided = '2.1.0', 'strided'\nclass Tensor: pass\n"
        ),
        "nn.py": "class Parameter: pass\n",
        "version.py": "cuda = hip = None",
        "compiler.py": "def is_compiling(): return False\n",
        "optim/__init__.py": "",
        "optim/optimizer.py": """
from collections import OrderedDict
_global_optimizer_post_hooks = OrderedDict()
class Handle:
    def remove(self): _global_optimizer_post_hooks.pop(1, None)
def register_optimizer_step_post_hook(hook):
    _global_optimizer_post_hooks[1] = hook
    return Handle()
class Optimizer:
    def __init__(self): self.param_groups, self.state = [], {}
    def step(self):
        for hook in _global_optimizer_post_hooks.values(): hook(self, (), {})
""",
    }
    for name, text in files.items():
        path = tmp_path / "lib/torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_minus_i_says_that_it_hides_the_probe_and_runs(tmp_path):
    script = write(tmp_path / "x.py", "print('ran')")
    code, out, err = finished("--", sys.executable, "-I", script)
    assert (code, out) == (0, "ran\n")
    assert "-I prevents it" in err
    assert len(err.splitlines()) == 1


def test_gpuscope_0_leaves_the_probe_out(tmp_path):
    script = write(tmp_path / "x.py", "import os; print(os.environ.get('PYTHONPATH'))")
    code, out, err = finished(script, GPUSCOPE="0")
    assert (code, out) == (0, "None\n")
    assert "GPUSCOPE=0" in err


def give_torch(site: Path, tmp_path: Path) -> None:
    """Put torch and what it needs into an environment, but not gpuscope.

    That is the environment of somebody who has never heard of us.
    """
    torch = pytest.importorskip("torch")
    (tmp_path / "packages").mkdir()
    for entry in Path(torch.__file__).parent.parent.iterdir():
        if "gpuscope" not in entry.name and entry.suffix != ".pth":
            (tmp_path / "packages" / entry.name).symlink_to(entry)
    (site / "theirs.pth").write_text(f"{tmp_path / 'packages'}\n")


@pytest.mark.slow
def test_a_script_in_another_venv_without_gpuscope_is_seen_within_two_seconds(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    give_torch(site, tmp_path)
    code = (
        SCRIPT + "try:\n    import gpuscope\nexcept ImportError:\n"
        "    print('no gpuscope', sys.prefix, flush=True)\ntrain()"
    )
    script, venv = write(tmp_path / "train.py", code), tmp_path / "venv"
    process = gpuscope_run(script, "--lr", "1", VIRTUAL_ENV=str(venv))
    try:
        assert process.stdout.readline() == f"no gpuscope {venv}\n", process.stderr.read()
        reader = Reader(wait_for(lambda: sockets(process.pid), 60, "a socket")[0])
        reader.until(lambda: (reader.value("step") or 0) >= 2)
        assert reader.value("step") <= STEPS_OF_TWO_SECONDS
        assert reader.trainer().origin == "run"
        assert reader.trainer().script == script
        reader.close()
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    assert lines_of_ours(err) == [
        f"gpuscope: watching pid {process.pid} ({venv}/bin/python). See it from another terminal:"
        "  gpuscope"
    ]
    for path in sockets(process.pid):
        path.unlink()


RANKS = """
import os, sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 100000
    def __getitem__(self, index): return torch.ones(8)
def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    model = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.02)
        stop = torch.tensor(float(os.path.exists(sys.argv[1])))
        dist.all_reduce(stop)  # both leave in the same step, else one waits for the other for ever
        if stop: break
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_torchrun_with_two_ranks_spawned_workers_and_compile_makes_exactly_two_sockets(tmp_path):
    pytest.importorskip("torch")
    torchrun = Path(sys.executable).parent / "torchrun"
    if not torchrun.exists():
        pytest.skip("no torchrun beside this Python")
    script, port = write(tmp_path / "ranks.py", RANKS), str(free_port())
    process = gpuscope_run(
        "--",
        str(torchrun),
        "--nproc-per-node",
        "2",
        "--master-port",
        port,
        script,
        str(tmp_path / "stop"),
    )

    def made() -> list[Path]:
        return [path for path in sockets() if process.pid in ancestors(pid_of(path))]

    ranks: list[int] = []
    try:
        wait_for(lambda: len(made()) >= 2, 150, "two sockets")
        ranks = [pid_of(path) for path in made()]
        readers = [Reader(path) for path in made()]
        for reader in readers:
            reader.until(
                lambda r=reader: (
                    (r.value("step") or 0) > 5 and r.value("loader_wait_seconds") is not None
                ),
                60,
            )
        assert len(made()) == len(readers) == 2
        trainers = [reader.trainer() for reader in readers]
        assert sorted(t.rank for t in trainers) == [0, 1]
        assert sorted(t.local_rank for t in trainers) == [0, 1]
        assert {(t.world_size, t.job) for t in trainers} == {(2, f"127.0.0.1:{port}")}
        for reader in readers:
            reader.close()
        (tmp_path / "stop").touch()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    finally:
        for pid in ranks:  # torchrun gives each a session of its own: they would outlive it
            if process.poll() is None:
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()
        for path in sockets():
            if pid_of(path) in ranks:
                path.unlink()  # os._exit leaves it to the agents


def pid_of(path: Path) -> int:
    return int(path.name.split("-")[0])


def ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            break
        found.append(pid)
    return found
