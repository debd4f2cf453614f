"""``gpuscope lab`` and its second words.

The verb itself is in ``verb.py``, each second word is in a file of its own.
"""
