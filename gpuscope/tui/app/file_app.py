"""An app that shows one file and nothing else: ``gpuscope snapshot FILE`` in a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.screen import Screen

from ..shell.session import Session
from .app import GpuscopeApp


class FileApp(GpuscopeApp):
    """An app that shows one snapshot; leaving that leaves the program."""

    def __init__(self, path: Path, theme: str | None = None) -> None:
        from ...config import load
        from ..background.view_state import load as load_state

        settings, _ = load()
        state, _ = load_state()
        self._remembered = state.theme
        super().__init__(Session(settings=settings, state=state), theme=theme)
        self._path = path

    def get_default_screen(self) -> Screen[Any]:
        return Screen()

    def on_mount(self) -> None:
        super().on_mount()
        self.open("snapshot", self._path, then=lambda _: self.leave())

    def remember_theme(self) -> str:
        """Keep a theme that was chosen here, and return why that failed, "" when it did not."""
        from ..background.view_state import load, save

        theme = self.session.state.theme
        if theme == self._remembered:
            return ""
        state, _ = load()  # another gpuscope may have kept more in the meantime
        state.theme = theme
        return save(state)

    async def action_do(self, name: str) -> None:
        """There are no tabs to act on: only leaving."""
        if name == "quit":
            self.leave()


def show_snapshot(path: Path, theme: str | None = None) -> int:
    """Show a snapshot until the user leaves, and return the exit code.

    A ``theme`` is used this time, and not remembered. It is called only where
    ``launch.why_unusable`` says "".
    """
    import os
    import sys

    from .launch import prepare_environment

    prepare_environment(bool(os.environ.get("SSH_CONNECTION")))
    app = FileApp(path, theme)
    app.run()
    if problem := app.remember_theme():
        print(f"gpuscope: {problem}", file=sys.stderr)
    return app.return_code or 0
