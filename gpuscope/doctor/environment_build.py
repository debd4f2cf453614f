"""Driver, CUDA and the torch that is installed: whether they fit each other and the GPUs.

Sources: NVIDIA's CUDA compatibility guide (a driver runs every CUDA of its own major version and older ones; CUDA 11
needs driver 450, 12 needs 525, 13 needs 580) and binary compatibility (machine code of sm_80 runs on 8.x, PTX of
compute_80 on everything from 8.0 on, code of sm_90a on 9.0 only).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .environment_facts import Build, Device, Facts, names, shown, version
from .finding import Abstained, Evidence, Finding, Fix

LEAST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""CUDA major version → the first Linux driver that runs it."""
_INDEX = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d{2,3})([af]?)")
_VERIFY = "gpuscope doctor --torch"


def judge(facts: Facts) -> Iterator[Finding | Abstained]:
    """Findings, and what could not be decided."""
    yield from _driver(facts)
    present = [device for device in facts.devices or () if device.lost is None]
    if facts.build is None:
        if present:
            missing = facts.why.get("build", "no torch is installed in this Python")
            fix = "run gpuscope doctor in the environment that trains"
            yield Abstained(pitfall="driver-cuda-mismatch", missing=f"torch's version and CUDA: {missing}; {fix}")
    elif present:
        yield from _torch(facts, facts.build, present)
    yield from _asked(facts, present)
    yield from _pins(facts)


# ── the driver ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _driver(facts: Facts) -> Iterator[Finding | Abstained]:
    if facts.devices is not None:
        return
    why = facts.why.get("devices", "")
    seen = [*facts.host.nvidia_nodes, *(facts.host.nvidia_pci or ())]
    signs = tuple(Evidence(text=f"the machine has {sign}", source="/dev, /sys/bus/pci") for sign in seen[:4])
    if facts.driver_code in ("driver_error", "timeout", "lost"):
        hung, versions = facts.driver_code == "timeout", "versions differ" in why
        # An image with the driver's library on a machine without a GPU is no fault.
        idle = "not loaded" in why and not seen and facts.host.nvidia_pci is not None
        yield Finding(
            pitfall="driver-cuda-mismatch" if versions else "no-gpu-driver",
            cause="environment.driver" if versions else "environment.no-driver",
            title="The NVIDIA driver does not answer" if hung else "The NVIDIA driver cannot be used",
            severity="info" if idle else "problem",
            confidence="likely" if idle else "definite",
            evidence=(Evidence(text=why, source="nvml"), *signs),
            fixes=(
                Fix(
                    title="See what the kernel says of it", command="sudo dmesg | grep -iE 'nvrm|nvidia|xid'", now=True
                ),
            ),
            verify="gpuscope devices",
        )
    elif seen and facts.driver_code == "not_supported":
        inside = facts.host.container is not None
        fix = (
            Fix(title="Start the container with its GPUs", command="docker run --gpus all …")
            if inside
            else Fix(title="Install NVIDIA's driver with the distribution's package, then reboot")
        )
        yield Finding(
            pitfall="no-gpu-driver",
            cause="environment.no-driver",
            title="This machine has an NVIDIA GPU, and no driver library that programs can use",
            severity="warning" if facts.host.nvidia_nodes or (facts.build and facts.build.cuda) else "info",
            confidence="definite" if facts.host.nvidia_nodes else "likely",
            evidence=(Evidence(text=why, source="nvml"), *signs),
            fixes=(fix,),
            verify="gpuscope devices",
        )
    elif seen:
        yield Abstained(pitfall="no-gpu-driver", missing=f"whether the driver works: {why}")


# ── the installed build ─────────────────────────────────────────────────────────────────────────────────────────────


