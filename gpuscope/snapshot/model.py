"""Define the child's answers about a snapshot: bounded dataclasses in bytes and counts.

The allocator distinguishes three sizes of a block. *Allocated* is the whole block while a tensor
holds it. *Active* also includes blocks that wait for another stream ("pending"). *Requested* is
what was asked for, before rounding. Torch's trace records requested bytes only, so every curve over
time is in requested bytes; for segments all three are exact.

Only the standard library is needed: the child builds these objects, and the parent decodes them
with msgspec.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..wire.code_owner import is_own

MAX_MESSAGE_BYTES = 16 << 20
"""The longest line between child and parent; a longer one ends the child."""
MAX_ROWS = 200
"""The most stacks in one answer."""
MAX_FRAMES = 96
"""The most frames of one stack in an answer; the outermost are cut."""
MAX_SEGMENTS = 512
"""The most segments with a map of their own; the largest are kept, the others summed."""
MAX_BUCKETS = 1000
"""The most buckets of a timeline.

Each bucket keeps its lowest and its highest value, so that no peak is lost.
"""
MAX_MARKS = 200
FULL_CELL = 1000
"""The shares of a cell are in thousandths of its bytes."""
MOMENTS = "peak, oom, start, end, 50%, 12.5s (since the first entry) or an entry's number"

Scalar = str | int | float | bool | None


@dataclass
class Note:
    """A sentence about something missing or unusual.

    ``code`` is truncated, memory, no_frames, no_trace, history_off, before, level, times, left_out,
    unknown_action, unknown_state, unknown_key, malformed, mismatch, folded, segments_only or
    pinned.
    """

    code: str
    text: str


@dataclass(frozen=True)
class Frame:
    """One call in a stack."""

    file: str
    line: int
    function: str

    @property
    def own(self) -> bool:
        """Whether the file is the user's own."""
        return is_own(self.file)

    @property
    def place(self) -> str:
        """The file without its folders, and the line: ``train.py:12``."""
        return f"{self.file.rsplit('/', 1)[-1] or '?'}:{self.line}"


@dataclass
class StackRow:
    """The live blocks that one stack allocated.

    ``frames`` are innermost first, and empty where torch recorded none. ``headline`` is the index
    of the innermost frame in the user's own code (0 where there is none). ``number`` is what a
    question calls the stack, −1 where there is none.
    """

    bytes: int
    count: int
    frames: list[Frame] = field(default_factory=list)
    headline: int = 0
    cut_frames: int = 0  # number of outermost frames that are left out
    number: int = -1


@dataclass
class Stacks:
    """Rows sorted by bytes, and the sums of what they leave out.

    Blocks without a recorded stack are summed in ``unknown``.
    """

    rows: list[StackRow] = field(default_factory=list)
    other_bytes: int = 0
    other_count: int = 0
    other_stacks: int = 0
    unknown_bytes: int = 0
    unknown_count: int = 0


@dataclass
class Bucket:
    """Blocks of at least ``low_bytes`` and less than twice that."""

    low_bytes: int
    count: int
    bytes: int


@dataclass
class Totals:
    """Sums over the blocks of a device, in bytes.

    ``inactive_bytes`` = reserved − active = releasable + inactive split + page bound. *Releasable*
    are whole free segments and whole free pages of expandable ones, which ``empty_cache()``
    releases (in a private pool only once its graph is gone). *Inactive split* are free blocks in
    partly used segments. *Page bound* is the same inside partly used pages of expandable segments,
    which torch's own ``inactive_split_bytes`` leaves out.
    """

    reserved_bytes: int = 0
    allocated_bytes: int = 0
    pending_bytes: int = 0
    active_bytes: int = 0
    requested_bytes: int = 0  # of active blocks
    # Of allocated blocks only: the value at the end of the trace's curve.
    allocated_requested_bytes: int = 0
    inactive_bytes: int = 0
    releasable_bytes: int = 0
    inactive_split_bytes: int = 0
    page_bound_bytes: int = 0
    segments: int = 0
    allocated_blocks: int = 0
    pending_blocks: int = 0
    inactive_blocks: int = 0


@dataclass
class Pool:
    """A memory pool.

    ``name`` is "default", or a private pool's id such as "0, 3" (CUDA graphs, user pools).
    """

    name: str
    private: bool
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    inactive_bytes: int = 0
    largest_free_bytes: int = 0
    segments: int = 0


@dataclass
class Fragmentation:
    """How the free bytes are distributed. Private pools are left out: others cannot use them.

    ``percent`` = 100 × (1 − largest free run ÷ free bytes), None where nothing is free. A run is
    contiguous within one segment and belongs to one stream.
    """

    free_bytes: int = 0
    free_blocks: int = 0
    largest_free_bytes: int = 0
    largest_free_address: int | None = None
    largest_free_stream: int = 0
    percent: float | None = None
    private_free_bytes: int = 0
    by_size: list[Bucket] = field(default_factory=list)


@dataclass
class Segment:
    """One segment and its map, which has cells of equal size over its address range.

    Each cell has the shares that are live and pending, in thousandths (``FULL_CELL``); the rest is
    free. A share above 0 is never rounded to 0.
    """

    address: int
    bytes: int
    stream: int
    pool: str
    private: bool
    large: bool
    expandable: bool
    allocated_bytes: int
    pending_bytes: int
    largest_free_bytes: int
    blocks: int
    live: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)


@dataclass
class Series:
    """Lowest and highest value in each bucket of the timeline, in bytes."""

    low: list[int] = field(default_factory=list)
    high: list[int] = field(default_factory=list)


