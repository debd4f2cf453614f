"""GPUs by name: how much memory a card has, so that a prediction needs none in this host.

The table says where its sizes are from. The difference between ``total_bytes``, which the driver
reports, and ``cuda_bytes``, which CUDA programs can have, is what the driver keeps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..text.units import GIB, MIB
from . import tables


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card; ``architecture`` is its compute capability, such as "9.0"."""

    key: str
    total_bytes: int
    architecture: str
    cuda_bytes: int | None = None


def _gpu(key: str, total_mib: int, architecture: str, cuda_gib: float | None) -> Gpu:
    cuda = None if cuda_gib is None else int(cuda_gib * GIB)
    return Gpu(key, total_mib * MIB, architecture, cuda)


_CHECKS: dict[str, tables.Check] = {
    "key": tables.matches(r"[a-z0-9-]+"),
    "total_mib": tables.whole(1),
    "architecture": tables.matches(r"\d+\.\d"),
    "cuda_gib": lambda value: "" if value is None or type(value) is float else "a number or null",
}
GPUS = tuple(_gpu(**row) for row in tables.read(tables.FOLDER / "gpus.json", _CHECKS))
_BY_KEY = {gpu.key: gpu for gpu in GPUS}
_OTHER_NAMES = {
    "a100": "a100-80",
    "v100": "v100-32",
    "6000-ada-generation": "6000-ada",
    "gh200-480": "gh200",
    "h200-nvl": "h200",
    "4080-super": "4080",
    "4070-super": "4070",
    "a10-g": "a10g",
}
"""Names that two sizes share mean the larger one; the output says which one was used."""
_MAKERS = re.compile(r"^(?:nvidia|tesla|geforce|quadro|rtx|gtx)-?")
_NOISE = re.compile(r"-(?:sxm\d*|pcie|hbm\d*e?|gb|cc|mig)\b|gb\b")


def find_gpu(name: str) -> Gpu | None:
    """Return the card that ``name`` means.

    The name is a key of the table ("a100-80"), or the driver's own name for the card ("NVIDIA
    A100-SXM4-80GB", "NVIDIA GeForce RTX 4090"). None if the name is not unambiguous.
    """
    word = re.sub(r"[\s_]+", "-", name.strip().lower())
    while (shorter := _MAKERS.sub("", word, count=1)) != word:
        word = shorter
    word = _NOISE.sub("", word).strip("-")
    word = _OTHER_NAMES.get(word, word)
    if word in _BY_KEY:
        return _BY_KEY[word]
    # "h100-80": a name with the size that the table has for this card
    size = re.fullmatch(r"(.+?)-(\d+)", word)
    known = _BY_KEY.get(size[1]) if size else None
    return (
        known
        if known and size and abs(known.total_bytes / GIB - int(size[2])) < 0.1 * int(size[2])
        else None
    )


def keys() -> str:
    """The table's names, for a message."""
    return ", ".join(gpu.key for gpu in GPUS)
