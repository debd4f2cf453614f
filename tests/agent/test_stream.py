"""What one stream remembers, so that only changes travel."""

from __future__ import annotations

from gpuscope.agent.stream import StreamMemory
from gpuscope.wire.codec import decode, encode
from gpuscope.wire.frames import AllocDef, GpuDef, HostDef, ProcDef, TrainerDef, Unknown

LOST = Unknown("lost", "the GPU is lost")


def gpu(stream, uuid="GPU-1", readings=None, reasons=None):
    number = stream.define("gpu", ("gpu", uuid), GpuDef(uuid, 0), reasons or {})
    if readings is not None:
        stream.row("g", ("gpu", uuid), readings)
    return number


def test_a_definition_travels_once_and_again_when_it_changes():
    stream = StreamMemory()
    number = gpu(stream)
    assert [d.id for d in stream.tick(1, {})[0]] == [number]
    gpu(stream)
    assert stream.tick(2, {})[0] == []
    stream.define("gpu", ("gpu", "GPU-1"), GpuDef("GPU-1", 0, name="H200"), {})
    assert [(d.id, d.gpu.name) for d in stream.tick(3, {})[0]] == [(number, "H200")]


def test_reasons_travel_on_change_and_are_lifted():
    stream = StreamMemory()
    number = gpu(stream, readings={"power_watts": LOST}, reasons={"name": LOST})
    why = stream.tick(1, {})[1].why
    assert [number, "power_watts", "lost", "the GPU is lost"] in why
    assert [number, "name", "lost", "the GPU is lost"] in why
    gpu(stream, readings={"power_watts": LOST}, reasons={"name": LOST})
    assert stream.tick(2, {})[1].why == []
    gpu(stream, readings={"power_watts": 5.0}, reasons={"name": LOST})
    sample = stream.tick(3, {})[1]
    assert [number, "power_watts", "", ""] in sample.why
    assert sample.g[0][0] == number


def test_a_tick_without_a_row_keeps_the_reasons():
    stream = StreamMemory()
    gpu(stream, readings={"power_watts": LOST})
    stream.tick(1, {})
    gpu(stream)
    assert stream.tick(2, {})[1].why == []


def test_what_is_not_there_any_more_is_gone_and_its_id_is_never_used_again():
    stream = StreamMemory()
    first = gpu(stream)
    stream.tick(1, {})
    _, _, gone = stream.tick(2, {("gpu", "GPU-1"): "taken out"})
    assert [(e.id, e.e, e.text) for e in gone] == [(first, "gone", "taken out")]
    assert stream.tick(3, {})[2] == []
    assert gpu(stream) != first


def test_a_key_frame_repeats_everything_also_reasons_and_what_was_lifted():
    stream = StreamMemory()
    stream.define("host", "host", HostDef(cpu_count=2), {})
    number = gpu(stream, readings={"power_watts": LOST, "used_bytes": LOST})
    stream.tick(1, {})
    key, definitions = stream.key_frame(2, 100.0)
    assert key.n == len(definitions) == 2
    assert definitions[0].id == 0
    stream.define("host", "host", HostDef(cpu_count=2), {})
    gpu(stream, readings={"power_watts": LOST, "used_bytes": 5})
    why = stream.tick(3, {})[1].why
    assert [number, "power_watts", "lost", "the GPU is lost"] in why
    assert [number, "used_bytes", "", ""] in why


def test_a_host_where_nothing_can_be_read_stays_below_the_line_limit():
    stream = StreamMemory()
    reason = Unknown("no_permission", "x" * 5000)
    told = 0
    for round_ in range(6):
        for pid in range(2000):
            key = ("proc", pid)
            stream.define(
                "proc", key, ProcDef(pid), dict.fromkeys(("user", "command", "start"), reason)
            )
            stream.row("p", key, {"cpu_percent": reason, "rss_bytes": reason})
        _, sample, _ = stream.tick(round_, {})
        encode(sample)  # raises above the limit
        told += len(sample.why)
    assert told == 2000 * 5  # spread over samples, and each once


def test_when_a_row_was_read_travels_beside_allocators_only():
    stream = StreamMemory()
    number = gpu(stream)
    stream.row("g", ("gpu", "GPU-1"), {"used_bytes": 5}, 9.75)
    assert stream.tick(10_000_000_000, {})[1].ago == [], "nothing to compare it with"
    gpu(stream)
    stream.row("g", ("gpu", "GPU-1"), {"used_bytes": 5}, 9.75)
    trainer = stream.define("trainer", ("trainer", 1), TrainerDef(7), {})
    allocator = stream.define("alloc", ("alloc", 1, 2), AllocDef(trainer, 0), {})
    stream.row("a", ("alloc", 1, 2), {"reserved_bytes": 4}, 9.5)
    sample = stream.tick(10_000_000_000, {})[1]
    assert sample.ago == [[number, 250], [allocator, 500]]
    assert decode(encode(sample)) == sample


def test_a_reading_of_another_clock_has_no_age():
    stream = StreamMemory()
    trainer = stream.define("trainer", ("trainer", 1), TrainerDef(7), {})
    for at, key in ((50.0, "late"), (1.0, "old"), (0.0, "untold")):
        stream.define("alloc", key, AllocDef(trainer, 0), {})
        stream.row("a", key, {"reserved_bytes": 4}, at)
    assert stream.tick(int(40e9) + int(61e9), {})[1].ago[0][1] == 51_000
    stream.define("trainer", ("trainer", 1), TrainerDef(7), {})
    stream.define("alloc", "late", AllocDef(trainer, 0), {})
    stream.row("a", "late", {"reserved_bytes": 4}, 50.0)
    assert stream.tick(int(40e9), {})[1].ago == [], "read in the future"