@dataclass
class Buckets:
    """The trace in at most ``MAX_BUCKETS`` buckets of equally many entries.

    ``index[i]`` is the last entry of bucket i, and ``time_us[i]`` its time (µs since the epoch;
    empty where torch recorded none). Allocated and active are in requested bytes. Reserved is in
    bytes, and empty where it cannot be reconstructed.
    """

    index: list[int] = field(default_factory=list)
    time_us: list[int] = field(default_factory=list)
    allocated: Series = field(default_factory=Series)
    active: Series = field(default_factory=Series)
    reserved: Series = field(default_factory=Series)


@dataclass
class TimelineEvent:
    """An event to show on the timeline.

    ``action`` is torch's name for it: oom, snapshot, user_defined, annotate or one that is unknown
    here. For an oom, ``size_bytes`` is the requested size and ``free_bytes`` what the device had
    free.
    """

    index: int
    time_us: int | None
    action: str
    size_bytes: int | None = None
    free_bytes: int | None = None
    text: str = ""


@dataclass
class At:
    """The state after entry ``index`` of a trace (−1: before the first).

    A value is None where the level of the trace is not known.
    """

    device: int
    index: int
    time_us: int | None
    allocated_bytes: int | None  # requested bytes
    active_bytes: int | None
    reserved_bytes: int | None
    count: int
    stacks: Stacks = field(default_factory=Stacks)


@dataclass
class Course:
    """The live bytes of one stack in each bucket of the timeline, in requested bytes.

    ``allocated`` and ``freed`` are how many of its blocks the trace allocates and frees.
    """

    device: int
    bytes: Series
    allocated: int
    freed: int


@dataclass
class Between:
    """What was allocated after entry ``first`` and is live after ``last``; requested bytes."""

    device: int
    first: int
    last: int
    seconds: float | None
    bytes: int
    count: int
    freed_bytes: int  # bytes that were live after ``first`` and are not after ``last``
    freed_count: int
    stacks: Stacks = field(default_factory=Stacks)


@dataclass
class DeviceTrace:
    """The history of one device's allocations.

    ``before_bytes`` are the bytes live at the first entry, which were allocated before it. Their
    stack is unknown unless the block is still live. It is None where the level is not known,
    because the trace is cut short or does not match its segments.
    """

    entries: int
    first_us: int | None = None
    last_us: int | None = None
    actions: dict[str, int] = field(default_factory=dict)
    timeline: Buckets = field(default_factory=Buckets)
    marks: list[TimelineEvent] = field(default_factory=list)
    dropped_marks: int = 0
    before_bytes: int | None = None
    peak: At | None = None


@dataclass
class SnapshotDevice:
    """The memory of one device in a snapshot.

    ``trace`` is None where no history was recorded; a note says so. ``complete`` is False where the
    file ended inside this device's segments.
    """

    device: int
    totals: Totals
    pools: list[Pool]
    fragmentation: Fragmentation
    segments: list[Segment]
    folded_segments: int
    folded_bytes: int
    sizes: list[Bucket]  # live blocks, by size
    stacks: Stacks  # live blocks, by stack, in allocated bytes
    trace: DeviceTrace | None = None
    notes: list[Note] = field(default_factory=list)
    complete: bool = True


@dataclass
class Summary:
    """Everything about one file.

    ``record`` is what the probe added to torch's keys in the record of an out-of-memory error, by
    dotted key. ``stack`` is where the program was then, innermost frame first (``headline`` as in
    :class:`StackRow`). ``settings`` are those of the allocator. ``seconds`` is the time taken for
    reading and analysing.
    """

    path: str
    file_bytes: int
    read_bytes: int  # bytes of the pickle after decompression
    compressed: bool
    protocol: int | None
    complete: bool
    devices: list[SnapshotDevice]
    taken_us: int | None = None  # time of the newest trace entry
    settings: dict[str, str] = field(default_factory=dict)
    record: dict[str, Scalar] = field(default_factory=dict)
    stack: list[Frame] = field(default_factory=list)
    headline: int = 0
    notes: list[Note] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    peak_rss_bytes: int | None = None  # of the child


@dataclass
class DiffRow:
    """One stack in both snapshots, in allocated bytes.

    Where stacks were not recorded it is one block size.
    """

    before_bytes: int
    before_count: int
    after_bytes: int
    after_count: int
    frames: list[Frame] = field(default_factory=list)
    headline: int = 0
    cut_frames: int = 0
    block_bytes: int | None = None  # set where rows are by size


@dataclass
class DeviceDiff:
    """What changed on one device from one snapshot to another, by "stack" or by "size".

    *Survivors* have the same address, size and stack in both. *New* blocks are live only in the
    later one, *gone* blocks only in the earlier one. Rows are sorted by the size of their change,
    growth first; ``other_*`` sums the rest.
    """

    device: int
    by: str
    before: Totals
    after: Totals
    rows: list[DiffRow]
    other_rows: int
    other_bytes: int  # after − before
    survivor_bytes: int
    survivor_count: int
    new_bytes: int
    new_count: int
    gone_bytes: int
    gone_count: int


@dataclass
class Diff:
    before: str
    after: str
    devices: list[DeviceDiff]
    notes: list[Note] = field(default_factory=list)


@dataclass
class ReadFailure:
    """Why a file was not read.

    ``code`` is missing, unreadable, foreign, hostile, truncated, too_big, unusable or usage.
    """

    code: str
    text: str
