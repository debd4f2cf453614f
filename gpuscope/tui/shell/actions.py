"""This is the one registry of what a user can do on the tabs.

Key bindings, footer, help screen and palette are all made from it. An action ``name`` is
carried out by a method ``do_name`` of the visible tab if it has one, else of the screen, else of
the app. Where several actions differ in one argument only, :data:`METHODS` names their method.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .entries import Action, action

SEEK_SECONDS, FAR_SECONDS = 10.0, 300.0

_screen, _move, _view, _trainer, _past, _program, _lab = (
    partial(action, group)
    for group in ("Screens", "Move", "View", "Trainer", "Past", "Program", "Lab")
)
_lab_live, _lab_runs = (partial(_lab, where="lab", needs=need) for need in ("lab", "runs"))

_OPENS = {
    "fleet": "look at this host; a finding in the Doctor",
    "overview": "everything about a GPU; the ranks of a job; a finding in the Doctor",
    "memory": "the page of this GPU, or of the job; in a list what is under the cursor",
    "time": "what is in this row; this rank; the finding",
    "doctor": "the pitfall in full",
    "lab": "choose among the values of the setting",
    "log": "go to the job, GPU, finding or file of this line",
}
ACTIONS: tuple[Action, ...] = (
    _screen("fleet", "0", "Fleet", "all hosts, the worst first", needs="hosts"),
    _screen("overview", "1", "Overview", "jobs, GPUs, load and memory"),
    _screen("memory", "2", "Memory", "what every byte of a GPU is used for"),
    _screen("time", "3", "Time", "where the time of a training goes"),
    _screen("doctor", "4", "Doctor", "what is wrong, why, and the fix"),
    _screen("lab", "5", "Lab", "a small trainer to try settings"),
    _screen("log", "6", "Log", "what happened, newest last"),
    _screen("processes", "P", "Processes", "who uses which GPU, and how much", footer=25),
    _move("down", "j down", "Down", "next row"),
    _move("up", "k up", "Up", "previous row"),
    _move("open", "enter", "Details", "open what is under the cursor",
        "fleet overview memory time doctor lab log", footer=11, on_tab=_OPENS),
    _move("next_pane", "tab", "Next list", "to the next list of the screen",
        "fleet overview time doctor lab", footer=12),
    _view("next_kind", "n", "Kind", "only jobs, findings, GPUs, files …", "log", footer=1),
    _view("previous_kind", "N", "Previous kind", "the kind of events before", "log"),
    _move("back", "escape", "Back", "close, clear the filter, or go to all hosts"),
    _view("pause", "space", "Pause", "freeze the screen; sampling continues", footer=15),
    _view("filter", "slash", "Filter", "only rows that contain the text",
        "fleet overview time doctor lab log", footer=17),
    _view("mine", "u", "Mine", "only my jobs", "fleet overview", footer=22),
    _view("sort_next", "greater_than_sign", "Sort", "sort by the column to the right",
        "fleet overview"),
    _view("sort_previous", "less_than_sign", "Sort back", "sort by the column to the left",
        "fleet overview", footer=21),
    _view("slower", "left_square_bracket", "Sample less often",
        "fewer samples a second; a slower replay", needs="speed", footer=26),
    _view("faster", "right_square_bracket", "Sample more often",
        "more samples a second; a faster replay", needs="speed"),
    _view("counters", "c", "Counters", "torch's memory_summary", "memory", "asked", footer=3),
    _view("modules", "m", "Modules", "parameters and state by module", "memory", "asked", footer=2),
    _view("what_if", "W", "What if", "what each fix would free", "memory", footer=4),
    _lab("try_fix", "r", "Try fix", "the fix under the cursor, in the Lab", "memory", "runs"),
    _view("waterfall", "w", "Timeline", "show the timeline alone, or every byte", "memory",
        footer=5),
    _view("zoom", "z minus", "Zoom out", "show a longer time", "overview memory time",
        footer=13),
    _view("zoom_back", "Z plus equals_sign", "Zoom in", "show a shorter time",
        "overview memory time", hidden="equals_sign"),
    _view("next_subject", "n", "Next GPU", "the next GPU or trainer", "memory",
        footer=1),
    _view("previous_subject", "N", "Previous GPU", "the GPU or trainer before", "memory"),
    _view("next_trainer", "n", "Next rank", "the next rank or trainer", "time",
        footer=1),
    _view("previous_trainer", "N", "Previous rank", "the rank or trainer before", "time"),
    _view("expand", "l", "Open branch", "show what is inside", "memory"),
    _view("collapse", "h", "Close branch", "hide it, or go to its parent", "memory"),
    _view("deeper", "x", "Deeper", "one level more", "memory"),
    _view("shallower", "X", "Shallower", "one level less", "memory"),
    _view("order", "o", "Order", "largest first, or as in the model", "memory"),
    _view("next_fix", "n", "Fixes", "mark the next fix, for y to copy", "doctor", "fix", footer=1),
    _lab("prove", "r", "Repro", "reproduce it in the Lab; asks first", "doctor", "proof", footer=2),
    _move("text_down", "ctrl+d pagedown", "Text down", "scroll the text of the finding", "doctor"),
    _move("text_up", "ctrl+u pageup", "Text up", "scroll up in the finding", "doctor"),
    _view("copy", "y", "Copy", "this screen, or the fix, as text", footer=23),
    _view("next_host", "f", "Next host", "the next host", needs="hosts"),
    _view("previous_host", "F", "Previous host", "the host before", needs="hosts"),
    _view("connect_again", "f5", "Reconnect", "to a lost host; ssh may ask", needs="away",
        footer=30),
    _view("theme", "t", "Theme", "dark, light, colour-blind, ansi"),
    _trainer("attach", "a", "Attach", "to a running trainer; asks first", needs="inject",
        footer=24),
    _trainer("snapshot", "s", "Snapshot", "save the allocator's blocks; asks first",
        "overview memory doctor", "trainer", footer=14),
    _trainer("look", "l", "GPU trace", "kernels, idle time; asks first", "time", "trainer",
        footer=2),
    _trainer("work", "w", "Work", "FLOPs of a step and MFU; asks first", "time", "trainer",
        footer=3),
    _trainer("profile", "p", "Profile", "torch.profiler; asks first",
        "overview memory time doctor", "trainer", footer=19),
    _trainer("stacks", "S i", "Stacks", "of all threads of a trainer",
        "overview memory time doctor", "trainer", footer=18),
    _trainer("history", "H", "History", "stacks of allocations; asks first",
        "overview memory doctor", "trainer"),
    _trainer("signal", "K f9", "Signal", "end or stop a process; asks first", "overview doctor",
        "signal", footer=20),
    _lab_live("lab_run", "r", "Run", "start, or restart, with these settings", footer=1),
    _lab_live("lab_stop", "x", "Stop", "the training, after this step", footer=2),
    _lab_live("lab_repeat", "i", "Repeat", "A and B in turns, A B B A …", footer=5),
    _lab_live("lab_tune", "T", "Tune", "the fastest settings that fit", footer=7),
    _lab_live("lab_pitfalls", "p", "Pitfalls", "run a known mistake, or its fix", footer=6),
    _lab_runs("lab_view", "v", "View", "comparison, loss or runs first", footer=4),
    _lab_runs("lab_mark_a", "A", "Mark A", "the run under the cursor becomes A", footer=30),
    _lab_runs("lab_mark_b", "B", "Mark B", "the run under the cursor becomes B"),
    _lab_runs("lab_recording", "o", "Recording", "take a recording of your own trainer as a run",
        footer=32),
    _lab_live("lab_nearest", "n", "Nearest", "the nearest combination that works"),
    _lab_live("lab_next", "right l", "Next value", "the next value of the setting"),
    _lab_live("lab_previous", "left h", "Previous value", "the value before", footer=3),
    _lab_live("lab_default", "backspace", "Default", "value of the setting"),
    _past("replay_back", "comma left", "Past", "go 10 seconds back",
        needs="time", footer=16),
    _past("replay_forward", "full_stop right", "Forward 10 s",
        "go 10 seconds forward, or to the first trainer; space: back to now", needs="time"),
    _past("far_back", "left_curly_bracket", "Back 5 min", "go 5 minutes back",
        needs="time"),
    _past("far_forward", "right_curly_bracket", "Forward 5 min", "go 5 minutes forward again",
        needs="time"),
    _program("report", "R", "Report", "save an HTML page of all this, to send", footer=28),
    _program("redraw", "ctrl+l", "Redraw", "redraw a garbled screen"),
    _program("palette", "colon ctrl+p", "Palette", "find an action, a GPU or a word", footer=1),
    _program("help", "question_mark", "Help", "keys, words and glyphs", footer=1),
    _program("quit", "q ctrl+c ctrl+q", "Quit", "in a dialog, q closes the dialog", footer=1),
)  # fmt: skip

BY_NAME = {action.name: action for action in ACTIONS}
METHODS: dict[str, tuple[str, object]] = {
    "down": ("move", 1),
    "up": ("move", -1),
    "text_down": ("scroll", 1),
    "text_up": ("scroll", -1),
    "zoom": ("zoom_by", 1),
    "zoom_back": ("zoom_by", -1),
    "sort_next": ("sort", 1),
    "sort_previous": ("sort", -1),
    "next_trainer": ("trainer", 1),
    "previous_trainer": ("trainer", -1),
    "next_host": ("host", 1),
    "previous_host": ("host", -1),
    "faster": ("speed", True),
    "slower": ("speed", False),
    "replay_back": ("seek", -SEEK_SECONDS),
    "replay_forward": ("seek", SEEK_SECONDS),
    "far_back": ("seek", -FAR_SECONDS),
    "far_forward": ("seek", FAR_SECONDS),
    "lab_next": ("lab_turn", 1),
    "lab_previous": ("lab_turn", -1),
    "lab_mark_a": ("lab_mark", "a"),
    "lab_mark_b": ("lab_mark", "b"),
    **{name: ("act", name) for name in ("snapshot", "profile", "stacks", "history", "look")},
}
"""The method of these actions without its ``do_``, and what it is called with."""


def handler_of(name: str, *places: object) -> Callable[[], Any] | None:
    """Return what carries out an action in the first of these places that does, None for none."""
    method, argument = METHODS.get(name, ("", None))
    for place in places:
        if (own := getattr(place, f"do_{name}", None)) is not None:
            return own  # type: ignore[no-any-return]
        if method and (shared := getattr(place, f"do_{method}", None)) is not None:
            return partial(shared, argument)
    return None
