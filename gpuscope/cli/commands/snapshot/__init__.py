"""``gpuscope snapshot``: the verb is in ``verb.py``."""
