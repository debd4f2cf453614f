"""Set for a run what a post-mortem needs, where the user has set nothing.

Nearly all of it acts only when something fails. While the training runs, only the flight recorder
works: it notes each collective, which torch 2.13 does by default and older versions do not. What
costs more (``TORCH_DISTRIBUTED_DEBUG=DETAIL``, ``TORCH_NCCL_ENABLE_TIMING``, stacks of C++) is not
set.

=================================  ==========================  ====================================
variable                           without it                  with it
=================================  ==========================  ====================================
``TORCH_FR_BUFFER_SIZE``           2000; 0 in torch 2.4        each rank's last 2000 collectives
``TORCH_NCCL_DUMP_ON_TIMEOUT``     on; off in torch 2.4        they are written when NCCL times out
``TORCH_FR_DUMP_TEMP_FILE``        the user's cache, or /tmp   they lie with the rest of the run
``PYTHONFAULTHANDLER``             off                         a crash of native code shows a stack
``PET_LOG_DIR``                    a folder in /tmp            torchrun keeps each rank's error file
``TORCHELASTIC_ERROR_FILE``        none without torchrun       the same, for a rank of srun
=================================  ==========================  ====================================

Before torch 2.9 two of them have another name. Newer ones know it and warn that it is old.
"""

from __future__ import annotations

import glob
import os
import re
import time
from typing import Dict, List, Mapping, Optional, Tuple

from ..process import flight_settings
from ..process.flight_settings import FlightSetting

FOLDER = "gpuscope-on-call"
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_VERSION = re.compile(r"__version__\s*(?::\s*str\s*)?=\s*['\"](\d+)\.(\d+)")


SETTINGS = (
    *flight_settings.SETTINGS,
    FlightSetting("PYTHONFAULTHANDLER", "", "1"),
    FlightSetting("PET_LOG_DIR", "", "{}/torchrun"),
)


def prepare(
    argv: List[str], env: Mapping[str, str], folder: str = ""
) -> Tuple[Dict[str, str], List[str]]:
    """Make the run's folder; return the environment with the settings, and lines that say so.

    ``folder`` is the user's choice. Without it, the runs below ``gpuscope-on-call`` are named by
    Slurm's job, or by the time. A folder that cannot be made stops no training: what needs it is
    left out.
    """
    name = env.get("SLURM_JOB_ID") or time.strftime("%Y%m%d-%H%M%S")
    folder = os.path.abspath(folder or os.path.join(FOLDER, name))
    try:
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
        line = f"gpuscope: on call; if this run dies:  gpuscope doctor {folder}"
    except OSError as error:
        line = f"gpuscope: on call without a folder: {folder}: {error.strerror}"
        folder = ""
    settings = list(SETTINGS)
    if any(rank in env for rank in _RANKS):  # without torchrun: one process, and one file, each
        here = f"{{}}/error_{os.uname().nodename}_{os.getpid()}.json"
        settings.append(FlightSetting("TORCHELASTIC_ERROR_FILE", "", here))
    out, done, kept = dict(env), [], []
    version = _torch_version(argv[0], env)
    for setting in settings:
        own = next((name for name in (setting.name, setting.older) if name in env), "")
        if own:
            kept.append(own)
        elif folder or "{}" not in setting.value:
            name = setting.named(version)
            out[name] = setting.value.replace("{}", folder)
            done.append(f"{name}={out[name]}")
    lines = [line, "gpuscope: set " + (" ".join(done) or "nothing")]
    if kept:
        lines[1] += f"; left as they are: {' '.join(kept)}"
    return out, lines


def _torch_version(program: str, env: Mapping[str, str]) -> Optional[Tuple[int, int]]:
    """Return the version of the torch that a program's environment has; None if it is not found."""
    prefixes = [os.path.dirname(os.path.dirname(os.path.abspath(program)))]
    prefixes += [env[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name)]
    for prefix in prefixes:
        place = os.path.join(glob.escape(prefix), "lib*", "python3*", "*-packages", "torch")
        for path in sorted(glob.glob(os.path.join(place, "version.py")), reverse=True):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    found = _VERSION.search(file.read(4096))
            except OSError:
                continue
            if found:
                return int(found[1]), int(found[2])
    return None
