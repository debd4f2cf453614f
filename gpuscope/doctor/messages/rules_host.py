"""Messages of the host: loader workers, shared memory, the OOM killer, pinned memory, and CPU allocations."""

from __future__ import annotations

from .rule import Option as O
from .rule import Rule

HOST = "The host's memory, or this job's share of it, ran out"
PAGES = "On Windows every worker loads torch's libraries again, and each copy is backed by the page file"
WORKERS = "Each loader worker holds batches and a copy of the data set"
SHM = "/dev/shm is too small for the loader's batches"

RULES = (
    Rule(
        "host.worker-killed",
        ("is killed by signal: killed", "killed by signal: 9", "are killed by signal"),
        (
            O("host-memory-limit", HOST, 0.80, "likely"),
            O("num-workers", WORKERS, 0.66, "likely"),
            O("shm-size", SHM, 0.3),
            O("memory-leak-in-user-list", "A list in the data set or loop grows on the host", 0.25),
        ),
        pattern=r"killed by signal:? ?(?:killed|9|sigkill)",
    ),
    Rule(
        "host.worker-signal",
        ("killed by signal: seg", "killed by signal: abort", "killed by signal: term", "unexpected segmentation fault"),
        (
            O("num-workers", "A loader worker crashed; with 0 workers the main process shows where", 0.62, "likely"),
            O("host-memory-limit", HOST, 0.66, "likely", words=r"signal: term"),
            O("host-memory-limit", HOST, 0.45),
            O("shm-size", SHM, 0.46),
            O("upgrade-library", "A library that the workers use crashes", 0.40),
        ),
        pattern=r"killed by signal: (?:seg|abort|term)|unexpected segmentation fault encountered in worker",
    ),
    Rule(
        "host.crash",
        ("signals.sigsegv", "segmentation fault (core dumped)", "signal 11 (sigsegv)"),
        (
            O("upgrade-library", "A compiled library crashes: versions that do not belong together", 0.5),
            O("driver-cuda-mismatch", "Driver and CUDA runtime do not fit together", 0.4),
            O("num-workers", "A crash in a loader's library shows with 0 workers", 0.3),
        ),
    ),
    Rule(
        "host.bus-error",
        (
            "bus error",
            "out of shared memory",
            "sigbus",
            "bus error (core dumped)",
            "code = -7",
            "exitcode: -7",
            "exitcode : -7",
        ),
        (
            O("shm-size", SHM, 0.95, "likely"),
            O("num-workers", "Fewer workers need less shared memory", 0.5),
            O("host-memory-limit", HOST, 0.35),
        ),
        pattern=r"(?:killed by signal: bus error|unexpected bus error|bus error \(core dumped\)"
        r"|insufficient shared memory"
        r"|sigbus|(?:return code|exitcode)[ =:]{0,3}-7(?!\d))",
    ),
    Rule(
        "host.shm",
        (
            "shared memory object",
            "unable to write to file </torch",
            "torch_shm_manager",
            "unable to open shared memory",
            "shm_open",
            "shared memory file",
            "unable to mmap",
            "unable to resize",
            "no space left on device",
        ),
        (
            O("shm-size", SHM, 0.85, "likely"),
            O("num-workers", "Fewer workers need fewer shared files", 0.5),
            O(
                "host-memory-limit",
                "The host has no memory left for shared files",
                0.45,
                "likely",
                words=r"cannot allocate memory",
            ),
            O("host-memory-limit", HOST, 0.3),
        ),
        pattern=r"shared memory object|no space left on device[^~]{0,120}(?:/torch_|/dev/shm)"
        r"|(?:/dev/shm|torch_\d|multiprocessing|dataloader)[^~]{0,600}no space left on device"
        r"|unable to write to file ?<?/torch|torch_shm_manager"
        r"|unable to open shared memory|shm_open|shared memory file|unable to (?:mmap|resize)[^.]{0,80}(?:shm"
        r"|torch_|bytes)",
    ),
    Rule(
        "host.files",
        ("too many open files", "received 0 items of ancdata"),
        (
            O(
                "process-limits",
                "Each tensor from a worker is an open file: the limit of open files is reached",
                0.75,
                "likely",
            ),
            O("num-workers", "Fewer workers keep fewer files open", 0.65, "likely"),
            O("shm-size", "The sharing strategy keeps a descriptor for each tensor", 0.68, "likely"),
        ),
        pattern=r"ancdata|too many open files[^~]{0,300}(?:worker|torch)"
        r"|(?:torch|dataloader|multiprocessing)[^~]{0,1500}too many open files",
    ),
    Rule(
        "host.worker-exit",
        ("exited unexpectedly",),
        (
            O("num-workers", "A loader worker died; with 0 workers its error is shown", 0.72, "likely"),
            O("host-memory-limit", HOST, 0.58, "likely"),
            O("shm-size", SHM, 0.40),
        ),
        pattern=r"dataloader worker[^.]{0,80}exited unexpectedly",
    ),
    Rule(
        "host.pin-thread",
        ("pin memory thread exited unexpectedly", "pin_memory_thread", "pin_memory.py"),
        (
            O("pin-memory", "The thread that pins batches died", 0.85, "likely"),
            O("host-memory-limit", HOST, 0.5),
            O("num-workers", "Less prefetched data needs less pinned memory", 0.4),
        ),
        pattern=r"pin memory thread exited|caught \w+ in pin memory thread",
    ),
    Rule(
        "host.pinned",
        ("cachinghostallocator", "cudahostalloc", "cudahostregister", "pinned memory", "pin_memory"),
        (
            O("pin-memory", "Pinned memory of the host ran out, not the device's", 0.86, "likely"),
            O("host-memory-limit", HOST, 0.55, "likely"),
        ),
        pattern=r"(?:cachinghostallocator|cudahostalloc|cudahostregister|_pin_memory|pin_memory\("
        r"|pinned memory)[^~]{0,700}(?:out of memory|invalid argument|resource|failed)",
    ),
    Rule(
        "host.cpu-allocation",
        ("defaultcpuallocator", "not enough memory: you tried to allocate"),
        (
            O("host-memory-limit", HOST, 0.85, "likely"),
            O("num-workers", WORKERS, 0.45, when=("loader",)),
            O(
                "reduce-seq-length-or-resolution",
                "One tensor on the host is of a size that speaks for its shape",
                0.9,
                "likely",
                words=r"allocate (?:[1-9]\d{11,}|[6-9]\d{10}) bytes",
            ),
            O("reduce-seq-length-or-resolution", "One tensor on the host is too large", 0.40),
            O("reduce-batch-size", "A batch is too large for the host", 0.30),
        ),
    ),
    Rule(
        "host.allocation",
        (
            "memoryerror",
            "posix_memalign(&data",
            "unable to allocate",
            "std::bad_alloc",
            "cannot allocate memory",
            "[errno 12]",
        ),
        (
            O("host-memory-limit", HOST, 0.80, "likely"),
            O("num-workers", WORKERS, 0.5, when=("loader",)),
            O("num-workers", WORKERS, 0.3),
        ),
        pattern=r"(?<!outof)memoryerror|posix_memalign\(&data|unable to allocate [\d.]+ ?[kmgt]i?b|std::bad_alloc"
        r"|\[errno 12\]"
        r"|os\.fork\(\)[^~]{0,100}cannot allocate memory",
    ),
    Rule(
        "host.page-file",
        ("paging file is too small", "winerror 1455", "error code: <1455>"),
        (
            O("host-memory-limit", "The page file is too small", 0.80, "likely"),
            O("num-workers", PAGES, 0.86, "likely", words=r"error loading|spawn|worker|dataloader"),
            O("num-workers", PAGES, 0.75, "likely"),
            O("pin-memory", "Pinned batches of every worker count against the page file", 0.35),
        ),
    ),
    Rule(
        "host.killed",
        (
            "exitcode: -9",
            "exitcode : -9",
            "return code = -9",
            "exited with code -9",
            "oom-kill",
            "oom_kill",
            "out of memory: killed process",
            "exit code 137",
            "oomkilled",
            "sigkill",
            "signal 9",
            "signal: 9",
            "exits with return code = -9",
            "status 137",
            "killed process",
            "died with <signals.sigkill",
        ),
        (
            O("host-memory-limit", "The host killed the process; its memory is the usual reason", 0.85, "likely"),
            O("num-workers", WORKERS, 0.35),
            O("offload-cpu", "What is offloaded needs room on the host", 0.30, when=("deepspeed",)),
            O("fsdp-or-zero", "Every rank holds a whole copy on the host", 0.32, when=("deepspeed", "fsdp", "ddp")),
            O(
                "load-checkpoint-map-location-cpu",
                "Every rank loads the whole checkpoint",
                0.32,
                when=("loading", "weights-loading", "resume"),
            ),
        ),
        pattern=r"exitcode ?: ?-9|(?:return code|exit code|code|status|exitcode)[ =:]{0,3}(?:-9(?!\d)|137)|oom-kill"
        r"|oom_kill|out of memory: killed|oomkilled|sigkill(?!_handler)|signal:? 9(?!\d)|killed process \d",
    ),
    Rule(
        "host.killed",
        ("sigkill_handler",),
        (
            O(
                "host-memory-limit",
                "The launcher ends its processes after one was lost, often to the host's memory",
                0.6,
            ),
            O("num-workers", WORKERS, 0.3),
        ),
        pattern=r"sigkill_handler\]? ?killing subprocess",
    ),
    Rule(
        "host.killed-plain",
        ("killed",),
        (
            O("host-memory-limit", "The host killed the process; its memory is the usual reason", 0.7, "likely"),
            O("num-workers", WORKERS, 0.3),
        ),
        pattern=r"(?:\d+ killed (?:python|\./)|killed(?:$|\(core))",
    ),
    Rule(
        "loader.few-workers",
        ("does not have many workers which may be a bottleneck",),
        (
            O("num-workers", "The loader has too few workers", 0.9, "likely"),
            O("pin-memory", "Batches are copied from memory that is not pinned", 0.3),
        ),
        severity="warning",
    ),
    Rule(
        "loader.many-workers",
        ("our suggested max number of worker in current system",),
        (O("num-workers", "There are more loader workers than cores", 0.85, "likely"),),
        severity="warning",
    ),
    Rule(
        "loader.fork",
        ("cannot re-initialize cuda in forked subprocess",),
        (
            O("num-workers", "A loader worker touches CUDA after a fork", 0.8, "likely"),
            O("move-inputs-to-device", "The data set makes tensors on the device; the loop can move them", 0.5),
        ),
    ),
    Rule(
        "loader.spawn",
        (
            "ran out of input",
            "can't pickle",
            "can't get attribute",
            "dataloader timed out",
        ),
        (
            O(
                "num-workers",
                "A loader worker cannot start, or does not answer; with 0 workers there is none",
                0.75,
                "likely",
            ),
            O("host-memory-limit", HOST, 0.25),
        ),
        pattern=r"dataloader timed out after"
        r"|(?:dataloader|_multiprocessing|spawn|popen)[^~]{0,600}(?:ran out of input|can'?t pickle"
        r"|can'?t get attribute)",
    ),
    Rule(
        "host.killed-line",
        ("killed",),
        (
            O(
                "host-memory-limit",
                "The shell reports a killed process; the host's memory is the usual reason",
                0.75,
                "likely",
                when=("killed-line",),
            ),
            O("num-workers", WORKERS, 0.3, when=("killed-line",)),
        ),
        pattern=r"killed",
    ),
    Rule(
        "host.job-limit",
        (
            "exceeded job memory limit",
            "exceeded memory limit",
            "cgroup out-of-memory handler",
            "memory cgroup out of memory",
        ),
        (
            O("host-memory-limit", "The job's share of the host's memory is used up", 0.92, "likely"),
            O("num-workers", WORKERS, 0.35),
        ),
    ),
    Rule(
        "loader.profile",
        ("_multiprocessingdataloaderiter", "_singleprocessdataloaderiter", "train_dataloader_next", "get_train_batch"),
        (
            O("num-workers", "The profile shows time in the loader", 0.62, "likely"),
            O("pin-memory", "Batches are copied from memory that is not pinned", 0.35),
        ),
        pattern=r"(?:processdataloaderiter|train_dataloader_next|get_train_batch)[^~]{0,60}\d+\.\d+",
        severity="info",
    ),
    Rule(
        "loader.pageable",
        ("pageable -> device", "pageable->device"),
        (O("pin-memory", "Batches are copied from pageable memory", 0.7, "likely"),),
        severity="info",
    ),
)
