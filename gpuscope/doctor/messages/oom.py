"""Parse every form of out-of-memory message, of a device or the host, into one record.

The messages of torch's caching allocators changed several times: 0.4 (no numbers), 1.0
(``cached``), 1.4 (``reserved in total``), 2.1 (one sentence per holder), 2.3 (private pools). A
size that a message does not state is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...text.log_figures import figures
from .text import Hit, Log

UNKNOWN_BYTES = 1 << 63
"""NVML's "not available" is 2^64 - 1 bytes, which torch prints as 17179869184.00 GiB."""
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_SIZE = r"(\d+(?:\.\d+)?)(bytes?|[kmgtpe]i?b|b)"
_REACH = 2600
"""The most characters, not counting spaces, that one message has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """One out-of-memory error, with sizes in bytes; a size that the message omits is None.

    - ``backend``: cuda, hip, xpu, mps, cpu or hpu.
    - ``form``: the generation of the message (``1.0``, ``1.4``, ``2.1``, ``2.3``) or its kind
      (``async``, ``mps``, ``cpu``). ``bare`` is a message without sizes, ``word`` the word OOM
      without a message.
    - ``reserved_bytes``: all that this process's allocator holds. ``unallocated_bytes`` is the
      part of it that no tensor uses.
    - ``process_bytes``: all that this process holds on the device. ``others`` are the processes
      that the message names.
    """

    hit: Hit
    backend: str
    form: str
    device: str | None = None
    requested_bytes: int | None = None
    capacity_bytes: int | None = None
    allocated_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    unallocated_bytes: int | None = None
    private_pool_bytes: int | None = None
    process_bytes: int | None = None
    allowed_bytes: int | None = None
    other_allocations_bytes: int | None = None
    others: tuple[tuple[str, int], ...] = ()

    @property
    def outside_bytes(self) -> int | None:
        """Return the bytes that are neither free nor in this process's allocator.

        These belong to other processes, to contexts and to libraries.
        """
        if self.capacity_bytes is None or self.free_bytes is None or self.reserved_bytes is None:
            return None
        return self.capacity_bytes - self.free_bytes - self.reserved_bytes

    @property
    def non_torch_bytes(self) -> int | None:
        """Return what this process holds besides its allocator; None where that is not said."""
        if self.process_bytes is None or self.reserved_bytes is None:
            return None
        return self.process_bytes - self.reserved_bytes

    @property
    def complete(self) -> bool:
        """Return whether the message has all the numbers that arithmetic needs."""
        known = (
            self.requested_bytes,
            self.capacity_bytes,
            self.allocated_bytes,
            self.free_bytes,
            self.unallocated_bytes,
        )
        return None not in known


def size(number: str | None, unit: str | None) -> int | None:
    """Return the bytes of ``1.05`` and ``gib``; None for torch's number for "unknown"."""
    if number is None or unit is None or len(number) > 30:
        return None
    shift = 0 if unit in ("b", "byte", "bytes") else _UNITS[unit[0]]
    value = int(float(number) * (1 << shift))
    return value if 0 <= value < UNKNOWN_BYTES else None


def find(log: Log, limit: int = 20) -> list[OutOfMemory]:
    """Return the first ``limit`` out-of-memory errors in the log, in order.

    Errors with the same numbers are returned once.
    """
    found: list[OutOfMemory] = []
    for hit in log.find_all(r"tried to allocate", limit * 3):
        one = _parse_allocator(log, hit)
        if one:
            found.append(one)
    for hit in log.find_all(r"would exceed allowed memory", limit):
        found.append(_parse_async(log, hit))
    found += [_parse_cpu(hit) for hit in log.find_all(_CPU, limit)]
    if not found:
        found = _find_bare(log)
    unique: dict[object, OutOfMemory] = {}
    for one in sorted(found, key=lambda one: one.hit.start):
        unique.setdefault(
            (one.backend, one.requested_bytes, one.allocated_bytes, one.free_bytes, one.device), one
        )
    return list(unique.values())[:limit]


_CPU = (
    r"defaultcpuallocator: (?:can ?'?t|not enough|cannot)[^:]{0,40}: ?(?:you)? tried to allocate "
    r"(\d+) bytes|not enough memory: you tried to allocate (\d+(?:\.\d+)?)(gb|bytes)"
)


def _parse_cpu(hit: Hit) -> OutOfMemory:
    wanted = size(hit[1], "b") if hit[1] else size(hit[2], hit[3])
    return OutOfMemory(hit=hit, backend="cpu", form="cpu", requested_bytes=wanted)


