"""Say how much of a card a training uses outside torch's allocator.

This is the CUDA context with its kernels, the memory that libraries allocate for themselves, and
the memory that the driver keeps. It depends on the card, the driver and the version of torch, and
hardly on the model. There are three sources, the best one first: figures that ``gpuscope predict
--measure`` measured here and keeps in the user's cache; shipped figures, for measured pairs of card
and torch; and an estimate with a wide error, from the "non-PyTorch memory" in torch's out-of-memory
messages of such cards. Only the standard library is needed.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from .. import paths
from ..process import atomic_file
from ..text.numbers import whole
from ..text.units import MIB
from .gpus import find_gpu

Source = Literal["measured", "shipped", "calculated"]
CACHE_NAME = "outside-torch.json"
MAX_CACHE_BYTES = 256 * 1024
MAX_ENTRIES = 200
_LARGEST = 64 << 30


@dataclass(frozen=True, slots=True)
class ContextMemory:
    """The memory outside of torch's allocator.

    ``context_bytes``: CUDA context, loaded kernels and libraries of one training process, as the
    driver counts them in addition to what torch has reserved. ``driver_bytes``: what the driver
    keeps on the card. ``error_bytes``: the error of their sum, ±.
    """

    context_bytes: int
    driver_bytes: int
    error_bytes: int
    source: Source
    note: str = ""

    @property
    def all_bytes(self) -> int:
        return self.context_bytes + self.driver_bytes


@dataclass(frozen=True, slots=True)
class _Pair:
    gpu: str
    torch: str
    """The beginning of a version: "2.11"."""
    products_mib: int
    """The context if matrices are multiplied and cuDNN is not used."""
    cudnn_mib: int
    """The context if cuDNN is used too."""
    convolutions_mib: int
    """The context if no matrix is multiplied, so that cuBLAS and its kernels are not loaded."""
    vectors_mib: int
    """The context if cuBLAS only multiplies matrices by vectors, as spectral normalization does
    beside convolutions.
    """
    driver_mib: int
    error_mib: int


SHIPPED = (_Pair("h200", "2.11", 743, 760, 631, 694, 615, 20),)
"""Measured with the CUDA 13.0 wheel and driver 580, over 603 trainings of 73 models. The context
takes 518 MiB when CUDA has started. At the third step it takes 742 to 744 MiB, 758 to 762 if cuDNN
is in use too, and 630 to 634 with convolutions alone, for all models; 694 with convolutions in a
critic whose weights are normalised by vectors (696 in deterministic mode). Another driver kept 623
MiB of the card, and the context took 749 MiB in place of 743.
"""
_CONTEXT_MIB = {
    "6": (300, 120),
    "7": (300, 120),
    "8": (400, 150),
    "9": (749, 150),
    "10": (750, 250),
    "12": (610, 220),
}
"""Major compute capability → context and its error. For 8, messages of single processes on the RTX
3090, 4090, A5000, A6000 and A100 name 300 to 470 MiB; for 12, one of the RTX 5090 names 614; 9 is
measured. The others take the value of a neighbour.
"""
_DRIVER_SHARE = 0.02
"""The share that the driver keeps of a card whose CUDA total is not in the table: for the cards in
the table it is between 0.5 % (H200) and 4 % (RTX 5090).
"""


def cache_path() -> Path:
    """Return the path of the cache of measurements; it need not exist."""
    return paths.cache_folder() / CACHE_NAME


def outside(
    gpu: str,
    architecture: str,
    total_bytes: int,
    torch: str,
    path: Path | None = None,
    products: bool = True,
    cudnn: bool = True,
    matrices: bool = True,
) -> ContextMemory:
    """Return what lies outside of torch's allocator on a card with a version of torch.

    ``gpu`` is the driver's name for the card. ``products`` says whether the training multiplies
    with cuBLAS, ``matrices`` whether not only by vectors, and ``cudnn`` whether cuDNN computes
    convolutions, recurrent layers or attention.
    """
    measured = read_cache(path or cache_path()).get(_key(gpu, torch))
    if measured is not None:
        return measured
    known = find_gpu(gpu)
    if known is not None:
        for pair in SHIPPED:
            if pair.gpu == known.key:
                with_products = (
                    (pair.cudnn_mib if matrices else pair.vectors_mib)
                    if cudnn
                    else pair.products_mib
                )
                context = with_products if products else pair.convolutions_mib
                found = ContextMemory(
                    context * MIB, pair.driver_mib * MIB, pair.error_mib * MIB, "shipped"
                )
                if torch.startswith(pair.torch + "."):
                    return found
                note = f"measured with torch {pair.torch}, not with {torch or 'this torch'}"
                return replace(found, error_bytes=2 * found.error_bytes, note=note)
    context, error = _CONTEXT_MIB.get(architecture.split(".")[0], (600, 300))
    if (
        known is not None
        and known.cuda_bytes is not None
        and abs(known.total_bytes - total_bytes) < known.total_bytes / 50
    ):
        driver, driver_error = known.total_bytes - known.cuda_bytes, 0
    else:
        driver = int(total_bytes * _DRIVER_SHARE)
        driver_error = driver // 2
    note = "estimated from similar GPUs: gpuscope predict --measure, on the GPU, makes it exact"
    return ContextMemory(context * MIB, driver, error * MIB + driver_error, "calculated", note)


# ── the cache ─────────────────────────────────────────────────────────────────────────────────────


def _key(gpu: str, torch: str) -> str:
    known = find_gpu(gpu)
    return f"{known.key if known else gpu.strip().lower()} | {torch}"


def read_cache(path: Path) -> dict[str, ContextMemory]:
    """Return what was measured here, by card and torch.

    A file that cannot be read, or has invalid content, counts as empty.
    """
    try:
        if path.stat().st_size > MAX_CACHE_BYTES:
            return {}
        rows = json.loads(path.read_text(encoding="utf-8"))["measured"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    found = {}
    for row in rows if isinstance(rows, list) else []:
        entry = _entry(row)
        if entry is not None:
            found[_key(*entry[0])] = entry[1]
    return found


def _entry(row: Any) -> tuple[tuple[str, str], ContextMemory] | None:
    if not isinstance(row, dict) or not all(
        isinstance(row.get(name), str) for name in ("gpu", "torch")
    ):
        return None
    sizes = [row.get(name) for name in ("context_bytes", "driver_bytes", "error_bytes")]
    known = [whole(size, 0, _LARGEST - 1) for size in sizes]
    if None in known:
        return None
    context, driver, error = (size or 0 for size in known)
    return (row["gpu"], row["torch"]), ContextMemory(
        context, driver, error, "measured", f"measured {row.get('on', 'here')}"
    )


def keep(gpu: str, torch: str, found: ContextMemory, path: Path | None = None) -> Path:
    """Write a measurement into the cache, replacing an older one of the same pair.

    Raises OSError.
    """
    path = path or cache_path()
    rows: list[dict[str, Any]] = []
    if path.exists():
        try:
            old = json.loads(path.read_text(encoding="utf-8"))["measured"]
            rows = [
                row
                for row in old
                if (entry := _entry(row)) is not None and _key(*entry[0]) != _key(gpu, torch)
            ]
        except (ValueError, KeyError, TypeError):
            rows = []
    sizes = {name: value for name, value in asdict(found).items() if name.endswith("_bytes")}
    rows.append({"gpu": gpu, "torch": torch, **sizes, "on": time.strftime("%Y-%m-%d")})
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_file.write_text(path, json.dumps({"measured": rows[-MAX_ENTRIES:]}, indent=1))
    return path
