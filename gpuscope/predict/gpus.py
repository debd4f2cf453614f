"""GPUs by name: how much memory a card has, so that a prediction needs none in this host.

Only the standard library is needed.

``total_bytes`` is what the driver reports as the card's memory (nvidia-smi,
``nvmlDeviceGetMemoryInfo``), including the driver's own part; cards with ECC on report less than
their name says. ``cuda_bytes`` is what CUDA programs can have at most: the "total capacity" of
torch's out-of-memory messages and of ``cudaMemGetInfo``. The difference is what the driver keeps.
Both are taken from published tables of nvidia-smi and from torch's messages for such cards; None if
none was found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..text.units import GIB, MIB


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card; ``architecture`` is its compute capability, such as "9.0"."""

    key: str
    total_bytes: int
    architecture: str
    cuda_bytes: int | None = None


def _gpu(key: str, total_mib: int, architecture: str, cuda_gib: float | None = None) -> Gpu:
    return Gpu(
        key, total_mib * MIB, architecture, None if cuda_gib is None else int(cuda_gib * GIB)
    )


GPUS: tuple[Gpu, ...] = (
    _gpu("b200", 183359, "10.0"),
    _gpu("gh200", 97871, "9.0"),
    _gpu("h200", 143771, "9.0", 139.80),
    _gpu("h100", 81559, "9.0", 79.11),
    _gpu("h100-nvl", 95830, "9.0"),
    _gpu("h20", 97871, "9.0"),
    _gpu("a100-80", 81920, "8.0", 79.15),
    _gpu("a100-40", 40960, "8.0", 39.39),
    _gpu("a30", 24576, "8.0"),
    _gpu("a40", 46068, "8.6", 44.45),
    _gpu("a10", 23028, "8.6", 22.06),
    _gpu("a10g", 23028, "8.6", 22.06),
    _gpu("a16", 15356, "8.6"),
    _gpu("a6000", 49140, "8.6", 47.41),
    _gpu("a5000", 24564, "8.6", 23.68),
    _gpu("a4000", 16376, "8.6", 15.73),
    _gpu("l40s", 46068, "8.9", 44.42),
    _gpu("l40", 46068, "8.9", 44.42),
    _gpu("l4", 23034, "8.9", 22.03),
    _gpu("6000-ada", 49140, "8.9", 47.50),
    _gpu("5090", 32607, "12.0", 31.36),
    _gpu("5080", 16303, "12.0", 15.47),
    _gpu("5070-ti", 16303, "12.0", 15.47),
    _gpu("5070", 12227, "12.0"),
    _gpu("4090", 24564, "8.9", 23.60),
    _gpu("4080", 16376, "8.9", 15.70),
    _gpu("4070-ti", 12282, "8.9", 11.99),
    _gpu("4070", 12282, "8.9", 11.99),
    _gpu("4060-ti-16", 16380, "8.9"),
    _gpu("4060-ti", 8188, "8.9"),
    _gpu("4060", 8188, "8.9", 7.75),
    _gpu("3090-ti", 24564, "8.6", 23.69),
    _gpu("3090", 24576, "8.6", 23.69),
    _gpu("3080-ti", 12288, "8.6", 11.76),
    _gpu("3080", 10240, "8.6", 9.77),
    _gpu("3070", 8192, "8.6", 7.79),
    _gpu("3060", 12288, "8.6", 11.76),
    _gpu("2080-ti", 11264, "7.5", 10.75),
    _gpu("titan-rtx", 24576, "7.5", 23.65),
    _gpu("t4", 15360, "7.5", 14.56),
    _gpu("v100-32", 32768, "7.0", 31.74),
    _gpu("v100-16", 16384, "7.0", 15.77),
    _gpu("p100", 16384, "6.0", 15.89),
)
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
