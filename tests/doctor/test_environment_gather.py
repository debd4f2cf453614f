"""The environment's facts are gathered.

They come from a fake driver under the real pynvml, recorded /proc trees, folders of installed
packages, and a child that stands for torch's Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from gpuscope.agent import environment_host, environment_torch
from gpuscope.agent.picture import Picture
from gpuscope.cli.commands.doctor import environment as doctor_environment
from gpuscope.doctor import environment
from gpuscope.wire.frames import HostDef, Unknown
from tests.fakes import shim
from tests.fakes.nvml import NOT_SUPPORTED, SUCCESS, FakeNvml, FakeProcess
from tests.fakes.proctree import tree

GIB = 1 << 30


class HealthNvml(FakeNvml):
    """The fake driver with the calls that only the doctor makes.

    ``health``: per call the numbers that it answers.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.health = {
            "PersistenceMode": (1,),
            "PowerManagementDefaultLimit": (700_000,),
            "RetiredPagesPendingStatus": (0,),
            "RemappedRows": (0, 0, 0, 0),
        }

    def _reply(self, call, outs):
        numbers = self.health.get(call)
        if numbers is None:
            return NOT_SUPPORTED
        for out, number in zip(outs, numbers, strict=True):
            ctypes.cast(out, ctypes.POINTER(ctypes.c_uint))[0] = number
        return SUCCESS

    def _nvmlDeviceGetPersistenceMode(self, handle, *outs):
        return self._reply("PersistenceMode", outs)

    def _nvmlDeviceGetPowerManagementDefaultLimit(self, handle, *outs):
        return self._reply("PowerManagementDefaultLimit", outs)

    def _nvmlDeviceGetRetiredPagesPendingStatus(self, handle, *outs):
        return self._reply("RetiredPagesPendingStatus", outs)

    def _nvmlDeviceGetRemappedRows(self, handle, *outs):
        return self._reply("RemappedRows", outs)


@pytest.fixture
def fake():
    processes = [FakeProcess(os.getpid(), used=20 * GIB, gpu=index) for index in range(2)]
    fake = HealthNvml(gpus=2, processes=processes)
    with fake.install():
        yield fake


def gpus_only(report):
    """Findings that are about the GPUs: what this test's own machine is like is not theirs."""
    ids = (
        "gpu-health",
        "gpu-clocks",
        "pcie-link",
        "persistence-mode",
        "kill-zombie-process",
        "visible-devices",
    )
    return [one for one in report.findings if one.pitfall in ids]


# ── the driver ────────────────────────────────────────────────────────────────────────────────────


def test_devices_are_gathered(fake):
    fake.health["PersistenceMode"] = (0,)
    facts = doctor_environment.gather(environ={})
    assert (facts.driver_version, facts.driver_cuda) == ("580.159.03", "13.0")
    first, second = facts.devices
    assert (first.index, first.name, first.capability, first.uuid) == (
        0,
        "NVIDIA H200",
        (9, 0),
        fake.gpus[0].uuid,
    )
    assert (first.used_bytes, first.pcie_width, first.max_pcie_width) == (20 * GIB, 16, 16)
    assert (first.power_limit_watts, first.default_power_watts) == (700.0, 700.0)
    assert (first.persistence, first.remap_pending, first.remap_failed, first.pages_pending) == (
        False,
        *[False] * 3,
    )
    # at its power limit, which is how a busy GPU works
    assert (first.capped, first.slowed) == (True, ())
    assert [owner.pid for owner in second.owners] == [os.getpid()]


def test_a_healthy_driver_gives_no_finding(fake):
    assert gpus_only(doctor_environment.examine(environ={})) == []


def test_what_the_driver_does_not_have_is_unknown(fake):
    fake.health.clear()
    (first, _) = doctor_environment.gather(environ={}).devices
    assert (first.persistence, first.remap_pending, first.default_power_watts) == (None, None, None)
    assert gpus_only(doctor_environment.examine(environ={})) == []


