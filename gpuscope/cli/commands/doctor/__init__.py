"""``gpuscope doctor``: the verb is in ``verb.py``."""
