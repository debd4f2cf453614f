"""These are the keys of every screen, dialog and list that is no tab, and the words for them.

Together with :data:`gpuscope.tui.shell.actions.ACTIONS`, which are the keys of the tabs, this
is the one registry of keys. The bindings of a class are made from it, and so are the line at
the bottom, ``?`` and the palette.
"""

from __future__ import annotations

from .entries import Key, one

LEAVE = 90
"""The place of the key that leaves, in the line of a dialog: the last."""
CLOSE = one("escape,q", "dismiss", "close", "back to the screen below", LEAVE)
SCROLL = Key((("j,down", "scroll(1)"), ("k,up", "scroll(-1)")), "scroll", "line by line")
PAGE = one("pagedown,space", "page(1)", "on", "a page down", shown="space")
HELP = one("question_mark", "keys_here", "help", "these keys, and the words and glyphs in use")
PAUSE = Key(
    (("space", "look('pause')"),), "pause", "freeze the screen, or continue from now", still="now"
)
TIME = (
    Key(
        (("comma", "look('replay_back')"), ("full_stop", "look('replay_forward')")),
        "past",
        "10 s back, or forward again",
        50,
        still="10 s",
    ),
    Key(
        (
            ("left_curly_bracket", "look('far_back')"),
            ("right_curly_bracket", "look('far_forward')"),
        ),
        "5 min",
        "5 minutes back, or forward again",
        still="5 min",
    ),
)
"""Through time, as on the tabs. Screens put 50 between their own keys, where these come in the line
at the bottom.
"""
MOVE_ROWS = Key(
    (("j,down", "move(1)"), ("k,up", "move(-1)")), "move", "to the next row, or the one before"
)
ENDS = Key((("home,g", "edge(-1)"), ("end,G", "edge(1)")), "ends", "to the first row, or the last")
SELECT = one("enter", "select", "open", "open the row under the cursor")
TYPING = (
    one("enter", "submit", "keep it", "show only rows that contain the text", 10, via="Input"),
    one("escape", "drop", "drop it", "show all rows again", 20),
)
FORCE = one("exclamation_mark", "force", "run anyway", "run although the GPU is in use", 40)

SIGNAL_KEYS = {
    "T": "TERM",
    "I": "INT",
    "H": "HUP",
    "Q": "QUIT",
    "9": "KILL",
    "S": "STOP",
    "C": "CONT",
    "U": "USR1",
    "R": "USR2",
}
"""The key of each signal, a letter of it in capitals. That of KILL would be the key that opens the
dialog, so that pressing it twice would kill: it has its number, as in ``kill -9``. No other has a
digit, because digits are the keys of the tabs.
"""