_ASKED = re.compile(r"triedtoallocate" + _SIZE)
_OLD = re.compile(
    r"\(?gpu(\d+);"
    + _SIZE
    + "totalcapacity;"
    + _SIZE
    + "alreadyallocated;"
    + _SIZE
    + "free;"
    + f"(?:{_SIZE}allowed;)?(?:{_SIZE}(cached|reserved))?"
)
_CAPACITY = re.compile(r"(?:gpu|device|xpu)?(\d*)hasatotalcapaci?tyof" + _SIZE)
_FREE = re.compile(r"ofwhich" + _SIZE + "isfree")
_OTHER = re.compile(r"process(\d+)has" + _SIZE + "memoryinuse")
_SELF = re.compile(r"thisprocesshas" + _SIZE + "memoryinuse")
_ALLOWED = re.compile(_SIZE + "allowed;")
_ALLOCATED = re.compile(r"oftheallocatedmemory" + _SIZE + "isallocatedbypytorch")
_POOLS = re.compile(r"with" + _SIZE + "allocatedinprivatepools")
_UNALLOCATED = re.compile(r"and" + _SIZE + "isreservedbypytorchbutunallocated")
_MPS = re.compile(
    r"mpsallocated:" + _SIZE + "(?:,otherallocations:" + _SIZE + ")?,maxallowed:" + _SIZE
)


def _parse_allocator(log: Log, hit: Hit) -> OutOfMemory | None:
    """Return the record of the message around "Tried to allocate"."""
    text = log.squeezed[hit.start : hit.start + _REACH]
    again = text.find("triedtoallocate", 10)
    text = text[:again] if again > 0 else text
    before = log.squeezed[max(0, hit.start - 260) : hit.start]
    request = _ASKED.match(text)
    if request is None or "defaultcpuallocator" in before[-120:]:
        return None
    wanted = size(request[1], request[2])
    if "mpsbackendoutofmemory" in before:
        mps = next(iter(list(_MPS.finditer(before))[-1:]), None)
        numbers = mps.groups() if mps else (None,) * 6
        held, other, most = size(*numbers[:2]), size(*numbers[2:4]), size(*numbers[4:6])
        return OutOfMemory(
            hit=hit,
            backend="mps",
            form="mps",
            requested_bytes=wanted,
            allocated_bytes=held,
            other_allocations_bytes=other,
            allowed_bytes=most,
        )
    backend = next(
        (name for name in ("hip", "xpu", "hpu") if f"{name}outofmemory" in before[-80:]), "cuda"
    )
    if "outofmemory" not in before[-120:] and "gpu" not in text[:200]:
        return None
    old = _OLD.search(text[:700])
    if old:
        return _parse_parentheses(hit, backend, wanted, old)
    return _parse_sentences(hit, backend, wanted, text)


def _parse_parentheses(
    hit: Hit, backend: str, wanted: int | None, old: re.Match[str]
) -> OutOfMemory:
    """Return the record of a message of torch 1, which has its figures in parentheses."""
    group = old.groups()
    capacity, held, free = size(*group[1:3]), size(*group[3:5]), size(*group[5:7])
    last, kind = size(*group[9:11]), group[11]
    # In 1.0 to 1.3, "cached" excludes the allocated bytes; from 1.4 on, the number includes them.
    if kind == "cached":
        spare, whole = last, None if last is None or held is None else last + held
        if None not in (last, held, capacity) and last >= held and last + held > capacity * 1.02:  # type: ignore[operator]
            spare, whole = last - held, last  # type: ignore[operator]
    else:
        spare, whole = None if last is None or held is None else max(last - held, 0), last
    return OutOfMemory(
        hit=hit,
        backend=backend,
        form="1.0" if kind == "cached" else "1.4",
        device=group[0],
        requested_bytes=wanted,
        capacity_bytes=capacity,
        allocated_bytes=held,
        free_bytes=free,
        reserved_bytes=whole,
        unallocated_bytes=spare,
        allowed_bytes=size(*group[7:9]),
    )


