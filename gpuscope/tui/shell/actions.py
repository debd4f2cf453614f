"""This is the one registry of what a user can do on the tabs.

Key bindings, footer, help screen and palette are all made from it. An action ``name`` is
carried out by a method ``do_name`` of the visible screen if it has one, else of the app.
"""

from __future__ import annotations

from typing import NamedTuple

GROUPS = ("Screens", "Move", "Look", "Trainer", "Lab", "Replay", "Program")


class Action(NamedTuple):
    """One thing that a user can do, and the keys for it.

    ``keys`` are Textual key names, the first one is shown. ``where`` lists the tabs it acts on,
    empty for all. ``needs`` names a capability of the session, "" for none: what is missing is
    greyed with its reason. ``footer`` is the order in the footer, 0 for not shown there; the
    lowest stay when there is little room.
    """

    name: str
    keys: tuple[str, ...]
    label: str
    help: str
    group: str
    where: tuple[str, ...] = ()
    needs: str = ""
    footer: int = 0

    def applies(self, tab: str) -> bool:
        """Return whether it does anything on this tab."""
        return not self.where or tab in self.where


ACTIONS: tuple[Action, ...] = (
    Action(
        "fleet",
        ("0",),
        "Fleet",
        "all hosts, a line each, the worst first",
        "Screens",
        needs="hosts",
    ),
    Action("overview", ("1",), "Overview", "jobs, devices, load and memory at a glance", "Screens"),
    Action("memory", ("2",), "Memory", "where every byte of one device is", "Screens"),
    Action(
        "doctor",
        ("3",),
        "Doctor",
        "what is wrong, the evidence, what helps now and next time",
        "Screens",
    ),
    Action("lab", ("4",), "Lab", "a small trainer to try switches on", "Screens"),
    Action("log", ("5",), "Log", "what happened, newest last", "Screens"),
    Action(
        "processes",
        ("P",),
        "Processes",
        "who holds which GPU, its share, since when idle",
        "Screens",
        footer=7,
    ),
    Action("down", ("j", "down"), "Down", "next row", "Move"),
    Action("up", ("k", "up"), "Up", "previous row", "Move"),
    Action(
        "next_pane",
        ("tab",),
        "Next pane",
        "move between the lists of a screen",
        "Move",
        where=("overview", "doctor", "lab"),
    ),
    Action(
        "open",
        ("enter",),
        "Details",
        "a host; a job's ranks side by side; every reading of another row; a pitfall in full; a "
        "switch's values",
        "Move",
        where=("fleet", "overview", "memory", "doctor", "lab"),
        footer=6,
    ),
    Action(
        "back",
        ("escape",),
        "Back",
        "close what is open; clear the filter; from a host to all hosts",
        "Move",
    ),
    Action(
        "pause",
        ("space",),
        "Pause",
        "freeze the screen; sampling goes on, the age is shown",
        "Look",
        footer=3,
    ),
    Action("filter", ("slash",), "Filter", "only rows that contain the text", "Look", footer=4),
    Action("mine", ("u",), "Mine", "only my jobs", "Look", where=("fleet", "overview"), footer=8),
    Action(
        "sort_next",
        ("greater_than_sign",),
        "Sort",
        "devices or hosts by another column",
        "Look",
        ("fleet", "overview"),
        footer=9,
    ),
    Action(
        "sort_previous",
        ("less_than_sign",),
        "Sort back",
        "the column before",
        "Look",
        ("fleet", "overview"),
    ),
    Action(
        "faster",
        ("plus", "equals_sign"),
        "Faster",
        "more samples a second, 10 at most",
        "Look",
        needs="rate",
    ),
    Action("slower", ("minus",), "Slower", "fewer samples a second", "Look", needs="rate"),
    Action(
        "counters",
        ("c",),
        "Counters",
        "torch's memory_summary: peaks and rates",
        "Look",
        ("memory",),
        footer=5,
    ),
    Action(
        "modules",
        ("m",),
        "Modules",
        "parameters, gradients, state by module",
        "Look",
        ("memory",),
        footer=5,
    ),
    Action(
        "what_if",
        ("W",),
        "What if",
        "what each fix would free, predicted",
        "Look",
        ("memory",),
        footer=6,
    ),
    Action(
        "try_fix", ("r",), "Try fix", "the fix under the cursor, in the Lab", "Lab", ("memory",)
    ),
    Action(
        "waterfall",
        ("w",),
        "Waterfall",
        "where every byte is, beside the timeline",
        "Look",
        ("memory",),
        footer=6,
    ),
    Action(
        "zoom",
        ("z",),
        "Zoom",
        "charts over 1, 5, 15 minutes, 1, 4, 12 hours",
        "Look",
        ("overview", "memory"),
        footer=8,
    ),
    Action(
        "zoom_back",
        ("Z",),
        "Zoom back",
        "the shorter window before",
        "Look",
        ("overview", "memory"),
    ),
    Action(
        "next_subject",
        ("n",),
        "Next GPU",
        "the next device or trainer",
        "Look",
        ("memory",),
        footer=9,
    ),
    Action(
        "previous_subject", ("N",), "Last GPU", "the device or trainer before", "Look", ("memory",)
    ),
    Action("expand", ("l",), "Open branch", "show what is in a module", "Look", ("memory",)),
    Action(
        "collapse", ("h",), "Close branch", "hide it, or go to what holds it", "Look", ("memory",)
    ),
    Action("deeper", ("x",), "Deeper", "one level more of all modules", "Look", ("memory",)),
    Action("shallower", ("X",), "Shallower", "one level fewer", "Look", ("memory",)),
    Action(
        "order",
        ("o",),
        "Order",
        "modules largest first, or as the model has them",
        "Look",
        ("memory",),
    ),
    Action(
        "next_fix",
        ("n",),
        "Next fix",
        "mark the next fix, for y to copy",
        "Look",
        ("doctor",),
        "fix",
        5,
    ),
    Action(
        "prove",
        ("r",),
        "Prove",
        "the proof of the finding in the Lab; asks first",
        "Lab",
        ("doctor",),
        "proof",
        4,
    ),
    Action(
        "text_down",
        ("ctrl+d", "pagedown"),
        "Text down",
        "read on in the finding",
        "Move",
        ("doctor",),
    ),
    Action("text_up", ("ctrl+u", "pageup"), "Text up", "back in the finding", "Move", ("doctor",)),
    Action(
        "copy",
        ("y",),
        "Copy",
        "the fix that is marked, elsewhere this screen as text: to the clipboard and to a file",
        "Look",
        footer=7,
    ),
    Action("next_host", ("f",), "Next host", "the next of several hosts", "Look", needs="hosts"),
    Action("previous_host", ("F",), "Last host", "the host before", "Look", needs="hosts"),
    Action(
        "connect_again",
        ("f5",),
        "Connect",
        "again to a host that is lost, at once; ssh may ask again",
        "Look",
        needs="away",
    ),
    Action(
        "theme",
        ("t",),
        "Theme",
        "dark, light, colour-blind-safe, or the terminal's own colours",
        "Look",
    ),
    Action(
        "attach",
        ("a",),
        "Attach",
        "look into a trainer that runs without a probe, or take one out; asks first",
        "Trainer",
        ("fleet", "overview", "memory", "doctor"),
        "inject",
    ),
    Action(
        "snapshot",
        ("s",),
        "Snapshot",
        "every block of a trainer's allocator, in a file; asks first",
        "Trainer",
        ("overview", "memory", "doctor"),
        "trainer",
        5,
    ),
    Action(
        "profile",
        ("p",),
        "Profile",
        "some steps under torch.profiler, as a table; asks first",
        "Trainer",
        ("overview", "memory", "doctor"),
        "trainer",
        8,
    ),
    Action(
        "stacks",
        ("S", "i"),
        "Stacks",
        "where every thread of a trainer stands now",
        "Trainer",
        ("overview", "memory", "doctor"),
        "trainer",
        8,
    ),
    Action(
        "history",
        ("H",),
        "History",
        "note the stack of each allocation; measures its price first",
        "Trainer",
        ("overview", "memory", "doctor"),
        "trainer",
    ),
    Action(
        "signal",
        ("K", "f9"),
        "Signal",
        "end, stop or continue a process; asks first",
        "Trainer",
        ("overview",),
        "signal",
    ),
    Action(
        "lab_run",
        ("r",),
        "Run",
        "start the trainer, or restart it with these switches",
        "Lab",
        ("lab",),
        "lab",
        1,
    ),
    Action(
        "lab_stop",
        ("x",),
        "Stop",
        "stop the trainer, or a series of repeats",
        "Lab",
        ("lab",),
        "lab",
        2,
    ),
    Action(
        "lab_repeat",
        ("i",),
        "Repeat",
        "measure A and B in turns, A B B A …, each time in a fresh process",
        "Lab",
        ("lab",),
        "lab",
        2,
    ),
    Action(
        "lab_pitfalls",
        ("p",),
        "Pitfalls",
        "start a faulty training script, or the same one cured",
        "Lab",
        ("lab",),
        "lab",
        2,
    ),
    Action(
        "lab_view",
        ("v",),
        "View",
        "comparison, loss or runs: what stands first",
        "Lab",
        ("lab",),
        footer=2,
    ),
    Action(
        "lab_mark_a",
        ("A",),
        "Mark A",
        "the run under the cursor becomes A",
        "Lab",
        ("lab",),
        footer=7,
    ),
    Action(
        "lab_mark_b",
        ("B",),
        "Mark B",
        "the run under the cursor becomes B",
        "Lab",
        ("lab",),
        footer=7,
    ),
    Action(
        "lab_recording",
        ("o",),
        "Recording",
        "a recording of your own trainer as a run",
        "Lab",
        ("lab",),
    ),
    Action(
        "lab_nearest", ("n",), "Nearest", "the nearest switches that work", "Lab", ("lab",), "lab"
    ),
    Action("lab_next", ("right", "l"), "Next value", "change the switch", "Lab", ("lab",), "lab"),
    Action(
        "lab_previous",
        ("left", "h"),
        "Previous value",
        "change the switch back",
        "Lab",
        ("lab",),
        "lab",
    ),
    Action(
        "lab_default",
        ("backspace",),
        "Default",
        "the switch as it is by default",
        "Lab",
        ("lab",),
        "lab",
    ),
    Action(
        "replay_slower",
        ("left_square_bracket",),
        "Slower",
        "half the speed",
        "Replay",
        needs="replay",
        footer=10,
    ),
    Action(
        "replay_faster",
        ("right_square_bracket",),
        "Faster",
        "twice as fast",
        "Replay",
        needs="replay",
        footer=9,
    ),
    Action(
        "replay_back",
        ("comma", "left"),
        "Past",
        "10 s back; live, the screen stops and data keeps coming",
        "Replay",
        needs="time",
        footer=6,
    ),
    Action(
        "replay_forward",
        ("full_stop", "right"),
        "On 10 s",
        "later again; space: back to now",
        "Replay",
        needs="time",
    ),
    Action(
        "far_back",
        ("left_curly_bracket",),
        "Back 5 min",
        "as above, further",
        "Replay",
        needs="time",
    ),
    Action(
        "far_forward",
        ("right_curly_bracket",),
        "On 5 min",
        "as above, further",
        "Replay",
        needs="time",
    ),
    Action(
        "redraw",
        ("ctrl+l",),
        "Redraw",
        "the whole screen, if another program wrote on it",
        "Program",
    ),
    Action(
        "palette", ("colon", "ctrl+p"), "Palette", "find an action by its name", "Program", footer=2
    ),
    Action("help", ("question_mark",), "Help", "keys, words and glyphs", "Program", footer=2),
    Action(
        "quit",
        ("q", "ctrl+c", "ctrl+q"),
        "Quit",
        "leave; inside a dialog q closes the dialog",
        "Program",
        footer=1,
    ),
)

BY_NAME = {action.name: action for action in ACTIONS}
