"""The dead jobs are complete, small and free of this machine."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from bench.dead_jobs import large
from bench.dead_jobs.score import DATA, Answer, causes, jobs, right_culprit, score

SETS = ("dev", "held_out", "other_trainers", "nccl")
MOST_OF_A_JOB, MOST_OF_ALL = 60_000, 2_000_000
PATHS = re.compile(rb"(?<![\w.])/(?:home|root|work|Users|tmp)/[\w.-]+")


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_each_job_of_an_index_left_something_small_and_nothing_else_is_there():
    for half in SETS:
        left = {path.name for path in (DATA / half).iterdir()}
        index = jobs(half)
        if half == "nccl":  # it needs cards, and not all of it has been run
            assert left <= {job["name"] for job in index}
            index = [job for job in index if job["name"] in left]
        for job in index:
            size = sum(path.stat().st_size for path in files(DATA / half / job["name"]))
            assert 0 < size <= MOST_OF_A_JOB, job["name"]
            assert job["cause"] in causes(), job["name"]
            assert set(job["culprit"]) <= set(range(job["ranks"])), job["name"]
            assert job["what"].endswith("."), job["name"]
        assert {job["name"] for job in index} == left
    assert sum(path.stat().st_size for path in files(DATA)) <= MOST_OF_ALL


@pytest.mark.slow
def test_the_data_shows_no_path_of_a_users_machine():
    for path in files(DATA):
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        assert PATHS.findall(data) == [], path


def test_the_score_counts_culprits_causes_and_what_was_sure_and_wrong():
    index = {job["name"]: job for job in jobs("dev")}
    perfect = score(
        "dev", lambda path: Answer(index[path.name]["culprit"], index[path.name]["cause"], True)
    )
    assert (perfect.culprit, perfect.cause, perfect.wrong_definite) == (1.0, 1.0, [])
    unsure = score("dev", lambda _: Answer([0], "exception", False))
    assert 0 < unsure.culprit < 0.5
    assert 0 < unsure.cause < 0.5
    assert unsure.wrong_definite == []
    sure = score("dev", lambda _: Answer([0], "exception", True))
    assert 0 < len(sure.wrong_definite) <= len(index)
    nobody = score("dev", lambda path: Answer([], index[path.name]["cause"], True))
    assert nobody.culprit < 0.5
    assert nobody.wrong_definite == []  # incomplete, and not wrong
    assert right_culprit({"culprit": [], "ranks": 4}, [3, 2, 1, 0])
    assert not right_culprit({"culprit": [], "ranks": 4}, [3])
    assert not right_culprit({"culprit": [1], "ranks": 4}, [])


def test_the_large_job_is_the_same_each_time_and_only_one_rank_of_it_raised(tmp_path):
    first, second = (large.write(tmp_path / name, ranks=14, megabytes=0.05) for name in "ab")
    logs = sorted(path.relative_to(first) for path in files(first))
    assert len(logs) == 14
    texts = [(first / log).read_text() for log in logs]
    assert texts == [(second / log).read_text() for log in logs]
    assert all(45_000 < len(text) < 55_000 for text in texts)
    assert [text.count("KeyError") for text in texts] == [0] * 13 + [1]
    assert [text.count("Watchdog caught") for text in texts] == [1] * 13 + [0]
