"""``python -m gpuscope``: the same as the console script."""

from .cli.main import entry

entry()
