"""The command line: ``main`` finds the verb, ``commands`` has a file or a folder for each."""

from .main import entry as entry
