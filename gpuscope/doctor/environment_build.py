"""Judges whether the driver, CUDA and the installed torch fit each other and the GPUs.

Sources: NVIDIA's CUDA compatibility guide (a driver runs every CUDA of its own major version and
older ones; CUDA 11 needs driver 450, 12 needs 525, 13 needs 580) and binary compatibility (machine
code of sm_80 runs on 8.x, PTX of compute_80 on everything from 8.0 on, code of sm_90a on 9.0 only).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..text.units import count_text, duration_text
from .environment_facts import WORDINGS, Build, Device, Facts, names, read_visible_devices, version
from .finding import Abstained, Evidence, Finding

LEAST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""The first Linux driver that runs each major version of CUDA."""
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d{2,3})([af]?)")


def judge(facts: Facts) -> Iterator[Finding | Abstained]:
    """Yields findings, and what could not be decided."""
    yield from _driver(facts)
    present = [device for device in facts.devices or () if device.lost is None]
    if facts.build is None:
        if present:
            yield WORDINGS.abstained("torch", why=facts.why.get("build"))
    elif present:
        yield from _torch(facts, facts.build, present)
    yield from _torch_answer(facts, present)
    yield from _pinned_libraries(facts)


# ── the driver ────────────────────────────────────────────────────────────────────────────────────


def _driver(facts: Facts) -> Iterator[Finding | Abstained]:
    """Yields why the driver cannot be used, where this machine seems to have a GPU."""
    if facts.devices is not None:
        return
    why = facts.why.get("devices", "")
    seen = [*facts.host.nvidia_nodes, *(facts.host.nvidia_pci or ())]
    signs = tuple(Evidence(f"the machine has {sign}", "/dev, /sys/bus/pci") for sign in seen[:4])
    evidence = (Evidence(why, "nvml"), *signs)
    if facts.driver_code in ("driver_error", "timeout", "lost"):
        name = (
            "environment.no-driver.hung"
            if facts.driver_code == "timeout"
            else "environment.no-driver.unusable"
        )
        # A container image may include the driver's library; without a GPU on the machine that is
        # no fault.
        idle = "not loaded" in why and not seen and facts.host.nvidia_pci is not None
        yield WORDINGS.finding(
            "environment.driver.versions" if "versions differ" in why else name,
            severity="info" if idle else "problem",
            confidence="likely" if idle else "definite",
            evidence=evidence,
        )
    elif seen and facts.driver_code == "not_supported":
        inside = facts.host.container is not None
        wanted = bool(facts.host.nvidia_nodes) or (
            facts.build is not None and bool(facts.build.cuda)
        )
        yield WORDINGS.finding(
            "environment.no-driver.library.container"
            if inside
            else "environment.no-driver.library",
            severity="warning" if wanted else "info",
            confidence="definite" if facts.host.nvidia_nodes else "likely",
            evidence=evidence,
        )
    elif seen:
        yield WORDINGS.abstained("driver", why=why)


# ── the installed build ───────────────────────────────────────────────────────────────────────────


def _torch(facts: Facts, build: Build, devices: Sequence[Device]) -> Iterator[Finding | Abstained]:
    """Yields what of the installed torch does not fit the driver and the GPUs that answer."""
    installed = Evidence(
        f"torch {build.version} is installed in {build.prefix}", "torch/version.py"
    )
    if build.cuda == "":
        platform = (
            f"ROCm {build.hip}"
            if build.hip
            else f"XPU {build.xpu}"
            if build.xpu
            else "the CPU only"
        )
        cards = f"{count_text(len(devices), 'GPU')} here: {devices[0].name or 'NVIDIA'}"
        yield WORDINGS.finding(
            "environment.cpu-only",
            {"version": build.version, "platform": platform, "wheels": _wheels(facts, devices)},
            evidence=(installed, Evidence(cards, "nvml")),
        )
    elif build.cuda is None:
        yield WORDINGS.abstained("cuda-of-torch")
    else:
        yield from _driver_age(facts, build.cuda, installed, devices)
        yield from _architecture(facts, build, installed, devices)