def _parse_sentences(hit: Hit, backend: str, wanted: int | None, text: str) -> OutOfMemory:
    """Return the record of a message of torch 2, which has a sentence for each figure."""

    def read(pattern: re.Pattern[str]) -> int | None:
        match = pattern.search(text)
        return size(*match.groups()[-2:]) if match else None

    held, spare, pools = read(_ALLOCATED), read(_UNALLOCATED), read(_POOLS)
    where = _CAPACITY.search(text)
    others = tuple((m[1], b) for m in _OTHER.finditer(text) if (b := size(m[2], m[3])) is not None)
    return OutOfMemory(
        hit=hit,
        backend=backend,
        form="bare" if where is None else "2.3" if pools is not None else "2.1",
        device=where[1] if where and where[1] else None,
        requested_bytes=wanted,
        capacity_bytes=read(_CAPACITY),
        allocated_bytes=held,
        free_bytes=read(_FREE),
        unallocated_bytes=spare,
        private_pool_bytes=pools,
        reserved_bytes=None if held is None or spare is None else held + spare,
        process_bytes=read(_SELF),
        allowed_bytes=read(_ALLOWED),
        others=others[:16],
    )


def _parse_async(log: Log, hit: Hit) -> OutOfMemory:
    """Return the record of a block of cudaMallocAsync, which has one figure on each line."""
    text = log.squeezed[max(0, hit.start - 120) : hit.start + 700]

    def read(name: str) -> int | None:
        match = re.search(name + r":?" + _SIZE, text)
        return size(match[1], match[2]) if match else None

    device = re.search(r"ondevice(\d+)would", text)
    return OutOfMemory(
        hit=hit,
        backend="cuda",
        form="async",
        device=device[1] if device else None,
        requested_bytes=read("requested"),
        capacity_bytes=read("devicelimit"),
        allocated_bytes=read("currentlyallocated"),
        free_bytes=read(r"free\(accordingtocuda\)"),
        allowed_bytes=read(r"pytorchlimit[^:]*"),
    )


# These are messages without numbers. Where a library wraps the error in words of its own, the
# message rules read it.
_BARE = (
    r"(cuda|hip|xpu|mps backend) out of memory",
    r"cuda error: out of memory",
    r"hip error: out of memory",
    r"cuda runtime error \(2\) ?: out of memory",
    r"allocation on device",
    r"(?<!lang\.)outofmemoryerror",
    r"cuda_error_out_of_memory",
    r"cuda error 2: out of memory",
    r"out of memory at .{0,120}?thc",
    r"error=2[^a-z0-9]{0,4}out of memory",
    r"ur_result_error_out_of_device_memory",
    r"pt_devmem allocation failed",
    r"hiperroroutofmemory",
)


def _find_bare(log: Log) -> list[OutOfMemory]:
    """Return the first refusal that is printed without figures."""
    found = []
    for pattern in _BARE:
        hit = log.find(pattern)
        if hit:
            text = hit[0] or ""
            backend = next((name for name in ("hip", "xpu", "mps") if name in text), "cuda")
            backend = {
                "ur_result_error_out_of_device_memory": "xpu",
                "pt_devmemallocationfailed": "hpu",
            }.get(text, backend)
            form = "async" if "allocation" in text and "devmem" not in text else "bare"
            found.append(OutOfMemory(hit=hit, backend=backend, form=form))
    return found[:1]


# The word must stand alone and in capital letters, because "room" and "zoom" contain it, too. The
# kernel's OOM killer concerns the host's memory, and advice on how to avoid an OOM is no error.
_WORD = re.compile(
    r"(?<![\w-])(?<!\bno )(?<!\bif )(?<!without )(?<!against )(?<!avoid )(?<!avoids )"
    r"(?<!prevent )(?<!prevents )OOM(?:ed|s)?(?![\w-])(?! (?:score|kill|reaper|handler|count))"
    r"(?! ?[:=] ?(?:0|no|false))"
)

_WARNS = re.compile(r"\b(?:warn\w*|error|exception|caught|skip\w*|hit|got|ran)\b", re.I)


def find_word(log: Log) -> list[OutOfMemory]:
    """Return the first place where a log without an out-of-memory message still says OOM.

    A program or a person says so in their own words. Nothing more is known than that memory ran
    out, so the causes can only be priors. Where the training goes on behind it, the word is one of
    a setting or a count, unless its line warns.
    """
    hit = log.line_with(_WORD) if "oom" in log.squeezed else None
    if hit is not None and _WARNS.search(log.lines[hit.line][1]) is None:
        behind = figures("\n".join(text for _, text in log.lines[hit.line + 1 :]))
        if behind.step is not None or behind.loss is not None:
            return []
    return [OutOfMemory(hit=hit, backend="cuda", form="word")] if hit else []
