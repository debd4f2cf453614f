"""Make the dead jobs of ``tests/data/dead_jobs`` again, each in namespaces of its own.

An index such as ``tests/data/dead_jobs/dev.toml`` says what to do to each job; this starts
the job's program on its ranks, does it, and keeps what is left. Mounts, host names,
addresses and process ids are the job's own, so that nothing of this machine gets into the data. It
needs Linux and root, or unprivileged user namespaces::

    python -m bench.dead_jobs.make tests/data/dead_jobs/dev.toml [NAME ...] --out /tmp/dead
    python -m bench.dead_jobs.make ... --backend nccl --ranks 2 --in-place     # on two GPUs

``DEAD_JOBS_PACKAGES`` may name a folder for what jobs install, which is then installed once. With
``--in-place`` there are no namespaces: paths and the host are replaced in what is text, and
binary dumps keep them. Jobs that mount something need namespaces.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO, Any

from gpuscope import toml

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NODES = {f"node{n:02}": f"10.20.0.{10 + n}" for n in range(1, 5)}
JOB = "4211"
LONGEST_SECONDS = 150.0
DUMP_WAIT_MILLISECONDS = "2500"
"""NCCL's watchdog waits four times as long for the dumps before it ends the process."""
KEPT = ("LD_LIBRARY_PATH", "CUDA_", "NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_")
"""The beginnings of the variables that a job keeps of our environment: where torch's libraries are,
which GPUs it may use, and what NCCL must not use.
"""
PACKAGES = "DEAD_JOBS_PACKAGES"

Job = dict[str, Any]


