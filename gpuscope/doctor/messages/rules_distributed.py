"""Messages of process groups, NCCL, DistributedDataParallel and sharding."""

from __future__ import annotations

from .rule import Option as O
from .rule import Rule

GROUP = "The process group, or the environment it needs, is missing"
SHARED = "Two ranks use one device"

RULES = (
    Rule(
        "ddp.unused-lightning",
        ("ddp_find_unused_parameters_true", "it looks like your lightningmodule has parameters"),
        (O("find-unused-parameters", "Parameters took no part in the loss", 0.97, "definite"),),
        pattern=r"lightningmodule has parameters that were not used in producing the loss",
    ),
    Rule(
        "ddp.unused-parameters",
        (
            "expected to have finished reduction in the prior iteration",
            "did not receive grad for rank",
            "parameters that were not used in producing the loss returned by",
        ),
        (
            O("find-unused-parameters", "Parameters took no part in the loss", 0.95, "definite"),
            O(
                "ddp-static-graph-or-nonreentrant",
                "Checkpointing hides which parameters are used",
                0.5,
                when=("checkpointing",),
            ),
        ),
    ),
    Rule(
        "ddp.ready-twice",
        ("to mark a variable ready only once", "has been marked as ready twice", "marked as ready twice"),
        (
            O(
                "ddp-static-graph-or-nonreentrant",
                "Checkpointed or reused parameters are reduced twice",
                0.9,
                "definite",
            ),
            O("find-unused-parameters", "find_unused_parameters and checkpointing exclude each other", 0.4),
            O("fsdp-or-zero", "Sharding does not use DDP's reducer", 0.3),
        ),
    ),
    Rule(
        "ddp.no-group",
        (
            "default process group has not been initialized",
            "default process group is not initialized",
            "init_process_group was not called",
            "torch.distributed is not initialized",
            "distributed package is not initialized",
        ),
        (O("init-process-group-env", GROUP, 0.95, "definite"),),
    ),
    Rule(
        "ddp.environment",
        ("env:// rendezvous", "expected, but not set", "torch.distributed.run"),
        (O("init-process-group-env", GROUP, 0.95, "definite"),),
        pattern=r"rendezvous: environment variable \w+ expected|environment variable (?:rank|world_size|master_addr"
        r"|master_port|local_rank)\w* (?:expected|is not set)",
    ),
    Rule(
        "ddp.environment",
        ("keyerror: 'local_rank'", "keyerror: 'rank'", "keyerror: 'world_size'", "keyerror: 'master_addr'"),
        (O("init-process-group-env", GROUP, 0.9, "definite"),),
    ),
    Rule(
        "ddp.local-rank-argument",
        ("unrecognized arguments: --local_rank", "unrecognized arguments: --local-rank"),
        (O("init-process-group-env", "The launcher passes --local-rank, the script does not take it", 0.9, "likely"),),
    ),
    Rule(
        "ddp.port",
        ("eaddrinuse", "address already in use"),
        (
            O("init-process-group-env", "The rendezvous port is taken", 0.8, "likely"),
            O("kill-zombie-process", "A left-over run still listens on the port", 0.7, "likely"),
        ),
        pattern=r"(?:c10d|tcpstore|distributed|torchrun|master_port|rendezvous|socket\.cpp)[^~]{0,600}"
        r"(?:address already in use|eaddrinuse)"
        r"|(?:address already in use|eaddrinuse)[^~]{0,600}(?:c10d|tcpstore|torchrun)",
    ),
    Rule(
        "ddp.no-gradient",
        ("distributeddataparallel is not needed when a module doesn't have any parameters",),
        (O("find-unused-parameters", "The wrapped module has nothing to train", 0.6, "likely"),),
    ),
    Rule(
        "ddp.timeout-store",
        (
            "timed out waiting for clients",
            "store based barrier",
            "socket timeout",
            "connectionrefused",
            "the client socket has",
            "waiting for clients",
            "nccl communicator was aborted",
        ),
        (
            O(
                "init-process-group-env",
                "Ranks do not find each other: address, port, rank or world size",
                0.5,
                "likely",
            ),
            O("nccl-config", "The network interface is wrong or blocked", 0.45),
            O("distributed-sampler", "A rank left the loop before the others", 0.2),
        ),
        pattern=r"timed out (?:after [^~]{0,20})?waiting for clients|store based barrier[^.]{0,80}(?:timed|timeout)"
        r"|the client socket has (?:timed out|failed)|wait timeout",
    ),
    Rule(
        "nccl.duplicate",
        ("duplicate gpu detected",),
        (
            O("set-device-per-rank", SHARED, 0.95, "definite"),
            O("visible-devices", "CUDA_VISIBLE_DEVICES shows the ranks one device", 0.5),
            O("upgrade-library", "A launcher assigns the devices wrongly", 0.4, words=r"ray|vllm"),
        ),
    ),
    Rule(
        "nccl.timeout",
        (
            "watchdog caught collective operation timeout",
            "nccl communicator was aborted",
            "collective operation timeout",
            "nccl watchdog",
            "some nccl operations have failed or timed out",
        ),
        (
            O(
                "distributed-sampler",
                "Ranks ran different numbers of steps, so one waits for ever",
                0.5,
                unless=("vllm",),
            ),
            O("upgrade-library", "The serving library lost a rank", 0.62, when=("vllm",)),
            O("nccl-config", "The transport stalls, or the timeout is too short", 0.55),
            O(
                "host-memory-limit",
                "A rank was killed by the host",
                0.66,
                "likely",
                words=r"sigkill|signal 9|exitcode ?: ?-9",
            ),
            O("upgrade-library", "A known deadlock of a library", 0.3),
            O("find-unused-parameters", "Ranks reduced different parameters", 0.2, when=("ddp",)),
        ),
    ),
    Rule(
        "nccl.shm",
        ("nccl",),
        (O("shm-size", "NCCL cannot use /dev/shm", 0.9, "likely"),),
        pattern=r"(?:/dev/shm|shared memory|shm)[^.]{0,60}(?:no space left|failed|error|cannot|too small|could not)"
        r"|(?:failed|error|call to|while creating|while attaching)[^.]{0,60}(?:shared memory segment|/dev/shm/nccl"
        r"|posix_fallocate)",
    ),
    Rule(
        "nccl.system",
        ("unhandled system error", "ncclsystemerror"),
        (
            O("shm-size", "NCCL's shared memory is too small or not accessible", 0.56),
            O("nccl-config", "NCCL cannot open its transport", 0.55),
            O("visible-devices", "The chosen devices cannot talk to each other here", 0.40),
            O("upgrade-library", "Another NCCL or torch may be needed", 0.25),
        ),
    ),
    Rule(
        "nccl.memory",
        ("nccl",),
        (
            O("empty-cache", "torch's cache leaves NCCL no room for its buffers", 0.72, "likely"),
            O("reduce-batch-size", "The device is full when NCCL asks for its buffers", 0.60, "likely"),
            O("other-process-holds-gpu", "Another process holds part of the device", 0.35),
            O("set-device-per-rank", SHARED, 0.4),
        ),
        pattern=r"(?:cuda failure|cuda error|cudamalloc|failed to cudacalloc)[^.]{0,60}out of memory",
    ),
    Rule(
        "nccl.cuda",
        ("unhandled cuda error", "ncclunhandledcudaerror"),
        (
            O("driver-cuda-mismatch", "NCCL, driver and CUDA do not fit together", 0.5),
            O("nccl-config", "Peer-to-peer access does not work here", 0.45),
            O("set-device-per-rank", SHARED, 0.42),
            O("visible-devices", "A rank names a device that it cannot see", 0.40),
            O("empty-cache", "NCCL found no room for its buffers", 0.30),
        ),
    ),
    Rule(
        "nccl.invalid",
        ("ncclinvalidusage", "invalid usage", "ncclinvalidargument"),
        (
            O("set-device-per-rank", SHARED, 0.75, "likely"),
            O("visible-devices", "A rank names a device that it cannot see", 0.45),
            O("init-process-group-env", GROUP, 0.35),
            O("nccl-config", "NCCL's settings contradict each other", 0.3),
        ),
        pattern=r"nccl[^~]{0,300}invalid(?:usage| usage|argument)",
    ),
    Rule(
        "nccl.network",
        ("nccl",),
        (
            O("nccl-config", "NCCL's network transport fails", 0.8, "likely"),
            O("init-process-group-env", "Address or interface of the master is wrong", 0.35),
        ),
        pattern=r"nccl[^~]{0,200}(?:net/ib[^~]{0,60}(?:got completion|failed|timeout|async fatal)"
        r"|no socket interface found|bootstrap : no|connect to [^~]{0,60}failed"
        r"|connection (?:closed|refused|reset) by|remote process exited|unexpected disconnect"
        r"|peer access is not supported)",
    ),
    Rule(
        "nccl.remote",
        ("ncclremoteerror", "remote process exited or there was a network error"),
        (
            O("nccl-config", "A peer left, or the network broke", 0.6, "likely"),
            O("host-memory-limit", "A peer may have been killed by the host", 0.4),
        ),
    ),
    Rule(
        "nccl.backend",
        (
            "no backend type associated with device type cpu",
            "distributed package doesn't have nccl",
            "tensors must be cuda and dense",
        ),
        (
            O(
                "move-inputs-to-device",
                "NCCL works on device tensors only",
                0.7,
                "likely",
                words=r"device type cpu|must be cuda",
            ),
            O("wrong-torch-build-cpu-only", "This torch has no NCCL", 0.8, "likely", words=r"doesn't have nccl"),
            O("wrong-backend", "The backend does not fit the tensors", 0.72, "likely"),
        ),
    ),
    Rule(
        "fsdp.clone",
        ("failed to clone() tensor with name",),
        (
            O("fsdp-or-zero", "The full state dict is gathered on one device", 0.85, "likely"),
            O("offload-cpu", "The state dict can be gathered on the host", 0.6, "likely"),
        ),
    ),
    Rule(
        "dp.scalars",
        ("gather along dimension 0, but all input tensors were scalars",),
        (O("benign-warning", "DataParallel joins scalar losses to a vector: harmless", 0.6, "likely"),),
        severity="info",
    ),
    Rule(
        "dp.imbalance",
        ("imbalance between your gpus", "there is an imbalance"),
        (
            O("visible-devices", "Devices of different size share one job", 0.8, "likely"),
            O("ddp-instead-of-dp", "DataParallel is bound by its weakest device", 0.6, "likely"),
            O("dp-imbalance-gpu0", "DataParallel loads its devices unevenly", 0.5, "likely"),
        ),
        severity="warning",
    ),
    Rule(
        "ddp.models-differ",
        (
            "model replicas must have an equal number of parameters",
            "ddp expects same model across all ranks",
            "appears to be different from that of",
        ),
        (
            O("find-unused-parameters", "The ranks' models differ in their parameters", 0.45),
            O("set-device-per-rank", "Ranks may share one device", 0.35),
            O("init-process-group-env", "Ranks may run different scripts or settings", 0.35),
        ),
    ),
    Rule(
        "ddp.desync",
        ("mismatch between collectives", "detected mismatch between", "monitoredbarrier", "uneven inputs"),
        (
            O("distributed-sampler", "Ranks run different numbers of steps or different collectives", 0.6, "likely"),
            O("find-unused-parameters", "Ranks reduce different parameters", 0.4),
            O("nccl-config", "A rank does not answer in time", 0.35),
        ),
    ),
    Rule(
        "nccl.network",
        ("peer access is not supported between these two devices", "peer mapping resources exhausted"),
        (
            O("nccl-config", "Devices cannot reach each other's memory directly", 0.70, "likely"),
            O("visible-devices", "The chosen devices cannot talk to each other here", 0.50),
        ),
    ),
    Rule(
        "ddp.module-device",
        ("device_ids and output_device arguments only work with",),
        (
            O("move-model-to-device", "The module is on the CPU, or on several devices", 0.72, "likely"),
            O("set-device-per-rank", "Each process must choose its device", 0.55),
        ),
    ),
    Rule(
        "ddp.gloo",
        ("connectfullmesh failed", "gloo/transport/tcp"),
        (
            O("nccl-config", "The network interface is wrong or blocked", 0.6, "likely"),
            O("init-process-group-env", "Ranks do not find each other", 0.5),
            O("wrong-backend", "gloo where nccl is meant", 0.3),
        ),
        pattern=r"connectfullmesh failed|gloo/transport/tcp[^~]{0,200}(?:connection (?:closed|reset|refused)"
        r"|timed out|timeout)",
    ),
)