def _torch(facts: Facts, build: Build, devices: Sequence[Device]) -> Iterator[Finding | Abstained]:
    installed = Evidence(text=f"torch {build.version} is installed in {build.prefix}", source="torch/version.py")
    if build.cuda == "":
        made = f"for ROCm {build.hip}" if build.hip else f"for XPU {build.xpu}" if build.xpu else "for the CPU only"
        cards = f"{len(devices)} GPU{'s' if len(devices) > 1 else ''} here: {devices[0].name or 'NVIDIA'}"
        yield Finding(
            pitfall="wrong-torch-build-cpu-only",
            cause="environment.cpu-only",
            title=f"torch {build.version} is built {made}: it cannot use the GPUs of this machine",
            severity="problem",
            confidence="definite",
            evidence=(installed, Evidence(text=cards, source="nvml")),
            fixes=(Fix(title="Install a CUDA build", command=_wheel(facts, devices)),),
            verify=_VERIFY,
        )
    elif build.cuda is None:
        yield Abstained(
            pitfall="driver-cuda-mismatch", missing="the CUDA version of torch: torch/version.py does not say"
        )
    else:
        yield from _too_old(facts, build.cuda, installed, devices)
        yield from _architecture(facts, build, installed, devices)


def _too_old(facts: Facts, cuda: str, installed: Evidence, devices: Sequence[Device]) -> Iterator[Finding | Abstained]:
    wanted, served = version(cuda), version(facts.driver_cuda)
    if not served:
        why = facts.why.get("cuda_driver_version", "the driver does not tell")
        yield Abstained(pitfall="driver-cuda-mismatch", missing=f"the CUDA version that the driver serves: {why}")
        return
    driver = Evidence(
        text=f"driver {facts.driver_version or 'of unknown version'} serves CUDA {facts.driver_cuda}", source="nvml"
    )
    needs = Evidence(text=f"torch {facts.build.version if facts.build else ''} is built with CUDA {cuda}")
    if wanted[:1] > served[:1]:
        least = LEAST_DRIVER.get(wanted[0])
        compat = "compat" in facts.environment.get("LD_LIBRARY_PATH", "")
        fixes = [Fix(title=f"Install a torch built for CUDA {served[0]}", command=_wheel(facts, devices))]
        fixes.append(Fix(title=f"Or update the driver to {least} or newer" if least else "Or update the driver"))
        yield Finding(
            pitfall="driver-cuda-mismatch",
            cause="environment.driver",
            title=f"The driver is too old for this torch: it serves CUDA {facts.driver_cuda}, torch needs {wanted[0]}",
            severity="problem",
            confidence="likely" if compat else "definite",
            evidence=(driver, needs, installed),
            fixes=tuple(fixes),
            verify=_VERIFY,
        )
    elif wanted[:2] > served[:2]:
        yield Finding(
            pitfall="driver-cuda-mismatch",
            cause="environment.driver",
            title=f"torch is built with CUDA {cuda}, the driver serves {facts.driver_cuda}: it runs all the same",
            severity="info",
            confidence="likely",
            evidence=(
                driver,
                needs,
                Evidence(text="one major version of CUDA runs on every driver made for that version"),
            ),
            fixes=(
                Fix(title="Nothing, unless a kernel compiled at run time (PTX) is refused: then update the driver"),
            ),
        )


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool | None:
    """Whether code for ``architectures`` runs on a GPU of this compute capability; None where none is understood."""
    understood = False
    for word in architectures:
        match = _ARCHITECTURE.fullmatch(word)
        if match is None:
            continue
        understood = True
        made = (int(match[2][:-1]), int(match[2][-1]))
        same = made == capability
        if match[3] == "a":
            fits = same
        elif match[1] == "sm" or match[3] == "f":
            fits = made[0] == capability[0] and made[1] <= capability[1]
        else:
            fits = made <= capability
        if fits:
            return True
    return False if understood else None


