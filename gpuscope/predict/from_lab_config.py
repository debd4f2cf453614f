"""Turn the Lab's switches into a request for a prediction, and a fix into the Lab's switches."""

from __future__ import annotations

from ..lab.config import ConfigError, LabConfig
from ..lab.toggles import PREDICTED
from ..model.allocator_settings import DEFAULT, AllocatorSettings
from .request import CUDA_GRAPHS, SEARCHING, Request
from .whatif import MemoryFix

_TRANSLATED = ("model", "checkpoint", "optimizer")
"""Switches that a request has under the same name, with other values."""
_SHARED = tuple(
    name for name, toggle in PREDICTED.items() if name == toggle.name and name not in _TRANSLATED
)


def request_of(config: LabConfig, architecture: str, ranks: int = 2) -> Request:
    """Return the request for a prediction of a run with these switches on a GPU.

    ``ranks`` is used if the switches do not set the number of ranks.
    """
    several = config.parallel in ("dp", "ddp", "fsdp")
    return Request(
        config.preset("cuda"),
        checkpoint=int(config.checkpoint),
        optimizer=None if config.factory else config.optimizer,
        sharding=config.parallel,
        ranks=(config.nproc or ranks) if several else 1,
        compile=config.compile != "off",
        cuda_graphs=config.compile in CUDA_GRAPHS,
        max_autotune=config.compile in SEARCHING,
        bucket_views=config.parallel == "ddp",
        architecture=architecture,
        **{name: getattr(config, name) for name in _SHARED},
    )


def settings_of(config: LabConfig) -> AllocatorSettings:
    """Return the allocator's settings of such a run."""
    return (
        AllocatorSettings(expandable=config.expandable_segments)
        if config.expandable_segments
        else DEFAULT
    )


def config_with(config: LabConfig, fix: MemoryFix) -> LabConfig | str:
    """Return the switches with a fix applied, or why there is no switch for it."""
    if fix.settings is not None:
        return config.changed("expandable_segments", fix.settings.expandable)
    request = fix.request
    if request is None or request.checkpoint > 1 or request.sharding in ("zero1", "zero2"):
        return "the Lab has no setting for it"
    before = request_of(config, request.architecture, request.ranks)
    if request.sequence != before.sequence or request.resolution != before.resolution:
        return "the Lab has no setting for it"
    try:
        for name in _SHARED:
            if getattr(request, name) != getattr(before, name):
                config = config.changed(name, getattr(request, name))
        if request.checkpoint != before.checkpoint:
            config = config.changed("checkpoint", bool(request.checkpoint))
        if request.optimizer is not None and request.optimizer != before.optimizer:
            config = config.changed("optimizer", request.optimizer)
        if request.sharding != before.sharding:
            config = config.changed("parallel", request.sharding).changed("nproc", request.ranks)
    except ConfigError as error:
        return str(error)
    return config
