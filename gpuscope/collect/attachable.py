"""Find the processes of this host that have torch loaded, and what each of them does.

Each is a trainer, a launcher, or a helper of one. Only /proc is read: memory maps (who has torch
loaded), arguments, allow-listed environment variables (rank and job) and parents, as far as the
kernel lets this user read them. A process that cannot be read can still be named by its pid.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from ..process.procfs import read, stat_of, words_of
from ..wire.frames import ProcDef, Unknown
from . import processes

MAX_PROCESSES = 4096
MAX_FOUND = 128
MAX_SECONDS = 3.0
MAPS_BYTES = 4 << 20
ENVIRON_BYTES = 256 << 10
MAX_GENERATIONS = 16
_DEVICE = re.compile(r"/dev/nvidia\d")
ALLOWED = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE",
    "KUBERNETES_SERVICE_HOST", "POD_NAME", "HOSTNAME",
)  # fmt: skip
"""The environment variables that are kept.

The rest of an environment may hold tokens and keys, and is dropped as soon as it is read.
"""

TRAINER, LAUNCHER, WORKER = "trainer", "launcher", "worker"
_LAUNCHERS = (
    "torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch",
    "accelerate.commands.launch", "deepspeed.launcher.launch", "deepspeed.launcher.runner",
)  # fmt: skip


class TorchProcess(NamedTuple):
    """A process with torch, and its role.

    ``role`` is trainer, launcher (starts trainers and does not train itself) or worker (loads data
    or compiles for a trainer). ``sibling_of`` is the pid of a parent that started several like it
    with multiprocessing, None for others.
    """

    definition: ProcDef
    reasons: Dict[str, Unknown]
    torch: bool
    role: str
    environment: Dict[str, str]
    sibling_of: Optional[int]


def find(
    known: Iterable[int] = (), redact: bool = True, root: str = "/"
) -> Tuple[List[TorchProcess], str]:
    """Return the processes with torch, and in words what was left out, "" when nothing was.

    Processes of ``known`` (such as users of a GPU) are always included.
    """
    gpu = set(known)
    pids, note = _pids(root)
    until = time.monotonic() + MAX_SECONDS
    chosen: List[Tuple[int, bool]] = []
    for pid in sorted(gpu | set(pids)):
        if time.monotonic() > until:
            note = (
                note
                or f"the search took longer than {MAX_SECONDS:.0f} s: not every process was checked"
            )
            if pid not in gpu:
                continue
        torch = has_torch(pid, root)
        if (torch or pid in gpu) and pid != os.getpid():
            chosen.append((pid, torch))
    if len(chosen) > MAX_FOUND:
        note = f"{len(chosen)} processes have torch loaded; the first {MAX_FOUND} are shown"
        chosen = sorted(chosen, key=lambda one: (one[0] not in gpu, one[0]))[:MAX_FOUND]
    found: Dict[int, TorchProcess] = {}
    arguments: Dict[int, List[str]] = {}
    for pid, torch in chosen:
        process = processes.describe(pid, redact=redact, root=root)
        if process is None:
            if pid in gpu and processes.visible(pid, root):
                found[pid] = TorchProcess(ProcDef(pid), {}, torch, TRAINER, {}, None)
            continue
        with suppress(OSError):
            arguments[pid] = words_of(pid, root=root)
        found[pid] = TorchProcess(
            process[0], process[1], torch, TRAINER, _environment(pid, root), None
        )
    return _with_roles(found, arguments, gpu, root), note


def has_torch(pid: int, root: str = "/") -> bool:
    """Whether the process has loaded torch's library. False also if that cannot be read."""
    try:
        program = os.readlink(os.path.join(root, "proc", str(pid), "exe"))
        if "python" not in program.rsplit("/", 1)[-1].lower():
            return False
        return b"/libtorch" in read(os.path.join(root, "proc", str(pid), "maps"), MAPS_BYTES)
    except OSError:
        return False