def test_faults_are_found(fake):
    fake.set(0, ecc=7, event_reasons=0x44)
    fake.health["RemappedRows"] = (1, 4, 1, 0)
    found = gpus_only(doctor_environment.examine(environ={"CUDA_VISIBLE_DEVICES": "0,2"}))
    assert {(one.pitfall, one.where) for one in found if one.severity != "info"} == {
        ("gpu-health", "GPU 0"),
        ("gpu-health", "GPU 1"),
        ("gpu-clocks", "GPU 0"),
        ("visible-devices", "CUDA_VISIBLE_DEVICES"),
    }
    health = next(one for one in found if (one.pitfall, one.where) == ("gpu-health", "GPU 0"))
    assert any("7 uncorrected" in one.text for one in health.evidence)
    assert any("remapped at the next reset" in one.text for one in health.evidence)


def test_a_lost_gpu_is_not_asked_again(fake):
    fake.lose(1)
    found = gpus_only(doctor_environment.examine(environ={}))
    assert [(one.pitfall, one.severity, one.where) for one in found] == [
        ("gpu-health", "problem", "GPU 1")
    ]
    assert fake.count("nvmlDeviceGetPersistenceMode", 0) > 0
    assert fake.count("nvmlDeviceGetPersistenceMode", 1) == 0


def test_a_call_that_hangs_costs_its_limit_and_no_more(fake):
    with fake.hang("nvmlDeviceGetPowerUsage", 1):
        found = gpus_only(doctor_environment.examine(timeout=1.5, environ={}))
    (hung,) = found
    assert (hung.pitfall, hung.severity, hung.where) == ("gpu-health", "problem", "GPU 1")
    assert "nvmlDeviceGetPowerUsage has not returned" in hung.evidence[0].text


def test_a_call_about_health_that_hangs_leaves_the_other_device(fake):
    with fake.hang("nvmlDeviceGetRemappedRows", 0):
        facts = doctor_environment.gather(timeout=1.5, environ={})
    assert facts.devices[0].remap_pending is None
    assert facts.devices[1].remap_pending is False


def test_memory_without_a_process(fake):
    fake.processes.clear()
    facts = doctor_environment.gather(environ={})
    assert facts.devices
    devices = tuple(replace(one, utilization_percent=0.0) for one in facts.devices)
    seen = replace(facts.host, pids_hidden=None, own_pid_namespace=False, container=None)
    report = environment.examine(replace(facts, devices=devices, host=seen))
    (one,) = [one for one in report.findings if one.pitfall == "kill-zombie-process"]
    assert "40.0 GiB of GPU 0 and 1" in one.title
    inside = replace(facts, devices=devices, host=replace(seen, container="docker"))
    report = environment.examine(inside)
    assert any(one.pitfall == "kill-zombie-process" for one in report.abstained)


@pytest.mark.parametrize(
    ("error", "code"), [("LibraryNotFound", "not_supported"), ("DriverNotLoaded", "driver_error")]
)
def test_without_a_driver(fake, error, code):
    fake.fail("nvmlInitWithFlags", None, error)
    facts = doctor_environment.gather(environ={})
    assert (facts.devices, facts.driver_code) == (None, code)
    assert facts.why["devices"]
    assert environment.examine(facts).problems == ()


@pytest.mark.slow
def test_a_whole_program_on_another_library():
    """From a fresh process, as a job script runs it: eight GPUs, one of them lost."""
    code = textwrap.dedent(
        """
        from gpuscope.cli import output
        from gpuscope.cli.commands.doctor import environment as d
        import sys
        report = d.examine()
        told = [[one.pitfall, one.severity, one.where] for one in report.findings]
        assert not {"torch", "textual", "msgspec"} & set(sys.modules), sorted(sys.modules)
        print(output.dump({"told": told, "examined": report.examined}))
        """
    )
    asked = shim.environment(gpus=8, lost=3)
    out = subprocess.run(
        [sys.executable, "-c", code], env=asked, capture_output=True, text=True, timeout=60
    )
    assert out.returncode == 0, out.stderr
    told = json.loads(out.stdout)
    assert ["gpu-health", "problem", "GPU 3"] in told["told"]
    assert "8 GPUs" in told["examined"]