def _architecture(
    facts: Facts, build: Build, installed: Evidence, devices: Sequence[Device]
) -> Iterator[Finding | Abstained]:
    told = facts.torch.architectures if facts.torch is not None and facts.torch.architectures else build.architectures
    if told is None:
        why = facts.why.get("architectures", "the wheel does not tell")
        yield Abstained(
            pitfall="wrong-torch-build-arch",
            missing=f"which GPUs this torch is compiled for: {why}. gpuscope doctor --torch asks torch",
        )
        return
    without = [one for one in devices if one.capability is not None and runs_on(one.capability, told) is False]
    if not without:
        return
    capability = without[0].capability or (0, 0)
    number = f"{capability[0]}.{capability[1]}"
    yield Finding(
        pitfall="wrong-torch-build-arch",
        cause="environment.arch",
        title=f"torch {build.version} holds no code for compute capability {number} ({without[0].name or 'this GPU'})",
        severity="problem",
        confidence="definite",
        evidence=(
            Evidence(text=f"{names(without)}: compute capability {number}", source="nvml"),
            Evidence(text=f"torch is compiled for {', '.join(told)}", source="torch"),
            installed,
        ),
        fixes=(Fix(title="Install a build that holds code for it", command=_wheel(facts, without)),),
        verify=_VERIFY,
        where=names(without),
    )


def _wheel(facts: Facts, devices: Sequence[Device]) -> str:
    """The command that installs a build for these devices and this driver: what the index of wheels is called by."""
    known = [device.capability for device in devices if device.capability is not None]
    served = version(facts.driver_cuda)
    if known and min(known) < (7, 5):
        return _INDEX + "cu126"  # the last builds with code for Maxwell, Pascal and Volta
    if served and served[0] < 12:
        return _INDEX + "cu118"
    if served and served[0] == 12:
        return _INDEX + ("cu128" if not known or max(known) >= (10, 0) else "cu126")
    return _INDEX + ("cu130" if served else "cu128")


# ── torch's own answer ──────────────────────────────────────────────────────────────────────────────────────────────


def _asked(facts: Facts, devices: Sequence[Device]) -> Iterator[Finding]:
    torch = facts.torch
    if torch is None:
        return
    took = Evidence(text=f"asked in a child process, which took {torch.seconds:.1f} s", source="torch")
    if torch.failure:
        yield Finding(
            pitfall="driver-cuda-mismatch",
            cause="environment.driver",
            title="import torch fails",
            severity="problem",
            confidence="definite",
            evidence=(Evidence(text=torch.failure, source="torch"), took),
            fixes=(Fix(title="Install torch anew, with the packages that it pins", command=_wheel(facts, devices)),),
            verify=_VERIFY,
        )
    elif torch.available is False and torch.cuda and devices and shown(facts, devices).positions:
        yield Finding(
            pitfall="driver-cuda-mismatch",
            cause="environment.driver",
            title="torch cannot use CUDA here, though it is built for it and the driver answers",
            severity="problem",
            confidence="definite",
            evidence=(
                Evidence(text=torch.why_not or "torch.cuda.is_available() is False", source="torch"),
                Evidence(text=f"{len(devices)} GPUs answer; torch is built with CUDA {torch.cuda}", source="nvml"),
                took,
            ),
            fixes=(Fix(title="See what the CUDA library says", command='python -c "import torch; torch.cuda.init()"'),),
            verify=_VERIFY,
        )


def _pins(facts: Facts) -> Iterator[Finding]:
    """Libraries that torch pins to one version and that stand here in another."""
    other = [
        (name, pinned, facts.packages[name])
        for name, pinned in facts.requires
        if name in facts.packages and version(facts.packages[name]) != version(pinned)
    ]
    if not other or facts.build is None:
        return
    wanted = " ".join(f"{name}=={pinned}" for name, pinned, _ in other[:8])
    yield Finding(
        pitfall="driver-cuda-mismatch",
        cause="environment.driver",
        title=f"{other[0][0]} is not the version that torch {facts.build.version} was built and tested with",
        severity="info",
        confidence="likely",
        evidence=tuple(
            Evidence(text=f"{name}: torch pins {pinned}, installed is {found}", source="installed metadata")
            for name, pinned, found in other[:8]
        ),
        fixes=(Fix(title="If imports or kernels fail: install what torch pins", command=f"pip install {wanted}"),),
        where="libraries",
    )
