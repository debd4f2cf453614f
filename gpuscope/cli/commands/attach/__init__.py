"""``gpuscope attach``: the verb is in ``verb.py``."""
