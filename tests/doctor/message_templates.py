"""torch's messages, rendered from their templates with numbers of the tests' own."""

from __future__ import annotations

import textwrap

GIB = 1 << 30
MIB = 1 << 20


def size(value: int) -> str:
    """As the allocator prints a size."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if value >= unit:
            return f"{value / unit:.2f} {name}"
    return f"{value} bytes"


def oom(
    form: str,
    *,
    asked: int,
    total: int,
    held: int,
    free: int,
    spare: int,
    backend: str = "CUDA",
    own: int | None = None,
    others: tuple[tuple[int, int], ...] = (),
    allowed: int | None = None,
    pools: int | None = None,
) -> str:
    """Return the message of a device out of memory in the words of torch ``form``.

    Forms are 1.0, 1.4, 1.10, 2.1, 2.2, 2.3, 2.5, 2.10, 2.12.
    """
    head = f"{backend} out of memory. Tried to allocate {size(asked)}"
    limit = f"{size(allowed)} allowed; " if allowed is not None else ""
    if form in ("1.0", "1.4", "1.10"):
        last = (
            f"{size(spare)} cached"
            if form == "1.0"
            else f"{size(held + spare)} reserved in total by PyTorch"
        )
        hint = ""
        if form == "1.10":
            hint = (
                " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
                "fragmentation.  See documentation for Memory Management and "
                "PYTORCH_CUDA_ALLOC_CONF"
            )
        return (
            f"RuntimeError: {head} (GPU 2; {size(total)} total capacity; {size(held)} already "
            f"allocated; {size(free)} free; {limit}{last}){hint}"
        )
    kind = (
        "torch.cuda.OutOfMemoryError" if form in ("2.1", "2.2", "2.3") else "torch.OutOfMemoryError"
    )
    capacity = "capacty" if form == "2.1" else "capacity"
    named = "".join(f"Process {pid} has {size(used)} memory in use. " for pid, used in others)
    if own is not None:
        named += f"Including non-PyTorch memory, this process has {size(own)} memory in use. "
    pooled = (
        f"with {size(pools)} allocated in private pools (e.g., CUDA Graphs), "
        if pools is not None
        else ""
    )
    name = {"2.10": "PYTORCH_ALLOC_CONF"}.get(form, "PYTORCH_CUDA_ALLOC_CONF")
    return (
        f"{kind}: {head}. GPU 2 has a total {capacity} of {size(total)} of which "
        f"{size(free)} is free. {named}{limit}Of the allocated memory {size(held)} is allocated by "
        f"PyTorch, {pooled}and {size(spare)} is reserved by PyTorch but unallocated. If reserved "
        f"but unallocated memory is large try setting {name}=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def traceback(*frames: tuple[str, int, str, str]) -> str:
    """Frames of (file, line, function, code)."""
    lines = ["Traceback (most recent call last):"]
    for file, line, function, code in frames:
        lines += [f'  File "{file}", line {line}, in {function}', f"    {code}"]
    return "\n".join(lines) + "\n"


def hard(text: str, width: int) -> str:
    """Cut at ``width`` characters wherever that is, also inside a number."""
    return "\n".join(text[i : i + width] for i in range(0, len(text), width))


def soft(text: str, width: int) -> str:
    """Wrapped between words."""
    return "\n".join(textwrap.wrap(text, width))


def prefixed(text: str, prefix: str) -> str:
    """Every line with a prefix."""
    return "\n".join(prefix + line for line in text.split("\n"))
