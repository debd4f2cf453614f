"""``gpuscope lab`` and its subcommands.

The verb itself is in ``verb.py``, and each subcommand is in a file of its own.
"""
