"""``python -m gpuscope.agent``: the same as the zip."""

from .main import main

main()
