"""``python -m gpuscope``: the same as the console script."""

from .cli import entry

entry()
