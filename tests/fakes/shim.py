"""A fake libnvidia-ml.so.1 for whole programs, built with gcc.

Such programs are our agent from its zip, the TUI under tmux, and nvitop.

    subprocess.run([sys.executable, "-m", "gpuscope", "devices"], env=shim.environment(gpus=2,
    lost=1))

Readings move by the clock, the same in every process. Without a compiler the test that asks is
skipped, with a reason.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_shim.c")


def environment(
    gpus: int = 8,
    pid: int | str | None = None,
    delay_ms: int | None = None,
    hang: str | None = None,
    lost: int | None = None,
    init_error: int | None = None,
    as_measured: int | None = None,
    idle: str | None = None,
    chatty: int | None = None,
) -> dict[str, str]:
    """This process's environment with the fake library in front.

    ``pid``: who uses GPU 0, or "PID:GPU,PID:GPU". ``delay_ms``: each call takes so long. ``hang``:
    the call of this name (as in nvml.h) never returns. ``lost``: this GPU answers GpuIsLost to all
    but its identity. ``init_error``: the nvmlReturn_t of nvmlInit (9 driver not loaded, 18 driver
    and library versions differ). ``as_measured`` 1: calls take what they took on 8 H200s. ``idle``:
    these GPUs have no load, "1,3". ``chatty`` 1: it prints to standard output.
    """
    found = {
        name: value for name, value in os.environ.items() if not name.startswith("GPUSCOPE_FAKE_")
    }
    path = [str(library().parent), *filter(None, [found.get("LD_LIBRARY_PATH")])]
    found["LD_LIBRARY_PATH"] = os.pathsep.join(path)
    asked = {
        "GPUS": gpus,
        "PID": pid,
        "DELAY_MS": delay_ms,
        "HANG": hang,
        "LOST": lost,
        "INIT_ERROR": init_error,
    }
    asked["AS_MEASURED"], asked["IDLE"], asked["CHATTY"] = as_measured, idle, chatty
    found.update(
        {f"GPUSCOPE_FAKE_{name}": str(value) for name, value in asked.items() if value is not None}
    )
    return found


@functools.lru_cache(maxsize=1)
def library() -> Path:
    """The built library, once per process; its directory is removed at exit."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to build a fake libnvidia-ml.so.1")
    directory = Path(tempfile.mkdtemp(prefix="gpuscope-fake-nvml-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    stubs = [
        f"int {name}(void) {{ enter(__func__); return NOT_SUPPORTED; }}"
        for name in _missing_symbols()
    ]
    (directory / "stubs.h").write_text("\n".join(stubs) + "\n")
    built = directory / "libnvidia-ml.so.1"
    command = [
        compiler,
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        f"-I{directory}",
    ]
    subprocess.run([*command, str(SOURCE), "-o", str(built), "-lm"], check=True, timeout=120)
    return built


def _missing_symbols() -> list[str]:
    """What pynvml may ask for and the shim does not have."""
    import pynvml

    asked = set(
        re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', Path(pynvml.__file__).read_text())
    )
    return sorted(asked - set(re.findall(r"\b(nvml[A-Z]\w+)\(", SOURCE.read_text())))
