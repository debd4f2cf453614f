"""``gpuscope predict``: the verb is in ``verb.py``."""
