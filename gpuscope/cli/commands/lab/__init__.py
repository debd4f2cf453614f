"""``gpuscope lab`` and its second words: the verb is in ``verb.py``, each second word in a file of its own."""
