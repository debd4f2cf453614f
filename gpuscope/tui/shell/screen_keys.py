"""These are the keys of every screen, dialog and list that is no tab, and the words for them.

Together with :data:`gpuscope.tui.shell.actions.ACTIONS`, which are the keys of the tabs, this
is the one registry of keys. The bindings of a class are made from it, and so are the line at
the bottom, ``?`` and the palette.
"""

from __future__ import annotations

from .entries import Key, one, two
from .shared_keys import (
    CLOSE,
    CLOSE_BY_ENTER,
    ENDS,
    ENVIRONMENT,
    FORCE,
    HELP,
    LEAVE,
    MOVE_ROWS,
    PAGE,
    PAGE_ROWS,
    PALETTE,
    PAUSE,
    SCROLL,
    SELECT,
    SIGNAL,
    SORT,
    TIME,
    TYPING,
    ZOOM,
)

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

ON_A_TRAINER = (
    one("s", "act('snapshot')", "Snapshot", "all blocks to a file; asks first", 25, "snapshot"),
    one("p", "act('profile')", "Profile", "torch.profiler; asks first", 30, "profile"),
    one("S,i", "act('stacks')", "Stacks", "of all its threads", 22, "stacks"),
)
"""What is asked of the trainer under the cursor."""
STACKS_IN_FOOTER = (*(key._replace(footer=0) for key in ON_A_TRAINER[:2]), ON_A_TRAINER[2])

