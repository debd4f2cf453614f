"""What findings say is data.

Every text can be filled in, names a pitfall that there is, and is used.
"""

from __future__ import annotations

import pytest

from gpuscope.checked_rows import TableError
from gpuscope.doctor import table, wordings
from gpuscope.doctor.wordings import Wordings

ROOMS = ("live", "postmortem", "environment", "script", "dead", "messages")
FIX = '[[fix]]\nid = "look"\ntitle = "Look at {pid}"\neffect = "{gain} less"\n'
FINDING = (
    '[[finding]]\nid = "x.y"\npitfall = "shm-size"\ntitle = "{held} of {gpu}"\nfixes = ["look"]\n'
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(wordings, "FOLDER", tmp_path)
    (tmp_path / "common.toml").write_text("")
    return tmp_path


def test_every_file_is_a_rooms():
    assert {path.name for path in wordings.FOLDER.iterdir()} == {
        f"{room}.toml" for room in (*ROOMS, wordings.COMMON)
    }


@pytest.mark.parametrize("room", ROOMS)
def test_every_finding_is_of_a_pitfall_that_answers_its_cause(room):
    rows = table.load()
    for one in Wordings(room).findings.values():
        assert (one.cause or one.id) in rows[one.pitfall].causes, one.id


@pytest.mark.parametrize("room", ROOMS)
def test_every_abstention_is_of_a_pitfall(room):
    rows = table.load()
    for one in Wordings(room).abstentions.values():
        assert one.pitfall in rows, one.id
        assert bool(one.why) == ("{why}" in one.missing), one.id


def test_every_row_is_used():
    """A finding or an abstention by a rule, which names it; a fix by a finding or by a rule."""
    package = wordings.FOLDER.parents[1]
    files = [*package.rglob("*.py"), *package.glob("doctor/dead/rules/*.json")]
    sources = "".join(path.read_text() for path in files)
    named, fixes = set(), set()
    for room in ROOMS:
        words = Wordings(room)
        fixes |= set(words.fix_rows)
        assert [name for name in words.abstentions if f'"{name}"' not in sources] == []
        for one in words.findings.values():
            named |= set(one.fixes)
            assert f'"{one.id}"' in sources or f'"{one.id.rpartition(".")[0]}"' in sources, one.id
    assert {name for name in fixes - named if f'"{name}"' not in sources} == set()


def test_fields_are_filled_in_and_what_is_unknown_is_left_out(folder):
    (folder / "made.toml").write_text(FIX + FINDING)
    figures = {"held": "3 GiB", "gpu": 2, "pid": 7, "gain": None}
    rest = {"severity": "info", "confidence": "likely", "evidence": ()}
    one = Wordings("made").finding("x.y", figures, **rest)
    assert (one.title, one.pitfall, one.cause) == ("3 GiB of 2", "shm-size", "x.y")
    assert [(fix.title, fix.effect) for fix in one.fixes] == [("Look at 7", "")]
    assert Wordings("made").finding("x.y", {**figures, "pid": None}, **rest).fixes == ()
    with pytest.raises(KeyError):
        Wordings("made").finding("x.y", {"held": "3 GiB"}, **rest)


def test_an_abstention_has_the_reason_that_was_told_or_that_of_its_row(folder):
    row = 'id = "a"\npitfall = "shm-size"\nmissing = "{size} of {what}: {why}"\nwhy = "none"\n'
    (folder / "made.toml").write_text("[[abstention]]\n" + row)
    words = Wordings("made")
    assert words.abstained("a", size=3, what="it", why="told").missing == "3 of it: told"
    assert words.abstained("a", size=3, what="it", why=None).missing == "3 of it: none"
    assert words.abstained("a", size=3, what="it").pitfall == "shm-size"
    with pytest.raises(KeyError):
        words.abstained("a", size=3)
    with pytest.raises(ValueError, match="a: a figure is missing in "):
        words.abstained("a", size=None, what="it")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[fix", "made.toml cannot be read: "),
        ("[[fixes]]\nid = 1\n", "made.toml: its keys: are fix, finding and abstention, not fixes"),
        ('[[fix]]\nid = "a"\ntitel = "b"\n', "made.toml: fix a: no such key: titel."),
        ('[[fix]]\nid = "a"\ntitle = 7\n', "made.toml: fix a: title cannot be 7"),
        (
            '[[fix]]\ntitle = "b"\n',
            "made.toml: fix None: id cannot be None: every row has one of its own",
        ),
        (FIX + FIX, "made.toml: fix look: id cannot be 'look': every row has one of its own"),
        (FINDING, "made.toml: finding x.y: fixes: there is no fix look"),
        (
            '[[abstention]]\nid = "a"\nmissing = "b"\n',
            "made.toml: abstention a: Abstention.__init__() missing 1 required",
        ),
        (FIX + FINDING + "cause = true\n", "made.toml: finding x.y: cause cannot be True"),
        (
            '[[finding]]\nid = "x.y"\n',
            "made.toml: finding x.y: Wording.__init__() missing 2 required",
        ),
    ],
)
def test_a_mistake_is_named_by_file_row_and_key(folder, text, says):
    (folder / "made.toml").write_text(text)
    with pytest.raises(TableError) as error:
        _ = Wordings("made").findings
    assert str(error.value).startswith(says)


def test_allocator_settings_are_set_by_the_name_that_every_supported_torch_reads():
    """torch before 2.9 ignores PYTORCH_ALLOC_CONF, and a snapshot does not say its torch."""
    rows = [fix for row in table.load().values() for fix in row.fixes]
    rows += [fix for room in ROOMS for fix in Wordings(room).fix_rows.values()]
    told = {one.environment for one in rows if "ALLOC_CONF" in one.environment}
    assert len(told) > 3
    assert [one for one in told if not one.startswith("export PYTORCH_CUDA_ALLOC_CONF=")] == []
