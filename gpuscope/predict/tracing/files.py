"""Read and write weight files for a program whose tensors have no data.

Only a file's table of names, shapes and types is read. Nothing is written, so that no prediction
replaces a checkpoint of the user's.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from .fakes import DEVICE, HOST

SYNCHRONOUS = "HF_DEACTIVATE_ASYNC_LOAD"
"""A variable that makes transformers read weights in the calling thread, because another thread
would make real tensors.
"""
MAX_HEADER_BYTES = 100_000_000
"""The limit that the format sets."""
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    **{
        name: getattr(torch, kind)
        for name, kind in (
            ("F8_E4M3", "float8_e4m3fn"),
            ("F8_E5M2", "float8_e5m2"),
            ("U16", "uint16"),
            ("U32", "uint32"),
            ("U64", "uint64"),
            ("F8_E8M0", "float8_e8m0fnu"),
        )
        if hasattr(torch, kind)
    },
}


def _place(device: Any) -> torch.device:
    """Return the device for a tensor that is read for ``device``, in any notation."""
    if device is None:
        return HOST
    on_gpu = isinstance(device, int) or str(device).startswith("cuda") or device == DEVICE
    return DEVICE if on_gpu else torch.device(device)


class SafeOpen:
    """Replaces ``safetensors.safe_open``: tensors of the shapes in the file's header."""

    def __init__(self, filename: Any, framework: str = "pt", device: Any = "cpu", **_: Any):
        if framework not in ("pt", "torch", "pytorch"):
            raise ValueError(
                f"only tensors of torch are read in a prediction, not framework={framework!r}"
            )
        self._device = device
        with open(filename, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 0 < size <= MAX_HEADER_BYTES:
                raise ValueError(
                    f"{os.fspath(filename)} is no safetensors file: its header has {size} bytes"
                )
            header = json.loads(file.read(size))
        self._metadata: dict[str, str] | None = header.pop("__metadata__", None)
        self._header: dict[str, dict[str, Any]] = header

    def __enter__(self) -> SafeOpen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def keys(self) -> list[str]:
        return sorted(self._header)

    def offset_keys(self) -> list[str]:
        """Return the keys in the order of their data in the file."""
        return sorted(self._header, key=lambda name: self._header[name]["data_offsets"][0])

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get_tensor(self, name: str) -> torch.Tensor:
        entry = self._header[name]
        return torch.empty(
            entry["shape"], dtype=_TYPES[entry["dtype"]], device=_place(self._device)
        )

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> _Slice:
        entry = self._header[name]
        return _Slice(self, name, entry["shape"], entry["dtype"])


class _Slice:
    """One tensor of a file, of which a part is read."""

    def __init__(self, file: SafeOpen, name: str, shape: list[int], dtype: str):
        self._file, self._name, self._shape, self._dtype = file, name, shape, dtype

    def get_shape(self) -> list[int]:
        return list(self._shape)

    def get_dtype(self) -> str:
        return self._dtype

    def __getitem__(self, part: Any) -> torch.Tensor:
        whole = part is Ellipsis or part == slice(None)
        file = self._file if whole else SafeOpen.__new__(SafeOpen)
        if not whole:  # cut on the host; only the part goes to the device
            vars(file).update(vars(self._file), _device="cpu")
        tensor = file.get_tensor(self._name)
        return tensor if whole else tensor[part].contiguous().to(_place(self._file._device))


def install() -> None:
    """Replace ``safe_open`` until this process ends.

    This must happen before a program imports it.
    """
    os.environ.setdefault(SYNCHRONOUS, "1")
    if importlib.util.find_spec("safetensors") is None:
        return
    module: Any = importlib.import_module("safetensors")
    module.safe_open = SafeOpen


class Files:
    """Replaces ``torch.save`` and ``torch.load``.

    Saved objects are found again by the file's name, or by the open file.
    """

    def __init__(self) -> None:
        self._load: Callable[..., Any] = torch.load
        self._saved: dict[Any, tuple[Any, Any]] = {}

    def save(self, content: Any, file: Any, *_: Any, **__: Any) -> None:
        """Save to the host, as to a file, so that what is on the device may be freed."""
        self._saved[_key(file)] = (tree_map(_stored, content), file)

    def load(self, file: Any, map_location: Any = None, *given: Any, **named: Any) -> Any:
        known = self._saved.get(_key(file))
        if known is None:
            # A function or a table for map_location is not used: the file's tensors are on the host
            # then.
            plain = (
                map_location if isinstance(map_location, str) and map_location == "meta" else None
            )
            read = self._load(file, plain, *given, **named)
        else:
            read = known[0]
        place = None if map_location is None else HOST
        if isinstance(map_location, (str, int, torch.device)):
            place = _place(map_location)
        elif isinstance(map_location, dict) and map_location:
            place = _place(next(iter(map_location.values())))
        return tree_map(lambda part: _restored(part, place), read)


def _key(file: Any) -> Any:
    return os.path.abspath(os.fspath(file)) if isinstance(file, (str, os.PathLike)) else id(file)


def _stored(part: Any) -> Any:
    if not isinstance(part, FakeTensor):
        return part
    copy = torch.empty(part.shape, dtype=part.dtype, device=HOST)
    copy.from_device = part.fake_device == DEVICE
    return copy


def _restored(part: Any, place: torch.device | None) -> Any:
    """Return the saved tensor; ``place`` None: on the device that the file names."""
    if not isinstance(part, FakeTensor):
        return part
    on_device = getattr(part, "from_device", False)
    if part.fake_device.type == "cuda":  # written on a GPU, but not yet on this device
        part.fake_device, on_device = HOST, True
    if place is None:
        place = DEVICE if on_device else HOST
    if place.type == "meta" or not math.prod(part.shape):
        return part.to(place)
    return part.to(place) if part.fake_device != place else part.clone()
