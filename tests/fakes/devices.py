"""A made-up host whose devices report all columns: test data, not measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuscope.wire import frames as f
from tests.fakes import views

READINGS: dict[str, f.Scalar] = {
    "sm_occupancy_percent": 42.0,
    "dram_active_percent": 41.0,
    "integer_active_percent": 24.0,
    "fp64_active_percent": 0.0,
    "fp32_active_percent": 2.8,
    "fp16_active_percent": 1.5,
    "pcie_tx_bytes_per_second": 12_000_000,
    "pcie_rx_bytes_per_second": 70_000_000,
    "nvlink_tx_bytes_per_second": 9_800_000_000,
    "nvlink_rx_bytes_per_second": 9_800_000_000,
    "memory_temperature_celsius": 66,
    "slowdown_margin_celsius": 26,
    "energy_joules": 9.1e8,
    "ecc_corrected_count": 0,
    "ecc_corrected_lifetime_count": 0,
    "ecc_uncorrected_lifetime_count": 0,
    "remapped_correctable_count": 0,
    "remapped_uncorrectable_count": 0,
    "remap_pending": 0,
    "remap_failed": 0,
    "pcie_replay_count": 0,
    "xid_count": 0,
    "last_xid": None,
}
FACTS: dict[str, Any] = {
    "architecture": "Hopper",
    "memory_bus_bits": 6144,
    "max_memory_clock_mhz": 3201,
    "vbios_version": "96.00.A5.00.01",
    "ecc_enabled": True,
    "ecc_pending": True,
    "mig_enabled": False,
    "mig_pending": False,
    "mig_instances": "",
    "default_power_limit_watts": 700.0,
    "min_power_limit_watts": 200.0,
    "max_power_limit_watts": 700.0,
    "slowdown_celsius": 87,
    "shutdown_celsius": 92,
    "persistence": True,
    "compute_mode": "default",
    "numa_node": "0",
    "cpu_affinity": "0-23,48-71",
    "nvlink_states": "1" * 18,
    "fabric": "completed",
}


def whole(frames: list[f.Frame], **readings: f.Scalar) -> list[f.Frame]:
    """Return the same frames, with all columns of the devices; ``readings`` for all of them."""
    out: list[f.Frame] = []
    for frame in frames:
        if isinstance(frame, f.Def) and frame.gpu is not None:
            index = frame.gpu.index
            ways = " ".join(
                "X" if i == index else "NV18" if i // 4 == index // 4 else "SYS" for i in range(8)
            )
            peers = " ".join("X" if i == index else "yes" for i in range(8))
            frame = replace(
                frame,
                gpu=replace(frame.gpu, minor=index, topology=ways, peer_access=peers, **FACTS),
            )
        elif isinstance(frame, f.Sample):
            for row in frame.g:
                for column, value in {**READINGS, **readings}.items():
                    row[1 + f.DEVICE_COLUMNS.index(column)] = value
        out.append(frame)
    return out


def training(seconds: float = 20.0, **readings: f.Scalar) -> list[f.Frame]:
    """Return eight GPUs, most of which train."""
    return whole(list(views.training(seconds)), **readings)
