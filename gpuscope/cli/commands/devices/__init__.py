"""``gpuscope devices``: the verb is in ``verb.py``."""
