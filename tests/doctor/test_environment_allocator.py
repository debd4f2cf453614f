"""The allocator's configuration is judged.

Each setting is one that torch would refuse, one that it ignores, or all right.
"""

from __future__ import annotations

import pytest

from gpuscope.doctor import environment_allocator as allocator
from gpuscope.doctor.environment_facts import Build, Facts
from tests.fakes.cases import each


def judge(version="2.13.0+cu130", cuda="13.0", hip="", **environment):
    build = Build(version=version, prefix="/env", cuda=cuda, hip=hip) if version else None
    return list(allocator.judge(Facts(build=build, environment=environment)))


@pytest.mark.parametrize(
    "text",
    [
        "expandable_segments:True",
        "max_split_size_mb:128",
        " max_split_size_mb : 256 , garbage_collection_threshold : 0.6 ,",
        "garbage_collection_threshold:0.8,max_split_size_mb:20",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],expandable_segments:False",
        "backend:cudaMallocAsync",
        "backend:native,pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
        "per_process_memory_fraction:0.5,large_segment_size_mb:64",
    ],
)
def test_what_torch_takes(text):
    assert allocator.check(text) == []
    assert judge(PYTORCH_CUDA_ALLOC_CONF=text) == []


@each(
    ("text", "setting", "fixed"),
    [
        ("expandable_segments:true", "expandable_segments:true", "expandable_segments:True"),
        ("expandable_segment:True", "expandable_segment:True", "expandable_segments:True"),
        ("expandable_segment:true", "expandable_segment:true", "expandable_segments:True"),
        ("max_split_size_mb=96", "max_split_size_mb=96", "max_split_size_mb:96"),
        (
            "max_split_size:96,backend:native",
            "max_split_size:96",
            "max_split_size_mb:96,backend:native",
        ),
        ("max_split_size_mb:8", "max_split_size_mb:8", None),
        ("max_split_size_mb:1g", "max_split_size_mb:1g", None),
        ("max_split_size_mb:", "max_split_size_mb:", None),
        ("max_split_size_mb", "max_split_size_mb", None),
        ("garbage_collection_threshold:1.2", "garbage_collection_threshold:1.2", None),
        ("garbage_collection_threshold:0", "garbage_collection_threshold:0", None),
        ("roundup_power2_divisions:3", "roundup_power2_divisions:3", None),
        ("roundup_power2_divisions:[256:1,500:2]", "roundup_power2_divisions:[256:1,500:2]", None),
        ("roundup_power2_divisions:[256:1", "roundup_power2_divisions:[256:1", None),
        ("backend:cudamallocasync", "backend:cudamallocasync", None),
        ("pinned_num_register_threads:6", "pinned_num_register_threads:6", None),
        ("no_such_thing:1", "no_such_thing:1", None),
    ],
)
def test_what_torch_refuses(text, setting, fixed):
    (found,) = judge(PYTORCH_CUDA_ALLOC_CONF=text)
    assert (found.pitfall, found.severity, found.confidence) == (
        "allocator-config",
        "problem",
        "definite",
    )
    assert setting in found.title
    assert found.fixes
    if fixed is not None:
        assert found.fixes[0].environment == f"PYTORCH_CUDA_ALLOC_CONF={fixed}"
        assert allocator.check(fixed) == []  # the fix is what torch takes
    for fix in found.fixes:
        assert fix.environment or fix.command == "unset PYTORCH_CUDA_ALLOC_CONF"
        assert allocator.check(fix.environment.partition("=")[2]) == []


def test_a_wrong_part_hides_no_other():
    found = judge(PYTORCH_ALLOC_CONF="nonsense,max_split_size_mb:4,expandable_segments:1")
    assert {one.where for one in found if one.severity == "problem"} == {
        "PYTORCH_ALLOC_CONF nonsense",
        "PYTORCH_ALLOC_CONF max_split_size_mb:4",
        "PYTORCH_ALLOC_CONF expandable_segments:1",
    }


