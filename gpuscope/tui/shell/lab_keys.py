"""These are the keys of the Lab's dialogs, a part of the registry in ``screen_keys``."""

from __future__ import annotations

from .entries import Key, one
from .shared_keys import CLOSE, FORCE

LAB_KEYS: dict[str, tuple[Key, ...]] = {
    "CommandDialog": (
        one("enter", "begin", "Measure", "start the command", 10),
        one("x", "stop", "Stop", "end it", 20),
        FORCE,
    ),
    "RunDialog": (
        one(
            "enter",
            "take",
            "Use these settings",
            "the Lab's settings become those of this run",
            10,
            when="switches",
        ),
    ),
    "PitfallsDialog": (
        one(
            "enter",
            "start(False)",
            "With the mistake",
            "start the script under the cursor with its mistake",
            10,
            via="LiveTable",
        ),
        one(
            "f,c",
            "start(True)",
            "Fixed",
            "start the same script without its mistake",
            20,
            hidden=("c",),
        ),
        one("x", "stop", "Stop", "end the script", 30),
        FORCE,
    ),
    "RecordingDialog": (
        one(
            "enter",
            "go_on",
            "Read it, take it",
            "read the file, or take the training under the cursor",
            10,
            via="Input",
        ),
        one("tab", "other", "List or typing", "from the path to the list, and back"),
        CLOSE._replace(label="Leave"),
    ),
    "ValueDialog": (
        one(
            "enter",
            "take",
            "Take it",
            "the value under the cursor, or what is typed",
            10,
            via="LiveTable",
        ),
        one(
            "tab", "other", "List or typing", "from the list to typing, and back", 20, when="typed"
        ),
        CLOSE._replace(label="Leave"),
    ),
    "HeldDialog": (
        FORCE._replace(footer=10),
        CLOSE._replace(label="Cancel"),
    ),
    "QuitDialog": (
        one(
            "enter",
            "leave",
            "Stop and quit",
            "end the run or the search, keep what it measured",
            10,
        ),
        CLOSE._replace(label="Stay"),
    ),
    "TuneDialog": (
        one("enter", "begin", "Begin", "search for the fastest settings", 10),
        one("left,h", "budget(-1)", "Shorter", "a shorter search", 20),
        one("right,l", "budget(1)", "Longer", "a longer search", 30),
        one("f", "free", "Batch", "keep the effective batch, or allow another", 40),
        CLOSE._replace(label="Leave"),
    ),
    "TuneScreen": (
        one(
            "enter",
            "select",
            "Details",
            "all of the trial under the cursor",
            20,
            via="LiveTable",
        ),
        one(
            "x",
            "stop",
            "Stop",
            "end the search; the same search continues later",
            30,
            when="running",
        ),
        one("t", "take", "Take", "the Lab's settings become the best ones", 40, when="better"),
        one("y", "copy", "Copy", "the lines that make a training as fast", 50, when="better"),
        one("n", "new", "New search", "another search, with the Lab's settings", 60, when="over"),
        FORCE._replace(footer=70, when="failed"),
    ),
    "RepeatDialog": (
        one("enter", "begin", "Begin", "repeat A and B interleaved", 10),
        one("left,h", "repeats(-1)", "Fewer", "fewer repeats", 20),
        one("right,l", "repeats(1)", "More", "more repeats", 30),
        one("down,j", "steps(-1)", "Shorter", "fewer steps in each run", 40),
        one("up,k", "steps(1)", "Longer", "more steps in each run", 50),
        CLOSE._replace(label="Leave"),
    ),
}