# ── the host ──────────────────────────────────────────────────────────────────────────────────────


def picture(**definition):
    return Picture(0.0, HostDef(**definition), {}, {}, 0.0, Unknown("not_supported", "none"))


def test_a_host_without_anything():
    told, _ = environment_host.host(picture(), "/nowhere")
    assert (told.oom_kills, told.pids_limit, told.interfaces, told.nvidia_pci) == (
        None,
        None,
        None,
        None,
    )
    assert (told.memory_stall_percent, told.swap_total_bytes, told.nvidia_nodes) == (None, None, ())
    assert told.open_files is not None


def test_a_recorded_tree(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job_7/step_0\n",
            "sys/fs/cgroup/job_7/step_0/memory.current": "100\n",
            "sys/fs/cgroup/job_7/step_0/memory.events": "low 0\nhigh 3\nmax 9\noom 2\noom_kill 2\n",
            "sys/fs/cgroup/job_7/memory.current": "100\n",
            "sys/fs/cgroup/job_7/memory.events": "oom_kill 40\n",  # other people's
            "sys/fs/cgroup/job_7/step_0/pids.max": "400\n",
            "sys/fs/cgroup/job_7/step_0/pids.current": "380\n",
            "proc/meminfo": "MemTotal: 64 kB\nSwapTotal: 2048 kB\n",
            "proc/pressure/memory": "some avg10=9.10 avg60=8.00 total=9\n"
            "full avg10=9 avg60=12.50 total=1\n",
            "sys/bus/pci/devices/0000:18:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:18:00.0/class": "0x030200\n",
            "sys/bus/pci/devices/0000:18:00.1/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:18:00.1/class": "0x040300\n",  # its sound
            "sys/bus/pci/devices/0000:2a:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:2a:00.0/class": "0x030200\n",
            "sys/bus/pci/drivers/vfio-pci/bind": "",
            "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086\n",
            "sys/bus/pci/devices/0000:00:02.0/class": "0x030000\n",
            "sys/class/infiniband/mlx5_0": "",
            "sys/class/net/eth0": "",
            "dev/nvidia0": "",
            "dev/nvidiactl": "",
        },
    )
    # handed to a virtual machine: no GPU of this host
    (tmp_path / "sys/bus/pci/devices/0000:2a:00.0/driver").symlink_to("../../drivers/vfio-pci")
    told, _ = environment_host.host(picture(kernel="6.8"), root)
    assert (told.oom_kills, told.oom_kills_source) == (2, "memory.events")
    assert (told.pids_limit, told.pids_used) == (400, 380)
    assert (told.memory_stall_percent, told.swap_total_bytes) == (12.5, 2 << 20)
    assert len(told.nvidia_pci) == 1
    assert "0000:18:00.0" in told.nvidia_pci[0]
    assert (told.infiniband, told.interfaces, told.nvidia_nodes) == (
        ("mlx5_0",),
        ("eth0",),
        ("/dev/nvidia0",),
    )


def test_version_1_of_cgroups(tmp_path):
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/ab\n3:pids:/docker/ab\n",
            "sys/fs/cgroup/memory/docker/ab/memory.usage_in_bytes": "5\n",
            "sys/fs/cgroup/memory/docker/ab/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",  # noqa: E501
            "sys/fs/cgroup/pids/docker/ab/pids.max": "max\n",
            "sys/fs/cgroup/pids/docker/ab/pids.current": "3\n",
        },
    )
    told, _ = environment_host.host(picture(), root)
    assert (told.oom_kills, told.oom_kills_source, told.pids_limit) == (
        1,
        "memory.oom_control",
        None,
    )


