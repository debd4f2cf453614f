"""What the viewer and the agent leave unloaded, because it is large and they do not need it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCREEN = (
    "from gpuscope.tui.app import launch\n"
    "launch.load_asyncio_without_tls()\n"
    "import gpuscope.store.source, gpuscope.tui.overview.pane, gpuscope.tui.app.app\n"
    "from gpuscope.attach import bundle\n"
    "bundle.local_agent_zip()\n"
)
AGENT = "import gpuscope.agent.main\n"


@pytest.mark.slow
@pytest.mark.parametrize("loads", [SCREEN, AGENT], ids=["screen", "agent"])
def test_openssl_is_not_loaded_and_still_can_be(loads: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    code = loads + (
        "import sys\n"
        "print(sorted({'ssl', '_ssl', '_hashlib'} & set(sys.modules)))\n"
        "import ssl, hashlib\n"
        "print(hasattr(ssl, 'create_default_context'))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={"XDG_CACHE_HOME": str(tmp_path)},
    )
    assert (found.stdout, found.stderr) == ("[]\nTrue\n", "")