def test_without_cuda_a_refused_option_is_a_warning():
    (found,) = judge(version="2.13.0+cpu", cuda="", PYTORCH_ALLOC_CONF="max_split_size_mb:4")
    assert found.severity == "warning"


@pytest.mark.parametrize(
    ("version", "hip", "name", "reads"),
    [
        ("2.8.0+cu128", "", "PYTORCH_ALLOC_CONF", False),
        ("2.8.0+cu128", "", "PYTORCH_CUDA_ALLOC_CONF", True),
        ("2.8.0+cu128", "", "PYTORCH_HIP_ALLOC_CONF", False),
        ("2.8.0+rocm6.3", "6.3", "PYTORCH_HIP_ALLOC_CONF", True),
        ("2.9.0+cu128", "", "PYTORCH_ALLOC_CONF", True),
        ("2.13.0+cu130", "", "PYTORCH_CUDA_ALLOC_CONF", True),
        ("", "", "PYTORCH_ALLOC_CONF", True),
    ],
)
def test_a_name_that_this_torch_does_not_read(version, hip, name, reads):
    found = judge(
        version=version, cuda="" if hip else "12.8", hip=hip, **{name: "expandable_segments:True"}
    )
    if reads:
        assert found == []
    else:
        (one,) = found
        assert (one.severity, one.where) == ("warning", name)
        assert one.fixes[0].environment == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def test_what_does_nothing():
    (backend,) = judge(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync,max_split_size_mb:64")
    assert backend.severity == "warning"
    assert [fix.environment.partition("=")[2] for fix in backend.fixes] == [
        "max_split_size_mb:64",
        "backend:cudaMallocAsync",
    ]
    (split,) = judge(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True,max_split_size_mb:64")
    assert split.severity == "info"
    (twice,) = judge(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64,max_split_size_mb:512")
    assert "512" in twice.title
    assert twice.fixes[0].environment.endswith("=max_split_size_mb:512")


def test_two_names():
    same = {
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:64",
        "PYTORCH_CUDA_ALLOC_CONF": " max_split_size_mb:64,",
    }
    assert judge(**same) == []
    (found,) = judge(
        PYTORCH_ALLOC_CONF="max_split_size_mb:64", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128"
    )
    assert found.severity == "warning"
    assert "only one of them counts" in found.title


@pytest.mark.parametrize(
    "text", ["", " ", ",", "[", "]:[", ":" * 5000, "a:b" * 5000, "\x1b]0;x\x07:1", "9" * 400]
)
def test_hostile_text_is_judged_and_never_fails(text):
    for found in judge(PYTORCH_CUDA_ALLOC_CONF=text):
        assert len(found.title) < 400
        assert all(len(one.text) < 600 for one in found.evidence)


def test_torch_agrees():
    """Torch agrees with the verdicts, where it is installed.

    They are those on options that every build of it checks.
    """
    torch = pytest.importorskip("torch")
    settings = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if settings is None:
        pytest.skip("this torch has no settings call that works without CUDA")
    cases = (
        "max_split_size_mb:19", "max_split_size_mb:21", "expandable_segments:yes",
        "expandable_segments:False", "garbage_collection_threshold:1.0",
        "garbage_collection_threshold:0.99", "roundup_power2_divisions:6",
        "roundup_power2_divisions:[64:2,>:4]", "roundup_power2_divisions:[96:2]",
        "large_segment_size_mb:10", "max_split_size_mb", "max_split_size_mb=40",
        "max_split_size_mb:30,large_segment_size_mb:64",
        "large_segment_size_mb:12,max_split_size_mb:15",
        "max_non_split_rounding_mb:20,large_segment_size_mb:64",
        "large_segment_size_mb:64,large_segment_size_mb:20,max_split_size_mb:30",
        "large_segment_size_mb:64",
    )  # fmt: skip
    try:
        for text in cases:
            try:
                settings(text)
                refused = False
            except Exception:
                refused = True
            assert bool(allocator.check(text)) == refused, text
    finally:
        settings("")