def main() -> None:
    """Make the jobs that are named, or all of an index."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("index", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, required=True, help="a folder for each job goes here")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--ranks", type=int, default=16, help="use at most so many ranks")
    parser.add_argument("--in-place", action="store_true", help="without namespaces")
    parser.add_argument("--at-once", type=int, default=1, help="make so many jobs at a time")
    parser.add_argument("--longest", type=float, default=LONGEST_SECONDS, help="seconds of a job")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    jobs = list(chosen(args.index, args.names))
    if not args.inside:
        if args.backend == "nccl":
            check_gpus(min(args.ranks, 2))
        with ThreadPoolExecutor(args.at_once) as pool:
            failed = [name for name in pool.map(lambda job: start(job, args), jobs) if name]
        raise SystemExit(f"could not be made: {', '.join(failed)}" if failed else 0)
    for job in jobs:
        job["backend"] = args.backend
        shrink(job, args.ranks)
        out = args.out.resolve() / job["name"]
        Run(job, out, isolated=not args.in_place, longest=args.longest).make()


def start(job: Job, args: argparse.Namespace) -> str:
    """Make a job in a process of its own; return its name if that failed."""
    words = []
    if not args.in_place:
        words = ["unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--kill-child"]
        words += ["--mount-proc", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    words += [sys.executable, "-m", "bench.dead_jobs.make", str(args.index.resolve())]
    words += [job["name"], "--out", str(args.out.resolve()), "--inside"]
    words += ["--backend", args.backend, "--ranks", str(args.ranks)]
    words += ["--longest", str(args.longest), *(["--in-place"] if args.in_place else [])]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as fresh:
        packages = fresh
        if job.get("packages"):  # before the job, which has no network
            packages = os.environ.get(PACKAGES, fresh)
            pip = [sys.executable, "-m", "pip", "install", "-q", "--target", packages]
            if not any(os.scandir(packages)):
                subprocess.run([*pip, *job["packages"]], check=True, cwd=ROOT)
        done = subprocess.run(words, cwd=ROOT, env={**os.environ, PACKAGES: packages})
    out = args.out.resolve() / job["name"]
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    seconds = time.monotonic() - begun
    print(
        f"{job['name']}: {size / 1000:.1f} kB, {seconds:.0f} s, status {done.returncode}",
        flush=True,
    )
    return job["name"] if done.returncode else ""


def check_gpus(least: int) -> None:
    """Stop where torch does not see the GPUs that jobs with NCCL need."""
    import torch

    seen = torch.cuda.device_count()
    if seen < least:
        raise SystemExit(
            f"jobs with NCCL need {least} GPUs, and torch {torch.__version__} sees {seen}: run "
            "them on a host that has them, or leave out --backend nccl"
        )


def chosen(index: Path, names: list[str]) -> Iterator[Job]:
    """Give the jobs of an index that are named, or all."""
    jobs = toml.loads(index.read_text())["job"]
    unknown = set(names) - {job["name"] for job in jobs}
    if unknown:
        raise SystemExit(f"no such job in {index}: {', '.join(sorted(unknown))}")
    yield from (job for job in jobs if not names or job["name"] in names)


def shrink(job: Job, most: int) -> None:
    """Use fewer ranks, where there are fewer GPUs; the last one stands for all that are gone."""
    job["ranks"] = min(job["ranks"], most)
    job["nodes"] = min(job.get("nodes", 1), job["ranks"])
    job["culprit"] = sorted({min(rank, job["ranks"] - 1) for rank in job["culprit"]})


class Run:
    """One job, from its empty folder to what is left of it."""

    def __init__(self, job: Job, out: Path, isolated: bool, longest: float) -> None:
        self.job = job
        self.out = out
        self.isolated = isolated
        self.longest = longest
        self.base = Path("/srv")
        self.port = "29500"
        if not isolated:  # others may run beside it
            place = "/srv" if os.access("/srv", os.W_OK) else None
            self.base = Path(tempfile.mkdtemp(prefix=f"{job['name']}-", dir=place))
            self.job = json.loads(json.dumps(job).replace("/srv/", f"{self.base}/"))
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = str(free.getsockname()[1])
        self.work = self.base / "train"
        self.left = self.work / "left"
        self.tmp = self.base / "tmp"
        self.python = self.base / "venv" / "bin" / "python" if isolated else Path(sys.executable)
        self.nodes = list(NODES)[: job["nodes"]]
        self.first = NODES[self.nodes[0]] if isolated else "127.0.0.1"
        self.each = job["ranks"] // len(self.nodes)
        self.program = job.get("program", "train.py")
        self.words = [self.program, "--config", "config.json"]
        self.agents: list[subprocess.Popen[bytes]] = []
        self.lost: set[int] = set()

    def make(self) -> None:
        if self.isolated:
            isolate(self.base)
        for folder in (self.left, self.tmp, self.base / "data", self.base / "home"):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / self.program, self.work)
        config = {name: self.job[name] for name in ("culprit", "backend")}
        config.update(self.job.get("config", {}))
        (self.work / "config.json").write_text(json.dumps(config))
        self.shell("before")
        launches = {"torchrun": self.torchrun, "spawn": self.spawn}
        launches.get(self.job["launch"], self.srun)()
        self.happen()
        self.wait()
        self.shell("after")
        self.keep()

    def shell(self, when: str) -> None:
        """Run what the index has the shell do before or after the job."""
        words = ["sh", "-ec", self.job.get(when, "")]
        subprocess.run(words, cwd=self.work, env=self.env(), check=True)

    def env(self, **more: str) -> dict[str, str]:
        """Return the environment of a job: nothing of ours."""
        out = {
            "PATH": f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.base / "home"),
            "TMPDIR": str(self.tmp),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",
        }
        if not self.isolated:
            out |= {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
        if self.job["backend"] == "nccl":
            out["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = DUMP_WAIT_MILLISECONDS
        out["PYTHONPATH"] = str(self.base / "packages") if self.isolated else str(ROOT)
        return {**out, **self.job.get("env", {}), **more}

    # ── starting ──────────────────────────────────────────────────────────────────────────────────

    def torchrun(self) -> None:
        """Start an agent for each node, with the ranks' output as the job asks for it."""
        for number, node in enumerate(self.nodes):
            words = ["-m", "torch.distributed.run", f"--nproc-per-node={self.each}"]
            words += [f"--nnodes={len(self.nodes)}", f"--node-rank={number}"]
            if len(self.nodes) > 1 or self.job.get("master"):
                master = self.job.get("master", self.first)
                words += [f"--master-addr={master}"]
            if len(self.nodes) > 1 or self.job.get("master") or not self.isolated:
                words += [f"--master-port={self.port}"]
            words += self.job.get("torchrun", [])
            name = f"{node}.log" if len(self.nodes) > 1 else "job.log"
            self.start(node, [*words, *self.words], self.left / name)

    def spawn(self) -> None:
        """Start one process, which starts the ranks, or the launcher that the job names."""
        words = [*self.job.get("launcher", []), *self.words]
        self.start(self.nodes[0], words, self.left / "job.log")

    def srun(self) -> None:
        """Start each rank by itself, as srun does.

        Each has a file of its own, as with Slurm's ``%t``, or all write to one with ``--label``.
        """
        master = self.job.get("master", self.first)
        for rank in range(self.job["ranks"]):
            node = self.nodes[rank // self.each]
            env = {"RANK": str(rank), "WORLD_SIZE": str(self.job["ranks"]), "MASTER_ADDR": master}
            env |= {"LOCAL_RANK": str(rank % self.each), "MASTER_PORT": self.port}
            env |= {"SLURM_PROCID": str(rank), "SLURM_JOB_ID": JOB, "SLURM_NODELIST": self.nodes[0]}
            env |= {"SLURM_LOCALID": env["LOCAL_RANK"], "SLURM_NODEID": str(rank // self.each)}
            env |= {"SLURM_NTASKS": env["WORLD_SIZE"], "SLURM_JOB_NAME": "train"}
            env |= {"SLURM_NTASKS_PER_NODE": str(self.each)}
            output = self.left / f"slurm-{JOB}_{rank}.out"
            if self.job["launch"] == "label":
                label = self.job.get("label", "{rank}: ").format(rank=rank, node=node)
                self.start(node, self.words, self.left / "job.log", label, **env)
            else:
                self.start(node, self.words, output, **env)

    def start(
        self, node: str, words: list[str], output: Path, label: str = "", **more: str
    ) -> None:
        command = [str(self.python), "-u", *words]
        if self.job.get("gpuscope"):
            watched = [*self.job["gpuscope"], "--", *command]
            command = [str(self.python), "-m", "gpuscope", "run", *watched]
        before = self.job.get("on_node", {}).get(node, ":")
        if self.isolated:
            script = f'hostname {node}; {before}; exec "$@"'
            command = ["unshare", "--uts", "--mount", "sh", "-c", script, "sh", *command]
        with output.open("ab") as file:
            self.agents.append(
                subprocess.Popen(
                    command,
                    cwd=self.work,
                    env=self.env(**more),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if label else file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        if label:
            Thread(target=copy, args=(self.agents[-1].stdout, output, label)).start()

    # ── what happens to it ────────────────────────────────────────────────────────────────────────

    def happen(self) -> None:
        """Do what the job's events say, once its rank 0 has come to the step that is marked."""
        for event in self.job.get("events", []):
            time.sleep(event.get("seconds", 0))
            do = event["do"]
            if do == "mark":
                self.wait_for_mark()
            elif do == "interrupt":
                self.signal(signal.SIGINT)
            elif do == "terminate":
                self.slurm_writes(event.get("text", ""))
                self.signal(signal.SIGTERM)
                time.sleep(event.get("grace", 3))
                for process in list(self.ranks()):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            elif do == "lose-node":
                self.lose_node(event["node"])
                self.slurm_writes(event.get("text", ""))
            elif do == "usr1":
                for process in self.ranks():
                    os.kill(process, signal.SIGUSR1)
            elif do == "py-spy":
                self.py_spy()
            else:
                raise SystemExit(f"{self.job['name']}: no such event: {do}")

    def lose_node(self, node: int) -> None:
        """Kill all that runs on a node at once; nobody says anything of it."""
        agents = {node}
        if self.job["launch"] == "slurm":
            agents = {rank for rank in range(self.job["ranks"]) if rank // self.each == node}
        self.lost |= agents
        pids = [self.agents[number].pid for number in agents]
        for process in [rank for pid in pids for rank in self.ranks(pid)] + pids:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def wait_for_mark(self) -> None:
        end = time.monotonic() + self.longest
        while not (self.tmp / "marked").exists() and time.monotonic() < end:
            if all(agent.poll() is not None for agent in self.agents):
                raise SystemExit(f"{self.job['name']}: ended before its marked step")
            time.sleep(0.1)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the processes that were started, as a terminal or Slurm does."""
        for agent in self.agents:
            with suppress(ProcessLookupError):
                os.killpg(agent.pid, number)

    def ranks(self, agent: int = 0) -> Iterator[int]:
        """Give the processes that run the trainer itself, of one agent or of all."""
        agents = [agent] if agent else [one.pid for one in self.agents]
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            process = int(path.split("/")[2])
            with suppress(OSError):
                words = Path(path).read_bytes().split(b"\0")
                stat = Path(f"/proc/{process}/stat").read_text()
                family = {process, int(stat.rpartition(")")[2].split()[1])}
                ours = self.program.encode() in words and b"torch.distributed.run" not in words
                if ours and family.intersection(agents):
                    yield process

    def py_spy(self) -> None:
        """Write the stacks of each rank into a file of its own, as a user would for a hang."""
        folder = self.left / "stacks"
        folder.mkdir()
        for process in self.ranks():
            with suppress(OSError, StopIteration):
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                rank = next(v[5:].decode() for v in variables if v.startswith(b"RANK="))
                words = [os.environ.get("PY_SPY", "py-spy"), "dump", "--pid", str(process)]
                done = subprocess.run(words, capture_output=True, text=True)
                (folder / f"rank{rank}.txt").write_text(done.stdout or done.stderr)

    def wait(self) -> None:
        """Wait until all have ended; srun stops the others a while after the first failure."""
        end = time.monotonic() + self.longest
        patience = self.job.get("kill_wait", self.longest)
        told: set[int] = set()
        while len(told) < len(self.agents):
            for rank, agent in enumerate(self.agents):
                if rank not in told and agent.poll() is not None:
                    told.add(rank)
                    self.slurm_says(rank, agent.returncode)
                    if agent.returncode:
                        end = min(end, time.monotonic() + patience)
            if time.monotonic() > end:
                end += patience
                ranks = list(self.ranks())
                self.signal(signal.SIGTERM)
                time.sleep(2)
                self.signal(signal.SIGKILL)
                for process in ranks:  # torchrun would have given them 30 seconds
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            time.sleep(0.1)

    # ── what Slurm says, which is simulated ───────────────────────────────────────────────────────

    def slurm_writes(self, text: str) -> None:
        """Append a line of Slurm's to the job's own output."""
        if text:
            now = time.strftime("%Y-%m-%dT%H:%M:%S")
            name = f"slurm-{JOB}.out" if self.job["launch"] == "slurm" else "job.log"
            with (self.left / name).open("a") as file:
                file.write(text.replace("{now}", now).replace("{job}", JOB) + "\n")

    def slurm_says(self, rank: int, status: int) -> None:
        """Append what srun says of a task that did not end well."""
        if self.job["launch"] not in ("slurm", "label") or not status or rank in self.lost:
            return
        names = {-signal.SIGABRT: "Aborted", -signal.SIGBUS: "Bus error"}
        names |= {-signal.SIGSEGV: "Segmentation fault", -signal.SIGTERM: "Terminated"}
        names |= {-signal.SIGKILL: "Killed", -signal.SIGINT: "Interrupt"}
        how = names.get(status, f"Exited with exit code {status}")
        node, local = self.nodes[rank // self.each], rank % self.each
        text = f"srun: error: {node}: task {rank}: {how}"
        if "says" in self.job:  # another launcher
            text = f"{node}: {self.job['says']}"
            text = text.replace("{local}", str(local)).replace("{status}", str(status))
        self.slurm_writes(text)

    # ── keeping ───────────────────────────────────────────────────────────────────────────────────

    def keep(self) -> None:
        """Copy what the job keeps, without empty files and without anything of this machine."""
        shutil.rmtree(self.out, ignore_errors=True)
        kept = self.job.get("keep", ["**/*"])
        paths = {path for pattern in kept for path in self.left.glob(pattern) if path.is_file()}
        for path in sorted(paths):
            data = self.neutral(path.read_bytes())
            if not data:
                continue
            place = self.out / path.relative_to(self.left)
            if path.suffix == ".box":  # two megabytes, most of them zero
                data, place = gzip.compress(data, mtime=0), place.with_suffix(".box.gz")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        if not self.isolated:
            shutil.rmtree(self.base)

    def neutral(self, data: bytes) -> bytes:
        """Return text with the paths and the host of a job in place of this machine's."""
        if self.isolated or b"\0" in data or data[:1] == b"\x80":
            return data
        for old, new in self.names():
            data = data.replace(old.encode(), new.encode())
        return data

    def names(self) -> Iterable[tuple[str, str]]:
        yield str(self.base), "/srv"
        yield sys.prefix, "/srv/venv"
        yield sys.base_prefix, "/opt/python"
        yield os.uname().nodename, "node01"


def copy(source: IO[bytes], output: Path, label: str) -> None:
    """Copy lines with a label before each, as srun does with ``--label``."""
    for line in source:
        with output.open("ab") as file:
            file.write(label.encode() + line)


def isolate(base: Path) -> None:
    """Make the folders, the addresses and the Python that the job sees, in our own namespaces."""
    run = subprocess.check_call
    hosts = "\n".join(["127.0.0.1 localhost", *(f"{ip} {name}" for name, ip in NODES.items())])
    run(["mount", "-t", "tmpfs", "none", str(base)])
    run(["mount", "-t", "tmpfs", "none", "/opt"])
    run(["mount", "-t", "tmpfs", "none", "/dev/shm"])
    run(["ip", "link", "set", "lo", "up"])
    for address in NODES.values():
        run(["ip", "addr", "add", f"{address}/32", "dev", "lo"])
    (base / "hosts").write_text(hosts + "\n")
    run(["mount", "--bind", str(base / "hosts"), "/etc/hosts"])
    (base / "boot").write_text("5d1f0c8e-4211-4d3c-9a57-2b6e8f104211\n")  # black boxes name it
    run(["mount", "--bind", str(base / "boot"), "/proc/sys/kernel/random/boot_id"])
    python = Path("/opt/python")
    python.mkdir()
    run(["mount", "--bind", sys.base_prefix, str(python)])
    venv = base / "venv"
    ours = Path(sysconfig.get_path("purelib"))
    packages = venv / ours.relative_to(sys.prefix)
    for folder in (packages, venv / "bin", base / "upper", base / "under"):
        folder.mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(python / "bin" / Path(sys.executable).resolve().name)
    version = ".".join(map(str, sys.version_info[:3]))
    (venv / "pyvenv.cfg").write_text(f"home = /opt/python/bin\nversion = {version}\n")
    layers = f"lowerdir={ours},upperdir={base / 'upper'},workdir={base / 'under'}"
    run(["mount", "-t", "overlay", "-o", layers, "none", str(packages)])
    for path in packages.glob("*.pth"):  # the one of an editable gpuscope names this machine's path
        path.unlink()
    (packages / "gpuscope").mkdir(exist_ok=True)
    run(["mount", "--bind", str(ROOT / "gpuscope"), str(packages / "gpuscope")])
    (base / "packages").mkdir()
    run(["mount", "--bind", os.environ[PACKAGES], str(base / "packages")])


if __name__ == "__main__":
    main()
