"""What the pages say of the repository is so."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpuscope import config
from gpuscope.cli import main as cli
from gpuscope.config import Settings
from gpuscope.exit_status import ExitStatus
from gpuscope.model.alerts_settings import AlertSettings
from gpuscope.tui.shell.actions import ACTIONS
from gpuscope.tui.shell.keymap import key_text
from tests.fakes import in_process
from tests.fakes.cases import each

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "demos").rglob("*.md")]
)
PICTURES = sorted((ROOT / "docs").glob("*.svg"))
README = (ROOT / "README.md").read_text()
BENCHMARKS = (ROOT / "BENCHMARKS.md").read_text()
COMMANDS = (ROOT / "docs" / "commands.md").read_text()
SETTINGS = (ROOT / "docs" / "settings.md").read_text()
DECISIONS = (ROOT / "docs" / "decisions.md").read_text()


def section(page: str, title: str) -> str:
    """The text under a heading, up to the next of its kind."""
    return re.split(r"^## ", page.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def anchors(page: Path) -> set[str]:
    """The links GitHub makes of headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each("page", PAGES)
def test_relative_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_the_readme_is_short_and_shows_its_pictures():
    assert len(README) <= 6000
    shown = re.findall(r"!\[[^\]]+\]\((docs/\w+\.svg)\)", README)
    assert len(shown) == 5
    assert sum((ROOT / name).stat().st_size for name in shown) < 400_000


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_is_whole_asks_nobody_for_anything_and_says_what_is_replayed(picture):
    text = picture.read_text()
    scenes = ElementTree.fromstring(text).findall("{*}g")
    assert not re.search(r"https?:", text.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    assert scenes
    for scene in scenes:
        words = [one.text or "" for one in scene.iter("{http://www.w3.org/2000/svg}text")]
        from_a_file = any(one.startswith(("$ gpuscope", "reached in")) for one in words)
        assert "REPLAY" in words or "Snapshot" in words or from_a_file, words[0]


def test_the_figures_of_the_readmes_promises_were_measured():
    promises = section(README, "What it promises")
    figures = re.findall(r"[−+]?\d[\d.]*(?: of \d+)?", re.sub(r"\b95 %|H200|p95", "", promises))
    assert 4 <= len(figures) <= 6, "a few that matter; the others are behind the link"
    for figure in figures:
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", BENCHMARKS), figure


def test_the_table_of_commands_is_that_of_the_program():
    rows = re.findall(r"^\| (`gpuscope[^|]*) \|", COMMANDS, re.M)
    words = {
        shlex.split(command)[1]
        for row in rows
        for command in re.findall(r"`(gpuscope \w[^`]*)`", row)
    }
    assert words == set(cli.VERBS)


@each("page", PAGES)
def test_the_options_of_a_page_exist(page):
    """Of each command on the page, by its own parser."""
    for command in re.findall(r"`gpuscope (\w+) ([^`]*)`", page.read_text()):
        verb, rest = command
        second = rest.split(" ", 1)[0]
        word = second if second in cli.SUBVERBS.get(verb, {}) else ""
        options = re.findall(r"--[a-z][a-z-]*", rest)
        if verb in cli.VERBS and verb != "run" and options:
            parser = cli.Parser(prog="x")
            import_module(cli.module_of(verb, word)).add_arguments(parser)
            known = {option for action in parser._actions for option in action.option_strings}
            assert set(options) <= known, verb


def test_the_exit_codes_of_the_page_on_commands_are_those_of_the_program():
    codes = (
        ExitStatus.OK,
        ExitStatus.WARNINGS,
        ExitStatus.PROBLEMS,
        ExitStatus.UNCHECKED,
        ExitStatus.USAGE,
    )
    said = re.search(r"Exit codes: (.+?)\.", COMMANDS)
    assert said is not None
    assert tuple(map(int, re.findall(r"\b\d+\b", said[1]))) == codes


def test_the_page_on_settings_explains_each_one_as_declared_and_its_example_is_accepted(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", SETTINGS, re.DOTALL)
    assert example == config.example(), "python -m gpuscope.config prints it"
    (short,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    for text in (example, short):
        path = tmp_path / "config.toml"
        path.write_text(text)
        settings, wrong = config.load(path)
        assert wrong == []
        assert settings.alerts.any
    named = set(re.findall(r"^(\w+) = ", example, re.M)) | {"alerts"}
    assert named == {one.name for kind in (Settings, AlertSettings) for one in fields(kind)}


def requirements() -> dict[str, str]:
    """Name to version bounds, of every dependency and extra in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(r"^(?:dependencies|torch|export|dev|docs) = \[([^\]]*)\]", text, re.M)
    lines = [line for one in lists for line in re.findall(r'"([^"]+)"', one)]
    return {m[1]: m[2] for line in lines if (m := re.match(r"([\w.-]+)([^;]*)", line))}


def test_every_dependency_has_its_reason():
    table = section(DECISIONS, "Dependencies")
    found = requirements()
    assert {"textual", "msgspec", "torch", "pytest"} <= set(found)
    for name, bounds in found.items():
        row = next(
            (
                line
                for line in table.splitlines()
                if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", line)
            ),
            "",
        )
        assert row, f"docs/decisions.md does not say why {name}"
        assert f"`{bounds.strip()}`" in row or "see `pyproject.toml`" in row, (name, bounds)


def test_every_file_that_the_decisions_name_exists():
    named = set(re.findall(r"`((?:[\w-]+/)+[\w.-]+\.(?:py|md|toml|sh))`", DECISIONS))
    assert named
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "gpuscope" / name).exists(), name


def test_the_changelog_has_an_entry_for_this_version_or_the_next():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[(Unreleased|\d+\.\d+\.\d+)\]", text, re.M)


def test_the_page_on_architecture_names_rooms_and_files_that_are_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rooms = set(re.findall(r"`(\w+)/`", section(page, "The rooms")))
    there = {path.parent.name for path in (ROOT / "gpuscope").glob("*/__init__.py")}
    assert there <= rooms | {"__pycache__"}, there - rooms
    for name in re.findall(r"`([\w/]+/[\w*]*(?:\.\w+)?)`", page):
        found = [*(ROOT / "gpuscope").glob(name), *ROOT.glob(name)]
        assert found, name


GUIDES = [page for page in PAGES if page.parent.name == "docs" and page.name != "pitfalls.md"]


@each("page", GUIDES)
def test_the_commands_in_the_blocks_of_a_page_have_verbs_and_options_that_exist(page):
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    for line in lines:
        found = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*gpuscope (?P<verb>[a-z]+) ?(?P<rest>.*)", line)
        if found is None:
            continue
        verb, words = found["verb"], shlex.split(found["rest"], comments=True)
        assert verb in cli.VERBS, line
        options = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
        if verb != "run" and options:
            word = words[0] if words[0] in cli.SUBVERBS.get(verb, {}) else ""
            parser = cli.Parser(prog="x")
            import_module(cli.module_of(verb, word)).add_arguments(parser)
            known = {option for action in parser._actions for option in action.option_strings}
            assert options <= known, line


LOG = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    b"capacity of 139.80 GiB of which 255.00 MiB is free. Including non-PyTorch memory, this "
    b"process has 139.55 GiB memory in use. Of the allocated memory 134.88 GiB is allocated by "
    b"PyTorch, and 4.12 GiB is reserved by PyTorch but unallocated.\n"
)
"""The log that the page on out-of-memory errors examines."""
EXAMINED = re.compile(r"^```text\n\$ gpuscope ((?:doctor|snapshot) (?:-|demos/).*)\n", re.MULTILINE)


@each("page", ["out-of-memory.md", "why-is-it-slow.md"])
def test_what_a_tutorial_shows_of_a_log_a_script_and_a_snapshot_is_what_is_printed(
    page, monkeypatch
):
    monkeypatch.chdir(ROOT)
    content = (ROOT / "docs" / page).read_text()
    blocks = list(EXAMINED.finditer(content))
    assert blocks
    for block in blocks:
        words = block[1].removesuffix(" < train.log")
        printed = " ".join(in_process.command(*shlex.split(words), stdin=LOG).stdout.split())
        shown = content[block.end() : content.index("\n```", block.end())]
        for part in re.split(r"^ *…$", shown, flags=re.MULTILINE):
            assert " ".join(part.split()) in printed, words


TAB_OF = {"Everywhere": "overview", "A trainer": "doctor"}
"""The tabs on which keys act that the page does not list below a tab."""


COMMON = {"the", "to", "in", "of", "and", "or", "it", "as"}
"""Words that say nothing of what a key does."""


def keys_of_the_page() -> list[tuple[str, str, str]]:
    """Return each (tab, key, words) of the lists of keys on the page on commands."""
    found = []
    for head, rows in re.findall(
        r"^- \*\*([\w ]+)\*\*: (.*(?:\n  .*)*)", section(COMMANDS, "Keys"), re.M
    ):
        for entry in re.split(r"\s·\s+", rows):
            names, words = re.findall(r"^((?:`[^`]+`(?: to)? )*)([^·]*)", entry)[0]
            tab = TAB_OF.get(head, head.lower())
            found += [(tab, name, words) for name in re.findall(r"`([^`]+)`", names)]
    return found


@each("entry", keys_of_the_page())
def test_a_key_of_the_page_on_commands_does_what_the_page_says(entry):
    """By the registry: a word of the page is one of those that the action itself has."""
    tab, key, words = entry
    said = {word[:4] for word in re.findall(r"[a-z]{2,}", words.lower())}
    does = [
        f"{action.label} {action.help} {'tabs' if key.isdigit() else ''}".lower()
        for action in ACTIONS
        if key in map(key_text, action.keys) and action.applies(tab)
    ]
    assert does, f"{key} does nothing on the tab {tab}"
    known = {word[:4] for text in does for word in re.findall(r"[a-z]{2,}", text)}
    assert said & known - COMMON, does


@each("page", GUIDES)
def test_a_key_that_a_guide_names_is_one_of_the_program(page):
    known = {key_text(key) for action in ACTIONS for key in action.keys}
    for named in re.findall(r"\b[Kk]ey `([^`]{1,6})`", page.read_text()):
        assert named in known or named == "gpuscope", f"{page.name}: {named}"