def test_xids_of_the_kernels_log(tmp_path):
    log = tmp_path / "kmsg"
    log.write_bytes(
        b"6,1,1,-;usb 1-1: new device\n"
        b"3,2,2,-;NVRM: Xid (PCI:0000:5E:00): 79, pid=91, GPU has fallen off the bus.\n"
        b"3,3,3,-;NVRM: Xid (PCI:0000:5e:00): 79, pid=92, again\n"
        b"3,4,4,-;NVRM: Xid (PCI:0000:18:00): 31, pid=1, name=\xff\x1b[2J\n"
    )
    found, why = environment_host.xids(str(log))
    assert why == ""
    assert [(one.pci, one.number, one.count) for one in found] == [
        ("0000:18:00", 31, 1),
        ("0000:5e:00", 79, 2),
    ]
    none, why = environment_host.xids(str(tmp_path / "none"))
    assert none is None
    assert "No such file" in why


# ── the installed torch ───────────────────────────────────────────────────────────────────────────

LIBRARY = (
    b"\x7fELF"
    + b"\0sm_\0" * 9
    + b"junk\0sm_61x\0"
    + b"\0sm_75 sm_80 sm_90 compute_90\0"
    + b"\0sm_99\0" * 3
)


def wheel(prefix, version="2.11.0+cu130", cuda="'13.0'", library=LIBRARY, **packages):
    """An environment that holds a torch, as pip leaves it."""
    site = prefix / "lib" / "python3.12" / "site-packages"
    named = version.split("+")[0]
    files = {
        "torch/version.py": f"from typing import Optional\n__version__ = '{version}'\n"
        "debug = False\n"
        f"cuda: Optional[str] = {cuda}\nhip: Optional[str] = None\nxpu: Optional[str] = None\n",
        f"torch-{named}.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\n"
        "Requires-Dist: filelock\nRequires-Dist: nvidia-nccl-cu13 ==2.28.9 ; platform_system == "
        "'Linux'\n"
        'Requires-Dist: nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"\n',
    }
    if library is not None:
        files["torch/lib/libtorch_python.so"] = library
    for name, number in packages.items():
        files[f"{name}-{number}.dist-info/METADATA"] = f"Name: {name}\n"
    tree(site, files)
    return site


def test_torch_is_read_from_its_files(tmp_path):
    wheel(
        tmp_path,
        nvidia_nccl_cu13="2.28.9",
        nvidia_ml_py="13.580.65",
        pynvml="11.5.0",
        numpy="2.1.0",
    )
    found = environment_torch.installed({"VIRTUAL_ENV": str(tmp_path)})
    build = found.build
    assert (build.version, build.cuda, build.hip, build.prefix) == (
        "2.11.0+cu130",
        "13.0",
        "",
        str(tmp_path),
    )
    assert build.architectures == ("sm_75", "sm_80", "sm_90", "compute_90")
    assert found.packages == {
        "torch": "2.11.0",
        "nvidia-nccl-cu13": "2.28.9",
        "nvidia-ml-py": "13.580.65",
        "pynvml": "11.5.0",
    }
    assert found.requires == (("nvidia-nccl-cu13", "2.28.9"), ("nvidia-cudnn-cu13", "9.19.0.56"))


def test_a_cpu_build_and_one_without_its_library(tmp_path):
    wheel(tmp_path / "a", version="2.13.0+cpu", cuda="None")
    build = environment_torch.installed({"VIRTUAL_ENV": str(tmp_path / "a")}).build
    assert (build.version, build.cuda, build.architectures) == ("2.13.0+cpu", "", None)
    wheel(tmp_path / "b", library=None)
    found = environment_torch.installed({"VIRTUAL_ENV": str(tmp_path / "b")})
    assert found.build.architectures is None
    assert "libtorch_python.so" in found.no_architectures
    wheel(tmp_path / "c", library=b"nothing of the kind")
    assert (
        "does not hold them"
        in environment_torch.installed({"CONDA_PREFIX": str(tmp_path / "c")}).no_architectures
    )