KEYS: dict[str, tuple[Key, ...]] = {
    # What all screens of a kind have; theirs come on top of it.
    "FullScreen": (
        one("escape,q", "dismiss", "back", "back to the screen below", 10),
        HELP,
        one("colon", "palette_here", "palette", "find an action, a thing or a word by its name"),
    ),
    "Palette": (
        Key(
            (("down,ctrl+n", "move(1)"), ("up", "move(-1)")),
            "move",
            "to the next entry, or the one before",
            10,
            "↑ ↓",
        ),
        Key((("pagedown", "page(1)"), ("pageup", "page(-1)")), "page", "a page further, or back"),
        one("enter", "choose", "choose", "do it, or open it", 20, via="Input"),
        one("escape", "dismiss", "close", "back to the screen below", 30),
    ),
    "SettingsDialog": (
        one("t", "theme", "theme", "the next theme", 10),
        Key(
            (("plus,equals_sign", "rate(True)"), ("minus", "rate(False)")),
            "rate",
            "samples a second",
            20,
        ),
        one("u", "mine", "mine", "only my jobs, or all", 30),
    ),
    "ConnectDialog": (
        one("enter", "submit", "connect", "show this host as well", 10, via="Input"),
        one("right", "cursor_right", "complete", "the name of the host", 15, via="Input"),
        one("escape", "dismiss", "close", "back to the screen below", 20),
    ),
    "DeadJobDialog": (
        one("enter", "submit", "examine", "read what the job left there", 10, via="Input"),
        one("tab", "other", "path or text", "from the path to the text, and back", 15),
        one("escape", "dismiss", "close", "back to the screen below", 20),
    ),
    "Dialog": (
        CLOSE,
        SCROLL,
        PAGE,
        one("pageup", "page(-1)", "page back", "a page back"),
        HELP,
    ),
    "ChartedScreen": (
        PAUSE,
        *TIME,
        one(
            "enter",
            "readings",
            "readings",
            "every reading, with the reason where there is none",
            90,
        ),
        Key(
            (("plus,equals_sign", "zoom(-1)"), ("minus", "zoom(1)")),
            "zoom",
            "a shorter or longer chart window",
            70,
        ),
        one("c", "chart(1)", "chart", "the next history", 60),
        SCROLL._replace(help="to what does not fit", footer=87),
    ),
    # Looked at closely.
    "DeviceScreen": (
        Key(
            (("n,right", "device(1)"), ("b,left", "device(-1)")),
            "GPU",
            "the next GPU of the host, or the one before",
            80,
        ),
        one("o", "holders", "holders", "which processes have the GPU open", 95),
    ),
    "OneProcessScreen": (
        Key(
            (("plus,equals_sign", "zoom(-1)"), ("minus", "zoom(1)")),
            "zoom",
            "a shorter or longer chart window",
            55,
        ),
        one(
            "K,f9",
            "signal",
            "signal",
            "end, stop or continue the process; asks first",
            80,
            "signal",
        ),
        one("e", "environment", "environment", "its variables at the start", 85),
    ),
    "ProcessScreen": (
        PAUSE,
        *TIME,
        one("enter", "select", "open", "everything about the process", 20, via="LiveTable"),
        one(
            "K,f9",
            "signal",
            "signal",
            "end, stop or continue the process; asks first",
            25,
            "signal",
        ),
        one("e", "environment", "environment", "its variables at the start", 30),
        one("slash", "filter", "filter", "only rows that contain the text", 35),
        one("u", "mine", "mine", "only my processes, or all", 40),
        Key(
            (("less_than_sign", "sort(-1)"), ("greater_than_sign", "sort(1)")),
            "sort",
            "by the column before, or the next",
            45,
        ),
        one("T", "tree", "tree", "children below their parents", 60),
        one("J", "job", "my Slurm job", "only the GPUs of the Slurm job that gpuscope runs in", 65),
        one("c", "column", "columns", "choose what the table shows", 70),
        MOVE_ROWS._replace(footer=80, via="LiveTable"),
    ),
    "JobScreen": (
        PAUSE,
        *TIME,
        one(
            "enter",
            "select",
            "all readings",
            "every reading of the rank under the cursor",
            20,
            via="LiveTable",
        ),
        one(
            "s",
            "act('snapshot')",
            "snapshot",
            "every block of its allocator, in a file; asks first",
            25,
            "snapshot",
        ),
        one(
            "p",
            "act('profile')",
            "profile",
            "some steps under torch.profiler; asks first",
            30,
            "profile",
        ),
        one("S,i", "act('stacks')", "stacks", "the stacks of all its threads", 35, "stacks"),
        one(
            "H",
            "act('history')",
            "history",
            "record the stack of each allocation; asks first",
            40,
            "history",
        ),
        one("c", "chart", "chart", "the next chart comes first, where not all have room", 55),
        Key(
            (("plus,equals_sign", "zoom(-1)"), ("minus", "zoom(1)")),
            "zoom",
            "a shorter or longer chart window",
            65,
        ),
        one("a", "all", "all ranks", "all ranks, or the worst and the others as one line", 60),
        MOVE_ROWS._replace(footer=70, via="LiveTable"),
    ),
    "DetailScreen": (
        *TIME,
        CLOSE._replace(footer=10),
        one("enter", "dismiss", "close", "back to the screen below"),
        Key(
            (("z", "zoom(1)"), ("Z", "zoom(-1)")), "zoom", "histories over a longer or shorter time"
        ),
    ),
    "ProfileScreen": (
        one("c,tab", "kind", "kernels / collectives / CPU", "the next of these tables", 20),
        Key(
            (("less_than_sign", "sort(-1)"), ("greater_than_sign", "sort(1)")),
            "sort",
            "by the column before, or the next",
            30,
        ),
        one("y", "copy", "copy the path", "of the trace, which opens in Perfetto too", 40),
    ),
    "SnapshotScreen": (
        Key(
            tuple(
                (str(number), f"view('{view}')")
                for number, view in enumerate(("map", "stacks", "sizes", "time", "diff"), 1)
            ),
            "views",
            "map, stacks, sizes, over time, compare",
            20,
            "1–5",
        ),
        one("tab", "next_view", "next view", "the view after this one"),
        one(
            "enter",
            "select",
            "compare",
            "with the file under the cursor",
            30,
            when="files",
            via="LiveTable",
        ),
        one(
            "enter",
            "select",
            "whole stack",
            "all frames of the row under the cursor",
            30,
            when="stacks",
            via="LiveTable",
        ),
        Key(
            (("left,comma", "move(-1)"), ("right,full_stop", "move(1)")),
            "move the moment",
            "earlier or later",
            40,
            when="time",
        ),
        Key(
            (
                ("shift+left,left_square_bracket", "move(-20)"),
                ("shift+right,right_square_bracket", "move(20)"),
            ),
            "move far",
            "much earlier or later",
            shown="[ ]",
            when="time",
        ),
        one("P", "peak", "peak", "the moment with most allocated", 50, when="time"),
        one("b", "files", "another file", "to compare with", 60, when="compared"),
        one("d", "device", "device", "the next device in the file", 70, when="devices"),
    ),
    "StacksScreen": (
        one("r,enter", "again", "again", "ask once more", 10),
        Key(
            (("left", "other(-1)"), ("right", "other(1)")),
            "other trainer",
            "the rank before, or the next",
            20,
        ),
        one("a", "all", "all frames", "all frames of all threads, or the innermost", 30),
    ),
    "HelpScreen": (
        SCROLL._replace(footer=10),
        PAGE._replace(footer=20),
        one("question_mark", "dismiss", "close", "back to the screen below"),
    ),
    # Asked before something is done.
    "AttachScreen": (
        one(
            "enter",
            "select",
            "attach",
            "to the rank or the job, asks first; opens one that has a probe",
            via="LiveTable",
        ),
        one("d", "detach", "detach", "remove an injected probe; asks first", needs="attach"),
        one("o", "elsewhere", "another host", "user@host, slurm:JOB or k8s:NAMESPACE/POD"),
        one("r,a", "again", "look again", "refresh the list"),
    ),
    "ConsentDialog": (
        one("y", "agree", "do it", "attach the probe, or remove it"),
        one(
            "enter",
            "enter",
            "open it",
            "open the trainer once the probe is attached; never confirms",
        ),
        one("escape,q,n", "leave", "cancel", "close it; while it works, cancel"),
    ),
    "ActDialog": (
        one("enter", "go_on", "do it", "ask the trainer; then open the result"),
        one("escape,q", "leave", "leave it", "close it; while it works, cancel"),
        Key(
            (("left", "choose(-1)"), ("right", "choose(1)")), "steps", "of a profile: fewer or more"
        ),
        one("h", "history", "history", "for a snapshot: record stacks first"),
        one("tab", "other", "another trainer", "ask another one"),
    ),
    "WorkDialog": (
        SCROLL._replace(footer=10),
        one("w", "again", "count again", "count another step; asks first", 20),
    ),
    "SignalDialog": (
        *(
            one(key, f"send('{name}')", name, f"send {name} to the process")
            for key, name in SIGNAL_KEYS.items()
        ),
        one("enter", "enter", "close", "close when it was sent; never sends"),
    ),
    "ColumnDialog": (
        Key(
            (("j,down", "move(1)"), ("k,up", "move(-1)")),
            "move",
            "to the next column, or the one before",
        ),
        one("space,enter", "change", "show or leave out", "the column under the cursor", 10),
    ),
    "ExplainDialog": (
        SCROLL._replace(footer=10),
        one("enter", "dismiss", "close", "back to the screen below"),
    ),
    "SshPrompt": (
        one("enter", "submit", "answer", "send the answer to ssh", via="Input"),
        one("escape", "refuse", "refuse", "do not answer: ssh gives up"),
    ),
    # The Lab.
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
            "faulty",
            "start the script under the cursor with its mistake",
            10,
            via="LiveTable",
        ),
        one("c", "start(True)", "cured", "start the fixed script", 20),
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
    "TuneDialog": (
        one("enter", "begin", "begin", "search for the fastest settings", 10),
        one("left,h", "budget(-1)", "shorter", "a shorter search", 20),
        one("right,l", "budget(1)", "longer", "a longer search", 30),
        one("f", "free", "batch", "keep the effective batch, or allow another", 40),
        CLOSE._replace(label="leave"),
    ),
    "TuneScreen": (
        one("enter", "select", "details", "what became of this row", 20, via="LiveTable"),
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
    # Parts of screens, while they have the keyboard.
    "LiveTable": (
        MOVE_ROWS,
        Key(
            (("pagedown,ctrl+f", "page(1)"), ("pageup,ctrl+b", "page(-1)")),
            "page",
            "a page further, or back",
        ),
        ENDS,
        SELECT,
    ),
    "CaseTable": (MOVE_ROWS, ENDS, SELECT),
    "FilterLine": TYPING,
    "FilterInput": TYPING,
}
"""The class → its keys. A class has those of the classes that it derives from as well, unless it
has the key itself.
"""

TITLES = {
    "ProcessScreen": "Processes",
    "OneProcessScreen": "A process",
    "DeviceScreen": "A GPU",
    "JobScreen": "A job",
    "DetailScreen": "Readings",
    "ProfileScreen": "A profile",
    "SnapshotScreen": "A snapshot",
    "StacksScreen": "Stacks",
    "TuneScreen": "A search",
    "LiveTable": "In the list",
    "CaseTable": "In the list",
    "FilterLine": "The filter",
    "FilterInput": "The filter",
    "Palette": "The palette",
    "Input": "The line to type into",
    "ScrollableContainer": "The text",
}
"""What ``?`` calls a screen or a part of one; the others are "This dialog"."""

BY_TEXTUAL = {
    "Input": "moving in the text and changing it, as in a shell",
    "ScrollableContainer": "scrolling by arrows, Home, End and pages",
    "Screen": "Tab and shift+Tab to the next part and back",
}
"""Classes of Textual whose own keys stay as they are, and what these are for."""
