"""These keys are the same on several screens and dialogs, a part of the registry of keys."""

from __future__ import annotations

from .entries import Key, one

CLOSE = one("escape,q", "dismiss", "close", "back to the screen below")
SCROLL = Key((("j,down", "scroll(1)"), ("k,up", "scroll(-1)")), "scroll", "line by line")
PAGE = one("pagedown,space", "page(1)", "page", "a page down", shown="space")
HELP = one("question_mark", "keys_here", "help", "these keys, and the words and glyphs in use")
PALETTE = one("colon", "palette_here", "palette", "actions, things, words; save a picture")
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
ENVIRONMENT = one(
    "e", "environment", "environment", "its variables at the start", 15, "live", brief="env"
)