KEYS: dict[str, tuple[Key, ...]] = {
    # What all screens of a kind have; theirs come on top of it.
    "FullScreen": (
        one("escape,q", "dismiss", "Back", "back to the screen below"),
        HELP,
        PALETTE,
        one("R", "report_here", "Report", "save an HTML page of this, to send"),
    ),
    "Palette": (
        two("down,ctrl+n", "move(1)", "up", "move(-1)", "Move",
            "to the next entry, or the one before", 10, shown="↑ ↓"),
        two("pagedown", "page(1)", "pageup", "page(-1)", "Page", "one page down, or up"),
        one("enter", "choose", "Choose", "do it, or open it", 20, via="Input"),
        LEAVE._replace(footer=30),
    ),
    "SettingsDialog": (
        one("t", "theme", "Theme", "the next theme", 10),
        two("left_square_bracket,minus", "rate(False)", "right_square_bracket,plus,equals_sign",
            "rate(True)", "Speed", "fewer samples a second, or more",
            20, hidden="minus plus equals_sign"),
        one("u", "mine", "Mine", "only my jobs, or all", 30),
    ),
    "ConnectDialog": (
        one("enter", "submit", "Connect", "show this host as well", 10, via="Input"),
        one("right", "cursor_right", "Complete", "the name of the host", 15, via="Input"),
        LEAVE._replace(footer=20),
    ),
    "DeadJobDialog": (
        one("enter", "submit", "Examine", "read what the job left there", 10, via="Input"),
        one("tab", "other", "Path or text", "from the path to the text, and back", 15),
        LEAVE._replace(footer=20),
    ),
    "Dialog": (
        CLOSE,
        SCROLL,
        PAGE,
        one("pageup", "page(-1)", "Page back", "a page back"),
        HELP,
        PALETTE,
    ),
    "ChartedScreen": (
        PAUSE,
        *TIME,
        one("enter", "readings", "Details", "every reading, or why there is none", 30),
        ZOOM,
        one("v,c", "chart(1)", "View", "show the next chart first", 20, hidden="c"),
        SCROLL._replace(help="to the lines that do not fit", footer=87),
    ),
    # Looked at closely.
    "DeviceScreen": (
        two("n,right", "device(1)", "N,left,b", "device(-1)", "GPU",
            "the next GPU of the host, or the one before", 10, hidden="b"),
        one("y", "copy", "Copy", "the first command of the fix", 11, when="finding"),
        one("d", "doctor", "Doctor", "the whole finding", 12, when="finding"),
        one("S,i", "stacks", "Stacks", "of all its threads", 13, "stacks", "finding"),
        SIGNAL._replace(footer=14, when="finding"),
        one("o", "holders", "Holders", "who has the GPU open", 15, "live"),
    ),
    "OneProcessScreen": (SIGNAL._replace(footer=10), ENVIRONMENT, *STACKS_IN_FOOTER),
    "ProcessScreen": (
        PAUSE,
        *TIME,
        one("enter", "select", "Details", "everything about the process", 20, via="LiveTable"),
        SIGNAL._replace(footer=25),
        ENVIRONMENT._replace(footer=30),
        *STACKS_IN_FOOTER,
        one("a", "attach", "Attach", "to the process; asks first", needs="attach"),
        one("slash", "filter", "Filter", "only rows that contain the text", 35),
        one("u", "mine", "Mine", "only my processes, or all", 40),
        SORT._replace(footer=45),
        one("T", "tree", "Tree", "children below their parents", 46),
        one("J", "job", "Slurm job", "only the GPUs of this Slurm job", 65),
        one("C,c", "column", "Columns", "choose what the table shows", 48, hidden="c"),
        MOVE_ROWS._replace(footer=80, via="LiveTable"),
    ),
    "JobScreen": (
        PAUSE,
        *TIME,
        one("enter", "select", "Details", "every reading of the rank", 20, via="LiveTable"),
        *(key._replace(when="answering") for key in ON_A_TRAINER),
        one("K,f9", "signal", "Signal", "end or stop the rank; asks first", 32, "signal",
            when="living"),
        one("H", "act('history')", "History", "stacks of allocations; asks first", 40, "history",
            when="answering"),
        one("v,c", "chart", "View", "show the next chart first", 35, hidden="c"),
        ZOOM._replace(footer=65),
        one("A,a", "all", "All ranks", "every rank, or ranks that are alike as one row",
            23, when="ranks", hidden="a"),
        MOVE_ROWS._replace(footer=70, via="LiveTable"),
    ),
    "DetailScreen": (*TIME, CLOSE, CLOSE_BY_ENTER, ZOOM._replace(footer=20)),
    "ProfileScreen": (
        one("v,tab,c", "kind", "View", "kernels, collectives or CPU", 20, hidden="c"),
        SORT._replace(footer=30),
        one("y", "copy", "Copy", "the path of the trace, for Perfetto", 40),
    ),
    "SnapshotScreen": (
        Key(tuple((str(number), f"view('{view}')") for number, view in enumerate(
            ("map", "stacks", "sizes", "time", "diff"), 1)),
            "Views", "map, stacks, sizes, over time, compare", 20, "1–5"),
        MOVE_ROWS._replace(footer=22, when="rows", via="LiveTable"),
        one("v,tab", "next_view", "View", "the view after this one"),
        one("y", "copy", "Copy", "the first command of the fix", 35, when="finding"),
        one("enter", "select", "Compare", "with the file under the cursor", 30, when="files",
            via="LiveTable"),
        one("enter", "select", "Whole stack", "all frames of the row", 30, when="stacks",
            via="LiveTable"),
        two("left,comma", "move(-1)", "right,full_stop", "move(1)", "Move the moment",
            "earlier or later", 40, when="time"),
        two("shift+left,left_square_bracket", "move(-20)", "shift+right,right_square_bracket",
            "move(20)", "Move far", "much earlier or later", shown="[ ]", when="time"),
        one("P", "peak", "Peak", "the moment with most allocated", 50, when="time"),
        one("b", "files", "Another file", "to compare with", 60, when="compared"),
        one("n,d", "device", "Next GPU", "the next GPU in the file", 70, when="devices",
            hidden="d"),
    ),
    "StacksScreen": (
        one("r,enter", "again", "Refresh", "ask once more", 10),
        two("n,right", "other(1)", "N,left", "other(-1)", "Rank",
            "the next rank or trainer, or the one before", 20),
        one("A,a", "all", "All frames", "all frames, or only the innermost", 30, hidden="a"),
    ),
    "HelpScreen": (
        one("v,tab", "turn", "Words, glyphs", "what they mean, and keys of other tabs", 5),
        SCROLL._replace(footer=10),
        PAGE._replace(footer=20),
        one("question_mark", "dismiss", "Close", "back to the screen below"),
    ),
    # Asked before something is done.
    "AttachScreen": (
        one("enter", "select", "Attach",
            "to the rank or the job, asks first; opens one that has a probe", via="LiveTable"),
        one("d", "detach", "Detach", "remove an injected probe; asks first", needs="attach"),
        one("o", "elsewhere", "Another host", "user@host, slurm:JOB or k8s:NAMESPACE/POD"),
        one("r,a", "again", "Refresh", "search again", hidden="a"),
    ),
    "ConsentDialog": (
        one("y", "agree", "Do it", "attach the probe, or remove it"),
        one("enter", "enter", "Open it",
            "open the trainer once the probe is attached; Enter never attaches"),
        one("escape,q,n", "leave", "Cancel", "close it; while it works, cancel"),
    ),
    "ActDialog": (
        one("enter", "go_on", "Do it", "ask the trainer, then open the result"),
        one("escape,q", "leave", "Cancel", "close it; while it works, cancel"),
        two("left", "choose(-1)", "right", "choose(1)", "Steps", "of a profile: fewer or more"),
        one("h", "history", "History", "for a snapshot: record stacks first"),
        one("tab,n", "other", "Next rank", "ask another trainer", hidden="n"),
    ),
    "WorkDialog": (
        SCROLL._replace(footer=10),
        one("w", "again", "Count again", "count another step; asks first", 20),
    ),
    "SignalDialog": (
        *(one(key, f"send('{name}')", name, f"send {name} to the process")
            for key, name in SIGNAL_KEYS.items()),
        one("w", "whole", "Whole", "the whole command of the process, or one line of it"),
        one("enter", "enter", "Close", "close after a signal was sent; Enter never sends one"),
    ),
    "ColumnDialog": (
        two("j,down", "move(1)", "k,up", "move(-1)", "Move",
            "to the next column, or the one before"),
        one("space,enter", "change", "Show or leave out", "the column under the cursor", 10),
    ),
    "ExplainDialog": (SCROLL._replace(footer=10), CLOSE_BY_ENTER),
    "SshPrompt": (
        one("enter", "submit", "Answer", "send the answer to ssh", 10, via="Input"),
        one("escape", "refuse", "Refuse", "do not answer: ssh gives up", 20),
    ),
    "CommandDialog": (
        one("enter", "begin", "Measure", "start the command", 10),
        one("x", "stop", "Stop", "end it", 20),
        FORCE,
    ),
    "RunDialog": (
        one("enter", "take", "Use these settings", "the Lab's settings become those of this run",
            10, when="switches"),
    ),
    "PitfallsDialog": (
        one("enter", "start(False)", "With the mistake",
            "start the script under the cursor with its mistake", 10, via="LiveTable"),
        one("f,c", "start(True)", "Fixed", "start the same script without its mistake",
            20, hidden="c"),
        one("x", "stop", "Stop", "end the script", 30),
        FORCE,
    ),
    "RecordingDialog": (
        one("enter", "go_on", "Read it, take it",
            "read the file, or take the training under the cursor", 10, via="Input"),
        one("tab", "other", "List or typing", "from the path to the list, and back"),
        CLOSE._replace(label="Leave"),
    ),
    "ValueDialog": (
        one("enter", "take", "Take it", "the value under the cursor, or what is typed",
            10, via="LiveTable"),
        one("tab", "other", "List or typing", "from the list to typing, and back",
            20, when="typed"),
        CLOSE._replace(label="Leave"),
    ),
    "HeldDialog": (FORCE._replace(footer=10), CLOSE._replace(label="Cancel")),
    "QuitDialog": (
        one("enter", "leave", "Stop and quit", "end the run or the search, keep what it measured",
            10),
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
        one("enter", "select", "Details", "all of the trial under the cursor", 20, via="LiveTable"),
        one("x", "stop", "Stop", "end the search; the same search continues later",
            30, when="running"),
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
    # Parts of screens, while they have the keyboard.
    "LiveTable": (MOVE_ROWS, PAGE_ROWS, ENDS, SELECT),
    "JobList": (PAGE_ROWS, ENDS),
    "FindingList": (PAGE_ROWS, ENDS),
    "CaseTable": (MOVE_ROWS, ENDS, SELECT),
    "FilterLine": TYPING,
    "FilterInput": TYPING,
}  # fmt: skip
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
    "JobList": "In the list",
    "FindingList": "In the list",
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
