"""Users install the wheel as pip builds it, the source archive, and the Makefile's set-up.

All without a network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from tests.fakes import probe_client

ROOT = Path(__file__).parent.parent
SOURCES = (
    "gpuscope", "tests", "bench", "demos", "docs", "README.md", "CHANGELOG.md", "LICENSE",
    "Makefile", "constraints.txt", "mkdocs.yml", "pyproject.toml",
)  # fmt: skip


def run(*words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(w) for w in words], capture_output=True, text=True, timeout=60, **options
    )  # type: ignore[call-overload,no-any-return]


def done(*words: str | Path, **options: object) -> str:
    """The standard output of a command that has to succeed."""
    result = run(*words, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as in a clean clone."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="session")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="building needs hatchling: pip install hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--no-deps", "--no-index", "--no-build-isolation")
    done(sys.executable, "-m", "pip", "wheel", "-q", *offline, "-w", folder, ".", cwd=checkout)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="session")
def about(wheel: Path) -> Message:
    """The metadata of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_style_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        infos = [name for name in archive.namelist() if ".dist-info/" in name]
        entry_points = archive.read(
            next(n for n in infos if n.endswith("entry_points.txt"))
        ).decode()
    ours = {
        p for p in (ROOT / "gpuscope").rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    # for `gpuscope lab pitfall`
    pitfalls = {p for p in (ROOT / "demos" / "pitfalls").iterdir() if p.is_file()}
    (manual,) = (name for name in names if name.endswith(".data/data/share/man/man1/gpuscope.1"))
    assert names - {manual} == {str(p.relative_to(ROOT)) for p in ours} | {
        f"gpuscope/{p.relative_to(ROOT)}" for p in pitfalls
    }
    assert any(name.endswith(".tcss") for name in names)
    assert any(name.endswith("/LICENSE") for name in infos)
    assert "gpuscope = gpuscope.cli:entry" in entry_points
    assert "gpuscope = gpuscope.check.pytest_plugin" in entry_points
    assert wheel.name.endswith("-py3-none-any.whl")


def test_pip_is_never_told_our_name_which_no_index_has(about):
    """What an index has by a similar name is somebody else's."""
    assert about["Name"] == "gpuscope"
    places = [
        ROOT / "README.md",
        *(p for name in ("gpuscope", "docs", "demos") for p in (ROOT / name).rglob("*")),
    ]
    texts = [
        path
        for path in places
        if path.suffix in (".md", ".py", ".toml", ".tcss") or path.name == "Dockerfile"
    ]
    advice = re.compile(
        r"pip3? install(?:[ \t]+[^\s#]+)*?[ \t]+['\"]?gpuscope(?:[\['\"`)\s]|$)", re.M
    )
    assert [path for path in texts if advice.search(path.read_text())] == []


REQUIREMENT = re.compile(r"([\w.-]+)\s*([^;]*)(?:;\s*(.*))?$")


def test_the_requirements_are_bounded_and_pull_no_torch(about):
    assert about["Requires-Python"] == ">=3.8"
    assert set(about.get_all("Provides-Extra")) == {"torch", "export", "dev", "docs"}
    required: dict[str, str] = {}
    by_extra: dict[str, set[str]] = {extra: set() for extra in about.get_all("Provides-Extra")}
    for line in about.get_all("Requires-Dist"):
        match = REQUIREMENT.match(line)
        assert match is not None, line
        name, versions, marker = match[1], match[2], match[3] or ""
        assert "<" in versions, f"{name} has no upper bound"
        extra = re.search(r"extra == '(\w+)'", marker)
        if extra:
            by_extra[extra[1]].add(name)
        else:
            required[name] = marker
    assert set(required) == {"textual", "nvidia-ml-py", "plotext", "msgspec", "tomli"}
    assert required.pop("nvidia-ml-py") == ""  # the agent's, and that runs on 3.8
    assert required.pop("tomli") == "python_version == '3.10'"  # in the standard library since 3.11
    assert all(re.fullmatch(r"python_version >= '3\.10'", marker) for marker in required.values())
    assert by_extra["torch"] == {"torch"}
    assert by_extra["export"] == {"prometheus-client"}
    assert by_extra["docs"] == {"mkdocs-material"}
    assert {"pytest", "hypothesis", "ruff", "mypy", "import-linter"} <= by_extra["dev"]


def test_every_requirement_is_pinned_for_the_tests(about):
    pinned = {
        line.split("==")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    names = {REQUIREMENT.match(line)[1] for line in about.get_all("Requires-Dist")}  # type: ignore[index]
    assert names <= pinned


@pytest.mark.slow
def test_the_source_archive_can_be_tested(checkout, tmp_path):
    pytest.importorskip("hatchling", reason="building needs hatchling: pip install hatchling")
    done(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=checkout)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = [
        p
        for name in SOURCES
        for p in ((checkout / name).rglob("*") if (checkout / name).is_dir() else [checkout / name])
    ]
    missing = {str(p.relative_to(checkout)) for p in wanted if p.is_file()} - held
    assert missing == set()


# ── installed alone in a training environment ─────────────────────────────────────────────────────


@cache
def distributions_of_torch() -> tuple[metadata.Distribution, ...]:
    """torch here and all that it requires here."""
    found: dict[str, metadata.Distribution] = {}
    wanted = ["torch"]
    while wanted:
        name = wanted.pop()
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        if one.metadata["Name"] not in found:
            found[one.metadata["Name"]] = one
            wanted += [
                re.split(r"[^\w.-]", line)[0]
                for line in one.requires or ()
                if "extra ==" not in line
            ]
    return tuple(found.values())


def make_venv(path: Path) -> Path:
    """A new environment without pip; its Python."""
    done(sys.executable, "-m", "venv", "--without-pip", path)
    return path / "bin" / "python"


def site_packages(python: Path) -> Path:
    return Path(
        done(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )


@pytest.fixture
def training_environment(tmp_path: Path) -> Path:
    """Return the Python of a new environment that sees torch.

    It sees this one's torch and what that needs, and nothing else of it.
    """
    pytest.importorskip("torch", reason="needs torch to train with")
    only_torch = tmp_path / "only-torch"
    only_torch.mkdir()
    for one in distributions_of_torch():
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (only_torch / name).exists():
                (only_torch / name).symlink_to(Path(str(one.locate_file(name))))
    python = make_venv(tmp_path / "venv")
    (site_packages(python) / "only-torch.pth").write_text(f"{only_torch}\n")
    return python


SCRIPT = f"""
import sys
before = {{*sys.modules}}
import gpuscope
print("NEW", *sorted({{*sys.modules}} - before), flush=True)
from importlib.util import find_spec
print("SEEN", *[name for name in ("textual", "msgspec", "pynvml", "plotext", "rich") if find_spec(name)], flush=True)
{probe_client.PLACE_APART}
gpuscope.watch()
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("TRAINED", gpuscope.__file__, flush=True)
sys.stdin.read()
"""  # noqa: E501


@pytest.mark.slow
def test_installed_without_dependencies_a_script_is_watched(wheel, training_environment, tmp_path):
    python, script = training_environment, tmp_path / "train.py"
    done(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        wheel,
    )
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [python, script],
        env=probe_client.environment(PYTHONPATH=None),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        said = [process.stdout.readline().split() for _ in range(3)]
        assert said[0] == ["NEW", "gpuscope"], (said, process.poll())
        assert said[1] == ["SEEN"]
        assert said[2][0] == "TRAINED"
        assert Path(said[2][1]).is_relative_to(python.parent.parent)
        (path,) = probe_client.wait_for(lambda: probe_client.sockets(process.pid), what="a socket")
        reader = probe_client.Reader(path)
        try:
            reader.until(lambda: reader.value("step") == 20)
            assert reader.trainer().origin == "watch"
        finally:
            reader.close()
    finally:
        process.kill()
        process.communicate()


# ── the Makefile's set-up ─────────────────────────────────────────────────────────────────────────


def share(machine: Path, venv: Path) -> subprocess.CompletedProcess[str]:
    return run(machine, ROOT / "demos" / "share_torch.py", venv)


def give(python: Path, name: str, content: str, *requires: str) -> None:
    """Installs a distribution of one package."""
    package, about = site_packages(python) / name, site_packages(python) / f"{name}-1.0.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "__init__.py").write_text(content)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        "Version: 1.0",
        *(f"Requires-Dist: {one}" for one in requires),
    ]
    (about / "METADATA").write_text("\n".join(lines) + "\n")
    (about / "RECORD").write_text(
        f"{name}/__init__.py,,\n{about.name}/METADATA,,\n../../../bin/{name},,\n"
    )


@pytest.mark.slow
def test_the_machines_own_torch_is_shared(tmp_path):
    machine, venv = make_venv(tmp_path / "machine"), make_venv(tmp_path / "new one")
    give(
        machine,
        "torch",
        "import needed\n",
        "needed>=1; python_version > '3'",
        "absent; extra == 'more'",
    )
    give(machine, "needed", "")
    give(machine, "ruff", "")
    assert run(venv, "-c", "import torch").returncode == 1
    shared = share(machine, venv)
    assert shared.returncode == 0, shared.stderr
    assert str(tmp_path / "machine") in shared.stdout
    path = done(venv, "-c", "import torch; print(torch.__file__)").strip()
    assert Path(path).resolve().is_relative_to(tmp_path / "machine")
    # Nothing else of the machine is in sight: pip would take its tools for installed here.
    seen = (
        "from importlib.metadata import distributions; print({one.name for one in distributions()})"
    )
    assert done(venv, "-c", seen).strip() in ("{'torch', 'needed'}", "{'needed', 'torch'}")
    # What the environment has itself comes first, and a second call changes nothing.
    assert share(machine, venv).returncode == 0
    give(venv, "torch", "mine = True\n")
    assert done(venv, "-c", "import torch; print(torch.mine)") == "True\n"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(
            "import sys\nif 'new' in sys.prefix: raise ImportError('built for another Python')\n",
            id="other minor",
        ),
        pytest.param(
            "raise ImportError('libcudart.so.13: cannot open shared object file')\n",
            id="broken everywhere",
        ),
        pytest.param(None, id="none"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_not_shared(tmp_path, content):
    machine, venv = make_venv(tmp_path / "machine"), make_venv(tmp_path / "new")
    if content is not None:
        give(machine, "torch", content)
    shared = share(machine, venv)
    assert (shared.returncode, shared.stdout) == (1, "")
    assert not list(site_packages(venv).glob("*.pth"))
    assert not (tmp_path / "new" / "machine-torch").exists()


def make(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    outside = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "MFLAGS")) and name != "JOBS"
    }
    # as typed in a shell, also when make itself runs these tests
    return run("make", *words, cwd=cwd, env=outside)


def test_every_target_that_make_knows_has_a_rule():
    """Of one without a rule make says that there is nothing to be done, as if all were well."""
    text = (ROOT / "Makefile").read_text()
    (named,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert {*named.split()} <= {*re.findall(r"^([a-z-]+):", text, re.MULTILINE)}


def test_make_demo_and_make_test_would_set_up_and_then_run(checkout):
    demo = make("-n", "demo", cwd=checkout)
    assert demo.returncode == 0, demo.stderr
    order = [
        demo.stdout.index(word)
        for word in ("-m venv", "install -q -e .", "share_torch.py", "gpuscope --lab")
    ]
    assert order == sorted(order)
    assert demo.stdout.count("constraints.txt") >= 2
    assert "[dev]" not in demo.stdout
    test = make("-n", "test", cwd=checkout)
    assert test.returncode == 0, test.stderr
    assert "[dev]" in test.stdout
    assert (
        test.stdout.strip()
        .splitlines()[-1]
        .endswith("-m pytest -q -n 4 --dist loadfile --no-loadscope-reorder")
    )


def test_make_says_which_python_it_needs(checkout, tmp_path):
    old = tmp_path / "python3"
    # what an older one answers to the question for its version
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    made = make("demo", f"PYTHON={old}", cwd=checkout)
    assert made.returncode != 0
    assert (
        "needs Python 3.10 or newer. Try: make PYTHON=python3.12 demo" in made.stdout + made.stderr
    )
    assert not (checkout / ".venv").exists()


def test_make_help_lists_what_the_readme_names(checkout):
    known = {
        line.split()[0] for line in make("help", cwd=checkout).stdout.splitlines() if line.strip()
    }
    named = set(re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text(), re.M))
    assert named
    assert named <= known


RECIPE = """check test test-slow docs test-libraries .venv-libraries/.installed:
\t@pwd; ls; echo "$@ shared=$(SHARE_TORCH) venv=$$VIRTUAL_ENV path=$$PYTHONPATH"
"""


def test_ci_tests_a_clone_of_the_commit_named_gpuscope_and_takes_nothing_along(tmp_path):
    script = ROOT / ".ci" / "run"
    if not script.exists() or shutil.which("git") is None or shutil.which("make") is None:
        pytest.skip("needs a clone, git and make")
    checkout, stand_ins = tmp_path / "my checkout", tmp_path / "bin"
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy(script, checkout / ".ci")
    (checkout / "Makefile").write_text(RECIPE)
    git = ("git", "-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "All")):
        done(*git, *words, cwd=checkout)
    (checkout / "not-committed").touch()
    stand_ins.mkdir()
    (stand_ins / "id").write_text("#!/bin/sh\necho 1000\n")  # root would install packages
    (stand_ins / "id").chmod(0o755)
    more = {
        "PATH": f"{stand_ins}:{os.environ['PATH']}",
        "VIRTUAL_ENV": "/theirs",
        "PYTHONPATH": "/theirs",
        "CI": "true",
    }
    said = done(
        "bash", ".ci/run", cwd=checkout, env={**os.environ, **more}, stdin=subprocess.DEVNULL
    ).splitlines()
    targets = [line.split()[0] for line in said if "shared=no venv= path=" in line]
    assert {*targets[:2]} == {"check", ".venv-libraries/.installed"}
    assert targets[2:4] == ["test", "test-slow"], "alone: some of the tests measure time"
    assert {*targets[4:]} == {"docs", "test-libraries"}
    assert {*said[0::3]} == {said[0]}
    assert {*said[1::3]} == {"Makefile"}
    assert Path(said[0]).name == "gpuscope"
    assert not Path(said[0]).parent.exists()