def test_the_first_environment_that_holds_torch_counts(tmp_path):
    (tmp_path / "empty" / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    wheel(tmp_path / "conda", version="2.4.1+cu121", cuda="'12.1'")
    found = environment_torch.installed(
        {"VIRTUAL_ENV": str(tmp_path / "empty"), "CONDA_PREFIX": str(tmp_path / "conda")}
    )
    assert found.build.version == "2.4.1+cu121"


def test_hostile_version_files(tmp_path):
    site = wheel(tmp_path)
    for content in (
        b"",
        b"\xff\xfe\0",
        b"__version__ = " + b"'9" * 100_000,
        b"__version__ = '2.1'\ncuda = open('x')\n",
    ):
        (site / "torch" / "version.py").write_bytes(content)
        found = environment_torch.look(str(tmp_path), str(site))
        assert found.build is None or found.build.cuda is None or found.build.cuda == ""


def test_the_installed_torch_is_told_without_importing_it():
    metadata = pytest.importorskip("importlib.metadata")
    try:
        expected = metadata.version("torch")
    except metadata.PackageNotFoundError:
        pytest.skip("no torch is installed here")
    found = environment_torch.installed({"VIRTUAL_ENV": sys.prefix, "PATH": ""})
    assert found.build.version.split("+")[0] == expected.split("+")[0]


# ── asking torch ──────────────────────────────────────────────────────────────────────────────────


def python(tmp_path, torch):
    """A Python in which ``import torch`` runs this text."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "torch.py").write_text(textwrap.dedent(torch))
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexport PYTHONPATH="{folder}"\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


WORKING = """
    import types, warnings, sys
    __version__ = "2.11.0+cu130"
    print("a library that talks", flush=True)
    version = types.SimpleNamespace(cuda="13.0")
    def init(): raise RuntimeError("the NVIDIA driver on your system is too old")
    def available(): warnings.warn("CUDA initialization: no"); return False
    cuda = types.SimpleNamespace(
        is_available=available, device_count=lambda: 0, get_arch_list=lambda: ["sm_90"], init=init,
        nccl=types.SimpleNamespace(version=lambda: (2, 28, 9)),
    )
"""


def test_torch_answers(tmp_path):
    torch, why = environment_torch.ask(python(tmp_path, WORKING))
    assert why == ""
    assert (torch.version, torch.cuda, torch.available, torch.device_count) == (
        "2.11.0+cu130",
        "13.0",
        False,
        0,
    )
    assert (torch.architectures, torch.nccl) == (("sm_90",), "2.28.9")
    assert torch.why_not == "RuntimeError: the NVIDIA driver on your system is too old"
    assert torch.failure == ""


def test_torch_that_cannot_be_imported(tmp_path):
    torch, _ = environment_torch.ask(
        python(tmp_path, "raise ImportError('libcudart.so.13: cannot open')")
    )
    assert torch.failure == "ImportError: libcudart.so.13: cannot open"


def test_torch_that_takes_too_long_is_ended(tmp_path):
    mark = tmp_path / "pid"
    torch, why = environment_torch.ask(
        python(
            tmp_path,
            f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)",
        ),
        seconds=1.5,
    )
    assert torch is None
    assert "did not end within 1.5 s" in why
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_torch_that_crashes(tmp_path):
    torch, why = environment_torch.ask(python(tmp_path, "import os; os._exit(7)"))
    assert torch is None
    assert "code 7" in why
    assert "cannot be started" in environment_torch.ask(str(tmp_path / "none"))[1]


# ── this machine ──────────────────────────────────────────────────────────────────────────────────


def test_this_machine_from_nothing():
    """Without a driver nothing is wrong, and nothing heavy is loaded to say so."""
    code = textwrap.dedent(
        """
        import sys
        from gpuscope.cli.commands.doctor import environment as d
        facts = d.gather(environ={"VIRTUAL_ENV": sys.prefix, "PATH": ""})
        from gpuscope.doctor import environment
        report = environment.examine(facts)
        assert not {"torch", "textual", "msgspec"} & set(sys.modules)
        quiet = facts.devices is None and not facts.host.nvidia_nodes and not facts.host.nvidia_pci
        small = (facts.host.shm_total_bytes or 0) < 1 << 28  # where this runs in a container that was given no more
        loud = [one for one in report.findings if one.severity != "info"]
        loud = [one.title for one in loud if not (small and one.pitfall == "shm-size")]
        print(quiet, loud, report.problems)
        """  # noqa: E501
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    if out.stdout.startswith("True"):
        assert out.stdout.strip() == "True [] ()"
