"""These keys are the same on several screens and dialogs, a part of the registry of keys."""

from __future__ import annotations

from .entries import Key, one, two

CLOSE = one("escape,q", "dismiss", "Close", "back to the screen below")
LEAVE = one("escape", "dismiss", "Close", "back to the screen below")
CLOSE_BY_ENTER = one("enter", "dismiss", "Close", "back to the screen below")
SCROLL = two("j,down", "scroll(1)", "k,up", "scroll(-1)", "Scroll", "line by line")
PAGE = one("pagedown,space", "page(1)", "Page", "a page down", shown="space")
HELP = one("question_mark", "keys_here", "Help", "keys, words and glyphs")
PALETTE = one("colon", "palette_here", "Palette", "find an action, a GPU or a word")
PAUSE = Key((("space", "look('pause')"),), "Pause", "freeze the screen, or go on", still="Now")
TIME = (
    two("comma", "look('replay_back')", "full_stop", "look('replay_forward')", "Past",
        "10 seconds back, or forward again", 50, still="10 s"),
    two("left_curly_bracket", "look('far_back')", "right_curly_bracket", "look('far_forward')",
        "5 min", "the same in steps of 5 minutes", still="5 min"),
)  # fmt: skip
"""Through time, as on the tabs. Screens put 50 between their own keys, where these come in the line
at the bottom.
"""
MOVE_ROWS = two(
    "j,down", "move(1)", "k,up", "move(-1)", "Move", "to the next row, or the one before"
)
PAGE_ROWS = two(
    "pagedown,ctrl+f", "page(1)", "pageup,ctrl+b", "page(-1)", "Page", "one page down, or up"
)
ENDS = two("home,g", "edge(-1)", "end,G", "edge(1)", "Ends", "to the first row, or the last")
ZOOM = two("z,minus", "zoom(1)", "Z,plus,equals_sign", "zoom(-1)", "Zoom",
    "charts over a longer or shorter time", 40, hidden="equals_sign")  # fmt: skip
"""The same on every screen that has a time axis, as on the tabs."""
SORT = two("less_than_sign", "sort(-1)", "greater_than_sign", "sort(1)", "Sort",
    "by another column")  # fmt: skip
SIGNAL = one("K,f9", "signal", "Signal", "end or stop it; asks first", needs="signal")
SELECT = one("enter", "select", "Details", "open the row under the cursor")
TYPING = (
    one("enter", "submit", "Keep it", "show only rows that contain the text", 10, via="Input"),
    one("escape", "drop", "Drop it", "show all rows again", 20),
)
FORCE = one("exclamation_mark", "force", "Run anyway", "start although the GPU is in use", 40)
ENVIRONMENT = one("e", "environment", "Environment", "its variables when it started", 15, "live")