def _pids(root: str) -> Tuple[List[int], str]:
    try:
        names = [name for name in os.listdir(os.path.join(root, "proc")) if name.isdigit()]
    except OSError as error:
        return [], f"/proc cannot be listed ({error.strerror})"
    if len(names) > MAX_PROCESSES:
        return sorted(map(int, names))[
            -MAX_PROCESSES:
        ], f"only the newest {MAX_PROCESSES} processes were checked"
    return [int(name) for name in names], ""


def _environment(pid: int, root: str) -> Dict[str, str]:
    """Return the allow-listed variables that the process was started with.

    The result is empty where they cannot be read.
    """
    try:
        pairs = [line.partition("=") for line in words_of(pid, "environ", root, ENVIRON_BYTES)]
    except OSError:
        return {}
    return {name: value[:256] for name, equals, value in pairs if equals and name in ALLOWED}


def launched(pid: int, found: Iterable[int], root: str = "/") -> List[int]:
    """Return those of ``found`` that process ``pid`` has started, itself or through others."""
    parents: Dict[int, int] = {}
    for one in _pids(root)[0]:
        try:
            parents[one] = stat_of(one, root).ppid
        except (OSError, ValueError):
            continue
    under = []
    for one in found:
        above = parents.get(one, 0)
        for _ in range(MAX_GENERATIONS):
            if above in (0, 1, pid):
                break
            above = parents.get(above, 0)
        if above == pid:
            under.append(one)
    return under


def _has_gpu(pid: int, root: str) -> bool:
    """Whether the process has a GPU's device file open. False also if that cannot be read."""
    folder = os.path.join(root, "proc", str(pid), "fd")
    try:
        return any(
            _DEVICE.match(os.readlink(os.path.join(folder, number)))
            for number in os.listdir(folder)[:4096]
        )
    except OSError:
        return False


def _with_roles(
    found: Dict[int, TorchProcess], words: Dict[int, List[str]], gpu: Iterable[int], root: str = "/"
) -> List[TorchProcess]:
    busy = set(gpu)
    out = {
        pid: one._replace(role=_role(pid, one, found, words, busy)) for pid, one in found.items()
    }
    children: Dict[int, List[int]] = {}
    for pid, one in out.items():
        parent = one.definition.ppid
        if one.role == TRAINER and parent in out and _is_spawned(words.get(pid, [])):
            children.setdefault(parent, []).append(pid)
    for parent, pids in children.items():
        if len(pids) < 2 and parent in busy:
            continue  # a helper of a process that trains itself
        alone = _has_gpu(parent, root) and not any(_has_gpu(pid, root) for pid in pids)
        if alone or "LOCAL_RANK" in out[parent].environment:
            for pid in pids:  # data loaders of a process that trains alone, or of a rank
                out[pid] = out[pid]._replace(role=WORKER)
            continue
        for pid in pids:
            out[pid] = out[pid]._replace(sibling_of=parent)
        if parent not in busy:
            out[parent] = out[parent]._replace(role=LAUNCHER)
    return list(out.values())


def _role(
    pid: int,
    one: TorchProcess,
    found: Dict[int, TorchProcess],
    words: Dict[int, List[str]],
    gpu: Iterable[int],
) -> str:
    own = words.get(pid, [])
    if any(word.rsplit("/", 1)[-1] in _LAUNCHERS for word in own[:4]):
        return LAUNCHER
    if any("_inductor/compile_worker" in word for word in own) or (
        one.definition.name or ""
    ).startswith("pt_data_"):
        return WORKER
    parent = one.definition.ppid
    if pid not in gpu and parent in found and own == words.get(parent) and own:
        return WORKER  # forked from a trainer and without a GPU, as DataLoader's workers are
    return TRAINER


def _is_spawned(words: List[str]) -> bool:
    return any(
        "multiprocessing.spawn" in word or word == "--multiprocessing-fork" for word in words
    )
