"""The environment's rules name what they should, by facts.

They abstain without evidence, and all is quiet where all is well.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpuscope.doctor import environment, environment_facts
from gpuscope.doctor.environment_build import runs_on
from gpuscope.doctor.environment_facts import Build, Device, Facts, Host, Owner, Torch, Xid, version
from tests.fakes.cases import each

GIB = 1 << 30
DEVICE = Device(
    index=0,
    uuid="GPU-0a",
    name="NVIDIA H200",
    pci="00000000:18:00.0",
    capability=(9, 0),
    total_bytes=140 * GIB,
    used_bytes=20 * GIB,
    reserved_bytes=GIB // 2,
    utilization_percent=63.0,
    performance_state=0,
    temperature_celsius=58.0,
    power_watts=431.0,
    power_limit_watts=700.0,
    default_power_watts=700.0,
    ecc_uncorrected=0,
    remap_pending=False,
    remap_failed=False,
    pages_pending=False,
    persistence=True,
    pcie_generation=5,
    pcie_width=16,
    max_pcie_generation=5,
    max_pcie_width=16,
    owners=(Owner(77, 20 * GIB - (90 << 20)),),
    capped=True,
    links=18,
    links_active=18,
    fabric="completed",
    cpus=frozenset(range(32)),
)
HOST = Host(
    kernel="6.8.0",
    cpu_count=64,
    memory_total_bytes=512 * GIB,
    memory_available_bytes=400 * GIB,
    swap_total_bytes=8 * GIB,
    swap_used_bytes=GIB // 4,
    memory_stall_percent=0.0,
    shm_total_bytes=256 * GIB,
    shm_used_bytes=GIB,
    cgroup_limit_bytes=256 * GIB,
    cgroup_used_bytes=60 * GIB,
    oom_kills=0,
    pids_limit=9000,
    pids_used=300,
    open_files=1_048_576,
    open_files_hard=1_048_576,
    locked_bytes=-1,
    processes=-1,
    interfaces=("eth0", "lo"),
    infiniband=("mlx5_0",),
    allowed_cpus=frozenset(range(64)),
    nvidia_pci=("…",),
    nvidia_nodes=("/dev/nvidia0",),
)
NO_GPU = replace(HOST, nvidia_pci=(), nvidia_nodes=())
BUILD = Build(
    version="2.11.0+cu130",
    prefix="/env",
    cuda="13.0",
    hip="",
    architectures=("sm_80", "sm_90", "sm_120"),
)
HEALTHY = Facts(
    devices=(DEVICE, replace(DEVICE, index=1, uuid="GPU-1b", pci="00000000:2A:00.0")),
    driver_version="580.159.03",
    driver_cuda="13.0",
    host=HOST,
    build=BUILD,
    packages={"torch": "2.11.0", "nvidia-ml-py": "13.580.65"},
    own_packages={"nvidia-ml-py": "13.580.65"},
    xids=(),
    paths=(
        environment_facts.Path(
            first=0, second=1, crosses="one socket", sockets=False, no_peer="", nvlink=True
        ),
    ),
    environment={
        "OMP_NUM_THREADS": "8",
        "CUDA_VISIBLE_DEVICES": "1,0",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    },
)


def found(facts):
    return list(environment.examine(facts).findings)


def only(facts, pitfall, severity, where=None):
    """The one finding that is worse than info or asked for."""
    loud = [one for one in found(facts) if one.severity != "info" or one.pitfall == pitfall]
    assert [one.pitfall for one in loud] == [pitfall], loud
    (one,) = loud
    assert one.severity == severity
    assert one.evidence
    assert one.fixes
    assert all(fix.title for fix in one.fixes)
    if where is not None:
        assert one.where == where
    return one


def device(**changes):
    return replace(HEALTHY, devices=(replace(DEVICE, **changes),), environment={})


def host(**changes):
    return replace(HEALTHY, host=replace(HOST, **changes))


def setting(**environment):
    return replace(HEALTHY, environment=environment)


# ── where all is well ─────────────────────────────────────────────────────────────────────────────


@each(
    "facts",
    [
        HEALTHY,
        replace(HEALTHY, devices=()),
        Facts(devices=None, driver_code="not_supported", why={"devices": "no driver"}, host=NO_GPU),
        replace(
            HEALTHY,
            devices=None,
            driver_code="not_supported",
            host=NO_GPU,
            build=replace(BUILD, cuda=""),
        ),
        # idle: the link sleeps
        device(utilization_percent=0.0, performance_state=8, pcie_generation=1, capped=False),
        device(used_bytes=139 * GIB, owners=(Owner(5, 139 * GIB),)),  # full is not broken
        device(
            ecc_uncorrected=None, persistence=None, owners=None, capability=None, pcie_width=None
        ),
        host(open_files=1024, cpu_count=8, open_files_hard=4096),
        host(memory_available_bytes=90 * GIB, swap_used_bytes=6 * GIB),  # old pages on disk
        host(cgroup_limit_bytes=None, oom_kills=None),
        host(locked_bytes=8 << 20, root=True),
        replace(HEALTHY, driver_cuda="13.2", driver_version="590.10"),
        replace(HEALTHY, build=replace(BUILD, cuda="12.8", version="2.7.1+cu128"), environment={}),
        setting(NCCL_SOCKET_IFNAME="eth", OMP_NUM_THREADS="1", CUDA_LAUNCH_BLOCKING="0"),
        setting(CUDA_DEVICE_ORDER="PCI_BUS_ID", OMP_NUM_THREADS="64", NCCL_DEBUG="WARN"),
        setting(CUDA_VISIBLE_DEVICES="GPU-0a"),
        setting(CUDA_VISIBLE_DEVICES="MIG-3f2a"),
        Facts(),
    ],
)
def test_a_healthy_machine_gets_nothing_above_info(facts):
    assert [one for one in found(facts) if one.severity != "info"] == []
    assert environment.examine(facts).problems == ()


def test_nothing_at_all_on_the_healthy_one():
    report = environment.examine(HEALTHY)
    assert report.findings == ()
    assert report.abstained == ()
    assert report.examined[:3] == ("2 GPUs", "driver 580.159.03", "torch 2.11.0+cu130 in /env")


def test_what_the_machine_has_not_is_said_with_the_reason():
    why = {"devices": "no NVIDIA driver here: x", "build": "no torch in /env, /usr"}
    bare = replace(HEALTHY, devices=None, driver_version=None, build=None, why=why)
    assert environment.examine(bare).examined[:2] == (
        "no GPU: no NVIDIA driver here: x",
        "no torch in /env, /usr",
    )
    headless = replace(HEALTHY, devices=(), why={})
    assert environment.examine(headless).examined[:2] == (
        "no GPU: the driver lists none",
        "driver 580.159.03",
    )


# ── driver, CUDA, torch ───────────────────────────────────────────────────────────────────────────


def test_a_cpu_only_build_beside_gpus():
    facts = replace(HEALTHY, build=Build(version="2.11.0+cpu", prefix="/env", cuda="", hip=""))
    one = only(facts, "wrong-torch-build-cpu-only", "problem")
    assert one.confidence == "definite"
    assert one.fixes[0].command.endswith("/cu130")
    older = replace(facts, driver_cuda="12.4", driver_version="550.54.15")
    assert found(older)[0].fixes[0].command.endswith("/cu126")  # what that driver runs
    rocm = replace(facts, build=Build(version="2.11.0+rocm6.4", prefix="/env", cuda="", hip="6.4"))
    assert "ROCm 6.4" in found(rocm)[0].title


def test_a_driver_that_is_too_old():
    facts = replace(HEALTHY, driver_cuda="12.4", driver_version="550.54.15")
    one = only(facts, "driver-cuda-mismatch", "problem")
    assert one.confidence == "definite"
    assert "550.54.15" in one.evidence[0].text
    assert "580" in one.fixes[1].title
    compat = replace(facts, environment={"LD_LIBRARY_PATH": "/usr/local/cuda/compat"})
    assert only(compat, "driver-cuda-mismatch", "problem").confidence == "likely"
    unheard_of = replace(HEALTHY, build=replace(BUILD, cuda="27.1"))
    assert (
        only(unheard_of, "driver-cuda-mismatch", "problem").fixes[1].title == "Or update the driver"
    )


def test_a_newer_minor_version_is_only_told():
    facts = replace(
        HEALTHY, build=replace(BUILD, cuda="12.8"), driver_cuda="12.2", driver_version="535.161"
    )
    assert only(facts, "driver-cuda-mismatch", "info")


def test_without_the_drivers_cuda_version_it_abstains():
    report = environment.examine(
        replace(HEALTHY, driver_cuda=None, why={"cuda_driver_version": "no permission"})
    )
    assert report.findings == ()
    assert any(
        one.pitfall == "driver-cuda-mismatch" and "no permission" in one.missing
        for one in report.abstained
    )


@each(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ("sm_80", "sm_90"), True),
        ((8, 9), ("sm_80", "sm_90"), True),  # code of 8.0 runs on 8.9
        ((8, 0), ("sm_86",), False),
        ((12, 0), ("sm_80", "sm_90"), False),
        ((12, 0), ("sm_80", "compute_90"), True),  # compiled when it is loaded
        ((6, 1), ("sm_75", "compute_75"), False),
        ((9, 0), ("sm_90a",), True),
        ((10, 3), ("sm_100a",), False),
        ((10, 3), ("sm_100f",), True),
        ((10, 3), ("sm_100",), True),
        ((9, 0), (), None),
        ((9, 0), ("gfx942",), None),
    ],
)
def test_which_code_runs_where(capability, architectures, runs):
    assert runs_on(capability, architectures) is runs


@pytest.mark.parametrize(("capability", "index"), [((12, 1), "cu130"), ((7, 0), "cu126")])
def test_a_gpu_that_the_wheel_holds_no_code_for(capability, index):
    facts = replace(
        device(capability=capability), build=replace(BUILD, architectures=("sm_80", "sm_90"))
    )
    one = only(facts, "wrong-torch-build-arch", "problem", where="GPU 0")
    assert f"{capability[0]}.{capability[1]}" in one.title
    assert "sm_80, sm_90" in one.evidence[1].text
    assert one.fixes[0].command.endswith(index)


def test_torchs_own_list_counts_more_than_the_wheels():
    torch = Torch(
        version="2.11.0", cuda="13.0", available=True, architectures=("sm_80",), seconds=2.0
    )
    one = only(replace(HEALTHY, torch=torch, torch_asked=True), "wrong-torch-build-arch", "problem")
    assert one.where == "GPU 0 and 1"


def test_architectures_unknown():
    facts = replace(
        HEALTHY, build=replace(BUILD, architectures=None), why={"architectures": "no such file"}
    )
    report = environment.examine(facts)
    assert report.findings == ()
    assert any(
        one.pitfall == "wrong-torch-build-arch" and "no such file" in one.missing
        for one in report.abstained
    )


def test_what_torch_says_itself():
    torch = Torch(
        version="2.11.0",
        cuda="13.0",
        available=False,
        why_not="RuntimeError: no CUDA-capable device",
        seconds=3.1,
    )
    one = only(replace(HEALTHY, torch=torch, torch_asked=True), "driver-cuda-mismatch", "problem")
    assert "no CUDA-capable device" in one.evidence[0].text
    broken = Torch(
        failure="ImportError: libcudnn.so.9: cannot open shared object file", seconds=0.2
    )
    one = only(replace(HEALTHY, torch=broken, torch_asked=True), "driver-cuda-mismatch", "problem")
    assert "libcudnn" in one.evidence[0].text
    silent = environment.examine(
        replace(HEALTHY, torch_asked=True, why={"torch": "it took longer than 10 s"})
    )
    assert any("longer than 10 s" in text for text in silent.problems)


def test_libraries_that_torch_pins():
    facts = replace(
        HEALTHY, requires=(("nvidia-nccl-cu13", "2.28.9"),), packages={"nvidia-nccl-cu13": "2.27.3"}
    )
    one = only(facts, "driver-cuda-mismatch", "info")
    assert "pip install nvidia-nccl-cu13==2.28.9" in one.fixes[0].command
    assert found(replace(facts, packages={"nvidia-nccl-cu13": "2.28.9"})) == []


@pytest.mark.parametrize(
    ("code", "why", "changes", "pitfall", "severity"),
    [
        (
            "driver_error",
            "driver and library versions differ: reboot",
            {},
            "driver-cuda-mismatch",
            "problem",
        ),
        ("driver_error", "its kernel module is not loaded", {}, "no-gpu-driver", "problem"),
        ("timeout", "nvmlInit_v2 has not returned for 5 s", {}, "no-gpu-driver", "problem"),
        ("not_supported", "libnvidia-ml.so.1 was not found", {}, "no-gpu-driver", "warning"),
        (
            "not_supported",
            "libnvidia-ml.so.1 is missing",
            {"container": "docker"},
            "no-gpu-driver",
            "warning",
        ),
        (
            "driver_error",
            "the module is not loaded",
            {"nvidia_pci": (), "nvidia_nodes": ()},
            "no-gpu-driver",
            "info",
        ),
    ],
)
def test_a_driver_that_does_not_work(code, why, changes, pitfall, severity):
    facts = replace(
        HEALTHY, devices=None, driver_code=code, why={"devices": why}, host=replace(HOST, **changes)
    )
    assert why in only(replace(facts, environment={}), pitfall, severity).evidence[0].text


def test_nvml_not_asked_for_want_of_the_package():
    facts = replace(
        HEALTHY,
        devices=None,
        driver_code="not_initialised",
        why={"devices": "nvidia-ml-py is missing"},
    )
    assert "nvidia-ml-py is missing" in environment.examine(facts).problems[0]


# ── GPUs ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_lost_and_a_hung_gpu():
    lost = only(
        device(lost="the GPU is lost (fallen off the bus)"), "gpu-health", "problem", "GPU 0"
    )
    assert "fallen off" in lost.evidence[0].text
    hung = only(
        device(hung="nvmlDeviceGetPowerUsage has not returned for 5 s"),
        "gpu-health",
        "problem",
        "GPU 0",
    )
    assert "does not answer" in hung.title


@pytest.mark.parametrize(
    ("changes", "severity", "cause"),
    [
        ({"ecc_uncorrected": 3}, "warning", "environment.ecc"),
        ({"remap_pending": True}, "warning", "environment.remap"),
        ({"remap_failed": True}, "problem", "environment.remap"),
        ({"pages_pending": True}, "warning", "environment.remap"),
    ],
)
def test_faults_of_memory(changes, severity, cause):
    one = only(device(**changes), "gpu-health", severity, "GPU 0")
    assert (one.confidence, one.cause) == ("definite", cause)


@pytest.mark.parametrize(
    ("numbers", "severity", "title"),
    [
        ([79], "warning", "GPU 1 has had hardware errors"),
        ([48], "warning", "GPU 1 has had hardware errors"),
        ([13, 32], "warning", "GPU 1 has had hardware errors"),
        ([31], "info", "A program on GPU 1 failed with an XID error"),
        ([13], "info", "A program on GPU 1 failed with an XID error"),
        ([12], "info", "The driver has reported an XID error of GPU 1"),
        ([13, 63], "info", "The driver has reported an XID error of GPU 1"),
        ([999], "info", "The driver has reported an XID error of GPU 1"),
    ],
)
def test_xids(numbers, severity, title):
    """The kernel writes the address with four digits of the domain and without the function."""
    facts = replace(HEALTHY, xids=tuple(Xid("0000:2a:00", number, 4) for number in numbers))
    one = only(facts, "gpu-health", severity, "GPU 1")
    assert (one.title, one.cause) == (title, "environment.xid")
    assert f"XID {numbers[-1]}, 4 times" in one.evidence[-1].text


def test_an_unread_kernel_log_is_said():
    report = environment.examine(
        replace(HEALTHY, xids=None, why={"xids": "/dev/kmsg: Operation not permitted"})
    )
    assert report.findings == ()
    assert any("not permitted" in one.missing for one in report.abstained)


def test_clocks_and_power():
    one = only(
        device(slowed=("hardware thermal slowdown",), temperature_celsius=91.0),
        "gpu-clocks",
        "warning",
        "GPU 0",
    )
    assert "91 °C" in one.evidence[0].text
    cap = only(device(power_limit_watts=450.0), "gpu-clocks", "info")
    assert cap.fixes[0].command.endswith("-pl 700")
    assert "holds the clock down" in cap.evidence[0].text


def test_pcie():
    assert only(device(pcie_width=8), "pcie-link", "warning").where == "GPU 0"
    assert only(
        device(pcie_width=8, utilization_percent=0.0, performance_state=8), "pcie-link", "info"
    )
    assert (
        "generation 3 of 5" in only(device(pcie_generation=3), "pcie-link", "info").evidence[0].text
    )


def test_persistence_is_only_told():
    assert (
        only(device(persistence=False), "persistence-mode", "info").fixes[0].command
        == "sudo nvidia-smi -pm 1"
    )


def test_memory_that_no_process_holds():
    idle = device(used_bytes=30 * GIB, owners=(), utilization_percent=0.0)
    one = only(idle, "kill-zombie-process", "warning", "GPU 0")
    assert one.confidence == "likely"
    assert "30.0 GiB" in one.title
    partly = only(
        device(used_bytes=30 * GIB, owners=(Owner(4, 12 * GIB),)), "kill-zombie-process", "warning"
    )
    assert partly.title.startswith("18.0 GiB")


@pytest.mark.parametrize(
    "facts",
    [
        replace(
            device(used_bytes=30 * GIB, owners=(), utilization_percent=0.0),
            host=replace(HOST, own_pid_namespace=True),
        ),
        replace(
            device(used_bytes=30 * GIB, owners=(), utilization_percent=0.0),
            host=replace(HOST, pids_hidden="host pids"),
        ),
        replace(
            device(used_bytes=30 * GIB, owners=(), utilization_percent=0.0),
            host=replace(HOST, kernel="5.15-microsoft-standard-WSL2"),
        ),
        replace(
            device(used_bytes=30 * GIB, owners=(), utilization_percent=0.0),
            host=replace(HOST, container="docker"),
        ),
        device(used_bytes=30 * GIB, owners=(), utilization_percent=64.0),  # somebody computes
        device(used_bytes=30 * GIB, owners=(), utilization_percent=None),  # as in MIG mode
        device(used_bytes=30 * GIB, owners=(Owner(4, None),)),
        device(used_bytes=30 * GIB, owners=(), owners_incomplete="the graphics list failed"),
    ],
)
def test_memory_whose_owner_cannot_be_known(facts):
    report = environment.examine(facts)
    assert [one for one in report.findings if one.severity != "info"] == []
    assert any(one.pitfall == "kill-zombie-process" for one in report.abstained)


def test_gpus_whose_owners_are_hidden_alike_are_one_line():
    cards = [
        replace(DEVICE, index=index, used_bytes=30 * GIB, owners=(), utilization_percent=0.0)
        for index in (0, 1, 2, 5)
    ]
    facts = replace(host(container="docker"), devices=tuple(cards), environment={})
    (told,) = [one for one in environment.examine(facts).abstained if "who holds" in one.missing]
    assert "on GPU 0-2, 5: this container cannot see" in told.missing
    alone = replace(facts, devices=(cards[0],))
    (one,) = [one for one in environment.examine(alone).abstained if "who holds" in one.missing]
    sizes = [float(re.search(r"holds ([\d.]+) GiB", each.missing)[1]) for each in (told, one)]
    assert sizes[0] == pytest.approx(4 * sizes[1], rel=0.01)


def test_a_container_that_hides_owners():
    assert only(host(own_pid_namespace=True), "container-pids", "info").confidence == "definite"


@pytest.mark.parametrize(
    ("text", "severity", "words"),
    [
        ("", "warning", "hides every GPU"),
        ("-1", "warning", "hides every GPU"),
        ("0,7", "problem", "stops there and sees only the 1 before it"),
        ("7", "problem", "stops there and sees none"),
        ("0,,1", "problem", "an empty entry"),
        ("cuda:0", "problem", "cuda:0"),
        ("GPU-ffff", "problem", "GPU-ffff"),
        ("1,1", "warning", "more than once"),
    ],
)
def test_visible_devices(text, severity, words):
    assert words in only(setting(CUDA_VISIBLE_DEVICES=text), "visible-devices", severity).title


def test_order_of_different_gpus():
    mixed = replace(
        HEALTHY,
        devices=(DEVICE, replace(DEVICE, index=1, uuid="GPU-1b", name="NVIDIA T4")),
        environment={},
    )
    one = only(mixed, "visible-devices", "info")
    assert one.fixes[0].environment == "CUDA_DEVICE_ORDER=PCI_BUS_ID"
    assert found(replace(mixed, environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})) == []
    assert only(setting(CUDA_DEVICE_ORDER="pci"), "visible-devices", "warning")


# ── host ──────────────────────────────────────────────────────────────────────────────────────────


@each(
    ("changes", "pitfall", "severity", "words"),
    [
        (
            {"shm_total_bytes": 64 << 20, "shm_used_bytes": 0, "container": "docker"},
            "shm-size",
            "warning",
            "64.0 MiB",
        ),
        (
            {"shm_total_bytes": 8 * GIB, "shm_used_bytes": 15 * GIB // 2},
            "shm-size",
            "warning",
            "nearly full",
        ),
        (
            {"cgroup_used_bytes": 250 * GIB},
            "host-memory-limit",
            "warning",
            "6.00 GiB of 256 GiB are left",
        ),
        ({"oom_kills": 2}, "host-memory-limit", "warning", "2 times"),
        ({"memory_available_bytes": 9 * GIB}, "host-memory-limit", "warning", "nearly used up"),
        ({"memory_stall_percent": 34.0}, "host-memory-limit", "warning", "34 %"),
        (
            {
                "swap_used_bytes": 5 * GIB,
                "memory_available_bytes": 40 * GIB,
                "memory_stall_percent": None,
            },
            "host-memory-limit",
            "warning",
            "swaps",
        ),
        ({"open_files": 256, "open_files_hard": 4096}, "process-limits", "warning", "256"),
        ({"open_files": 1024}, "process-limits", "info", "1024"),
        ({"processes": 200}, "process-limits", "warning", "200"),
        ({"pids_used": 8800}, "process-limits", "warning", "8800 of 9000"),
        ({"locked_bytes": 64 << 10}, "process-limits", "info", "InfiniBand"),
    ],
)
def test_host(changes, pitfall, severity, words):
    one = only(host(**changes), pitfall, severity)
    assert words in one.title


def test_locked_memory_matters_where_several_hosts_train():
    facts = replace(host(locked_bytes=64 << 10), environment={"SLURM_NNODES": "4"})
    assert only(facts, "process-limits", "warning", "locked memory")


def test_what_is_unknown_of_the_host_is_no_finding():
    report = environment.examine(
        replace(HEALTHY, host=Host(), why={"shm_total_bytes": "no permission"})
    )
    assert report.findings == ()
    assert {"shm-size", "host-memory-limit"} <= {one.pitfall for one in report.abstained}


def test_mixed_pynvml_packages():
    old = {"pynvml": "11.5.3", "nvidia-ml-py": "12.560.30"}
    assert (
        only(replace(HEALTHY, own_packages=old), "nvml-packages", "warning").confidence
        == "definite"
    )
    assert (
        only(replace(HEALTHY, packages=old), "nvml-packages", "warning").where
        == "the trainer's environment"
    )
    assert only(
        replace(HEALTHY, nvml_note="the old package stands before"), "nvml-packages", "warning"
    )
    # from 12 on it only leans on nvidia-ml-py
    assert (
        found(replace(HEALTHY, own_packages={"pynvml": "12.0.0", "nvidia-ml-py": "12.560.30"}))
        == []
    )
    assert found(replace(HEALTHY, own_packages={"pynvml": "11.5.3"})) == []


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


@each(
    ("environment", "pitfall", "severity"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "debug-settings", "warning"),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "debug-settings", "warning"),
        ({"NCCL_P2P_DISABLE": "1"}, "nccl-config", "info"),
        ({"NCCL_SHM_DISABLE": "true"}, "nccl-config", "info"),
        ({"NCCL_IB_DISABLE": "1"}, "nccl-config", "info"),
        ({"NCCL_DEBUG": "trace"}, "nccl-config", "info"),
        ({"NCCL_ASYNC_ERROR_HANDLING": "1"}, "nccl-config", "info"),
        ({"NCCL_TIMEOUT": "3600"}, "nccl-config", "info"),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, "nccl-config", "warning"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "nccl-config", "warning"),
        ({"OMP_NUM_THREADS": "96"}, "cpu-threads", "warning"),
        ({"OMP_NUM_THREADS": "all"}, "cpu-threads", "warning"),
        ({"OMP_NUM_THREADS": "0"}, "cpu-threads", "warning"),
    ],
)
def test_settings(environment, pitfall, severity):
    assert next(iter(environment)) in only(setting(**environment), pitfall, severity).title


def test_a_renamed_variable_keeps_its_value():
    assert (
        found(setting(NCCL_BLOCKING_WAIT="1"))[0].fixes[0].environment
        == "TORCH_NCCL_BLOCKING_WAIT=1"
    )


def test_threads_are_shared_by_the_ranks():
    fixes = [found(setting(OMP_NUM_THREADS=text))[0].fixes[0].environment for text in ("96", "all")]
    assert fixes == ["OMP_NUM_THREADS=32"] * 2


def test_an_unknown_interface_list_decides_nothing():
    assert found(replace(host(interfaces=None), environment={"NCCL_SOCKET_IFNAME": "ib0"})) == []


def test_numbers():
    assert version("2.13.0+cu130") == (2, 13, 0)
    assert version("2.12.0a0+git1") == (2, 12, 0)
    assert version(None) == version("nightly") == ()
