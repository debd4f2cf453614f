"""These are the keys of the Lab's dialogs, a part of the registry in ``screen_keys``."""

from __future__ import annotations

from .entries import Key, one
from .shared_keys import CLOSE, FORCE

LAB_KEYS: dict[str, tuple[Key, ...]] = {
    "CommandDialog": (
        one("enter", "begin", "measure", "start the command", 10),
        one("x", "stop", "stop", "end it", 20),
        FORCE,
    ),
    "RunDialog": (
        one(
            "enter",
            "take",
            "use these switches",
            "the Lab's switches become those of this run",
            10,
            when="switches",
        ),
    ),
    "PitfallsDialog": (
        one(
            "enter",
            "start(False)",
            "with the mistake",
            "start the script under the cursor with its mistake",
            10,
            via="LiveTable",
        ),
        one("c", "start(True)", "without", "start the same script without its mistake", 20),
        one("x", "stop", "stop", "end the script", 30),
        FORCE,
    ),
    "RecordingDialog": (
        one(
            "enter",
            "go_on",
            "read it, take it",
            "read the file, or take the training under the cursor",
            10,
            via="Input",
        ),
        one("tab", "other", "list or typing", "from the path to the list, and back"),
        CLOSE._replace(label="leave"),
    ),
    "ValueDialog": (
        one(
            "enter",
            "take",
            "take it",
            "the value under the cursor, or what is typed",
            10,
            via="LiveTable",
        ),
        one(
            "tab", "other", "list or typing", "from the list to typing, and back", 20, when="typed"
        ),
        CLOSE._replace(label="leave"),
    ),
    "HeldDialog": (
        FORCE._replace(footer=10, label="start anyway"),
        CLOSE._replace(label="cancel"),
    ),
    "QuitDialog": (
        one("enter", "leave", "stop and quit", "stop the run, keep it and quit", 10),
        CLOSE._replace(label="stay"),
    ),
    "TuneDialog": (
        one("enter", "begin", "begin", "search for the fastest settings", 10),
        one("left,h", "budget(-1)", "shorter", "a shorter search", 20),
        one("right,l", "budget(1)", "longer", "a longer search", 30),
        one("f", "free", "batch", "keep the effective batch, or allow another", 40),
        CLOSE._replace(label="leave"),
    ),
    "TuneScreen": (
        one(
            "enter",
            "select",
            "details",
            "what became of the row under the cursor",
            20,
            via="LiveTable",
        ),
        one(
            "x",
            "stop",
            "stop",
            "end the search; the same search continues later",
            30,
            when="running",
        ),
        one("t", "take", "take", "the Lab's switches become the best ones", 40, when="better"),
        one("y", "copy", "copy the lines", "that make a training as fast", 50, when="better"),
        one("n", "new", "new search", "another search, with the Lab's switches", 60, when="over"),
        FORCE._replace(footer=70, when="failed"),
    ),
    "RepeatDialog": (
        one("enter", "begin", "begin", "repeat A and B interleaved", 10),
        one("left,h", "repeats(-1)", "fewer", "fewer repeats", 20),
        one("right,l", "repeats(1)", "more", "more repeats", 30),
        one("down,j", "steps(-1)", "shorter", "fewer steps in each run", 40),
        one("up,k", "steps(1)", "longer", "more steps in each run", 50),
        CLOSE._replace(label="leave"),
    ),
}
