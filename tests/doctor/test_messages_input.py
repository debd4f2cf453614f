"""What logs can be: empty, binary, huge, of another language, healthy, hostile."""

from __future__ import annotations

import io
import time

import pytest

from gpuscope.doctor.messages import examine, reading

from . import message_templates as say
from .message_templates import GIB, MIB

OOM = say.oom("2.5", asked=98 * MIB, total=22 * GIB, held=20 * GIB, free=37 * MIB, spare=300 * MIB)

HEALTHY = [
    "\n".join(
        f"epoch {i // 100} step {i} loss {1 / (i + 1):.4f} mem 77.60 GiB / 80.00 GiB (97%)"
        for i in range(300)
    ),
    "epoch 0: 12%|#2        | 118/977 [00:31<03:44,  3.83it/s, loss=2.31]\n"
    "epoch 0: 13%|#3   | 127/977",
    "NCCL INFO NET/IB : No device found.\nNCCL INFO Channel 00/02 : 0 1\n"
    "NCCL INFO P2P is disabled between connected GPUs 1 and 0.\n"
    "NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
    "NCCL INFO comm 0x5 rank 0 nranks 2 - Init COMPLETE",
    "INFO errors: 0, failed: 0, killed: 0\nAll tests passed\nvalidation accuracy 0.93\n"
    "Saved checkpoint to out/last.pt",
    "torch 2.13.0+cpu, 2 cores\ntorch.cuda.is_available() False\nstep 1 loss 2.3",
    "[W socket.cpp:601] retrying\nUsing 8 workers, pin_memory=True, cudnn.benchmark=True\n"
    "training finished in 312 s",
]
FOREIGN = [
    'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n'
    "\tat com.acme.Main.main(Main.java:7)",
    "thread 'main' panicked at src/main.rs:4:9:\nindex out of bounds: the len is 3 but the index "
    "is 5",
    "panic: runtime error: index out of range [5] with length 3\n\ngoroutine 1 [running]:",
    "Error: listen EADDRINUSE: address already in use :::3000\n"
    "    at Server.setupListenHandle (node:net:1463:16)",
    "java.io.FileNotFoundException: /etc/hosts (Too many open files)",
    "コンパイルエラー: ファイルが見つかりません\nОшибка: файл не найден",
]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n  \n",
        b"\0\1\2" * 9000,
        bytes(range(256)) * 40,
        b"\x7fELF\2\1\1\0",
        "ab".encode("utf-16"),
    ],
)
def test_nothing_to_read(data):
    assert examine(io.BytesIO(data)) == ((), ())


@pytest.mark.parametrize("text", HEALTHY, ids=range(len(HEALTHY)))
def test_a_healthy_log_is_left_alone(text):
    assert [one for one in examine(text.split("\n"))[0] if one.severity != "info"] == []


@pytest.mark.parametrize("text", FOREIGN, ids=range(len(FOREIGN)))
def test_other_languages(text):
    assert examine(text.split("\n"))[0] == ()


def test_all_ways_to_hand_it_in(tmp_path):
    path = tmp_path / "run.log"
    path.write_text("before\n" + OOM + "\nafter\n")
    wanted = examine(path)
    assert wanted[0]
    assert wanted[0][0].evidence[0].source == "log:2"
    with open(path, "rb") as stream:
        assert examine(stream) == wanted
    with open(path) as stream:
        assert examine(stream) == wanted
    assert examine(path.read_text().splitlines()) == wanted
    assert examine(str(path)) == wanted
    with pytest.raises(OSError):
        examine(tmp_path / "missing.log")


def test_windows_line_ends_and_broken_utf8():
    assert (
        examine(io.BytesIO(b"caf\xe9\r\n" + OOM.encode() + b"\r\n"))[0][0].pitfall
        == "reduce-batch-size"
    )


@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_found_in_a_large_log(place):
    filler = [
        f"2026-01-02 03:04:05 INFO step {i} loss {i % 7}.125 lr 0.0003" for i in range(60_000)
    ]
    at = {"start": 3, "middle": 31_000, "end": len(filler)}[place]
    lines = [*filler[:at], OOM, *filler[at:]]
    excerpt = reading.read(lines)
    assert excerpt.cut
    assert len(excerpt.lines) < 1500
    one = examine(lines)[0][0]
    assert one.pitfall == "reduce-batch-size"
    assert one.evidence[0].source == f"log:{at + 1}"


def test_line_numbers_of_an_excerpt_are_true():
    lines = [f"line {i} " + ("an error" if i % 9973 == 0 else "x" * 30) for i in range(1, 80_001)]
    for number, text in reading.read(lines).lines:
        if text:
            assert text.startswith(f"line {number} ")


def test_a_log_that_repeats_its_error_stays_bounded():
    lines = [f"{i} UserWarning: an error failed" for i in range(100_000)]
    excerpt = reading.read([*lines, OOM])
    assert len(excerpt.lines) < (reading.FIRST_WINDOWS + reading.LAST_WINDOWS) * 80 + 400
    assert examine([*lines, OOM])[0][0].pitfall == "reduce-batch-size"


def test_endless_line():
    data = b"x" * 9_000_000 + b"\n" + OOM.encode() + b"\n"
    assert examine(io.BytesIO(data))[0][0].pitfall == "reduce-batch-size"


def test_hostile_text():
    samples = (
        "CUDA out of memory. Tried to allocate " + "9" * 5000 + " GiB",
        "Tried to allocate",
        "(" * 50_000,
        "[rank" * 10_000,
        "\x1b[" * 5000,
        "&lt;" * 20_000,
        'File "' + "a" * 90_000,
        "memory in use. " * 4000,
        "1: " * 5000,
        "dataloader " * 20_000,
        "nccl " * 100_000,
        "torch too many open files " * 19_000,
        "defaultcpuallocator " * 25_000,
        "tried to allocate " * 25_000,
        "error out of memory " * 25_000,
        "memory grow " * 9000,
    )

    def work(text: str) -> float:
        began = time.process_time()
        examine([text], symptom=text)
        return time.process_time() - began

    # eight times the length is 64 times the work where it grows with the square
    for text in samples:
        short, long = work(text[: len(text) // 8]), work(text)
        assert long < 24 * short + 0.05, (text[:40], short, long)
