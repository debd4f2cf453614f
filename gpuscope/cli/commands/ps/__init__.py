"""``gpuscope ps``: the verb is in ``verb.py``."""
