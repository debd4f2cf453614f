"""gpuscope: see inside a PyTorch training from the terminal.

``import gpuscope`` imports nothing else: in a training environment ``pip install --no-deps gpuscope`` is enough for
:func:`watch`, and a script that calls it runs unchanged where nobody is looking.
"""

__version__ = "0.1.0"