def _driver_age(
    facts: Facts, cuda: str, installed: Evidence, devices: Sequence[Device]
) -> Iterator[Finding | Abstained]:
    """Yields a finding where the driver serves an older CUDA than torch is built with."""
    wanted, served = version(cuda), version(facts.driver_cuda)
    if not served:
        yield WORDINGS.abstained("cuda-of-driver", why=facts.why.get("cuda_driver_version"))
        return
    driver = Evidence(
        f"driver {facts.driver_version or 'of unknown version'} supports CUDA {facts.driver_cuda}",
        "nvml",
    )
    needs = Evidence(
        f"torch {facts.build.version if facts.build else ''} is built with CUDA {cuda}"
    )
    if wanted[:1] > served[:1]:
        least = LEAST_DRIVER.get(wanted[0])
        # NVIDIA's forward-compatibility package may bridge the gap on data-centre cards.
        compat = "compat" in facts.environment.get("LD_LIBRARY_PATH", "")
        yield WORDINGS.finding(
            "environment.driver.too-old" if least else "environment.driver.too-old.unknown-cuda",
            {
                "served": facts.driver_cuda,
                "served_major": served[0],
                "wanted_major": wanted[0],
                "least": least,
                "wheels": _wheels(facts, devices),
            },
            confidence="likely" if compat else "definite",
            evidence=(driver, needs, installed),
        )
    elif wanted[:2] > served[:2]:
        compatible = Evidence("torch runs on any driver that supports its major version of CUDA")
        yield WORDINGS.finding(
            "environment.driver.minor",
            {"cuda": cuda, "served": facts.driver_cuda},
            evidence=(driver, needs, compatible),
        )


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> bool | None:
    """Returns whether code for ``architectures`` runs on a GPU of this compute capability.

    The result is None where no architecture is understood.
    """
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
    """Yields a finding on the GPUs that this torch holds no code for."""
    # What torch itself reports is more reliable than what its wheel's name says.
    own = facts.torch.architectures if facts.torch is not None else None
    architectures = own or build.architectures
    if architectures is None:
        yield WORDINGS.abstained("architectures", why=facts.why.get("architectures"))
        return
    without = [
        one
        for one in devices
        if one.capability is not None and runs_on(one.capability, architectures) is False
    ]
    if not without:
        return
    capability = without[0].capability or (0, 0)
    number = f"{capability[0]}.{capability[1]}"
    yield WORDINGS.finding(
        "environment.arch",
        {
            "version": build.version,
            "capability": number,
            "gpu": without[0].name or "this GPU",
            "wheels": _wheels(facts, without),
        },
        evidence=(
            Evidence(f"{names(without)}: compute capability {number}", "nvml"),
            Evidence(f"torch is compiled for {', '.join(architectures)}", "torch"),
            installed,
        ),
        where=names(without),
    )


def _wheels(facts: Facts, devices: Sequence[Device]) -> str:
    known = [device.capability for device in devices if device.capability is not None]
    return wheels(facts.driver_cuda, known)


def wheels(driver_cuda: str | None, known: Sequence[tuple[int, ...]]) -> str:
    """Returns the name of PyTorch's wheel index for a driver, and for the capabilities of GPUs."""
    served = version(driver_cuda)
    if known and min(known) < (7, 5):
        return "cu126"  # the last builds that contain code for Maxwell, Pascal and Volta
    if served and served[0] < 12:
        return "cu118"
    if served and served[0] == 12:
        return "cu128" if not known or max(known) >= (10, 0) else "cu126"
    return "cu130" if served else "cu128"


# ── torch's own answer ────────────────────────────────────────────────────────────────────────────


def _torch_answer(facts: Facts, devices: Sequence[Device]) -> Iterator[Finding]:
    """Yields what torch itself said when it was imported and asked for its GPUs."""
    torch = facts.torch
    if torch is None:
        return
    took = Evidence(f"asked in a child process, which took {duration_text(torch.seconds)}", "torch")
    if torch.failure:
        yield WORDINGS.finding(
            "environment.driver.import",
            {"wheels": _wheels(facts, devices)},
            evidence=(Evidence(torch.failure, "torch"), took),
        )
    elif (
        torch.available is False
        and torch.cuda
        and devices
        and read_visible_devices(facts, devices).positions
    ):
        yield WORDINGS.finding(
            "environment.driver.no-cuda",
            evidence=(
                Evidence(torch.why_not or "torch.cuda.is_available() is False", "torch"),
                Evidence(
                    f"{len(devices)} GPUs answer; torch is built with CUDA {torch.cuda}", "nvml"
                ),
                took,
            ),
        )


def _pinned_libraries(facts: Facts) -> Iterator[Finding]:
    """Yields a finding where a library is not installed in the version that torch pins."""
    other = [
        (name, pinned, facts.packages[name])
        for name, pinned in facts.requires
        if name in facts.packages and version(facts.packages[name]) != version(pinned)
    ]
    if not other or facts.build is None:
        return
    yield WORDINGS.finding(
        "environment.driver.pins",
        {
            "library": other[0][0],
            "version": facts.build.version,
            "pinned": " ".join(f"{name}=={pinned}" for name, pinned, _ in other[:8]),
        },
        evidence=tuple(
            Evidence(f"{name}: torch pins {pinned}, installed is {found}", "installed metadata")
            for name, pinned, found in other[:8]
        ),
        where="libraries",
    )
