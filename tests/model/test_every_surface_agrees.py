"""No surface contradicts another about a GPU.

There is one fake driver with one state at a time, and every surface is asked.

The readings come from the real collector over the fake library; the screens see them through the
real wire and store.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import pytest

from gpuscope.agent.environment import gather
from gpuscope.cli import cuda_order
from gpuscope.cli.commands import oneline
from gpuscope.cli.commands.devices import document as devices_document
from gpuscope.cli.commands.devices import text as devices_text
from gpuscope.cli.commands.ps import document as ps_document
from gpuscope.cli.commands.ps import text as ps_text
from gpuscope.cli.commands.wait import ProcessWait
from gpuscope.cli.local_look import look
from gpuscope.collect import processes
from gpuscope.doctor import environment_devices, environment_topology, live
from gpuscope.doctor.finding import Finding
from gpuscope.exit_status import ExitStatus
from gpuscope.export import page, table
from gpuscope.model.alerts import Alerts
from gpuscope.model.alerts_settings import AlertSettings
from gpuscope.model.cuda_devices import visible_in_order
from gpuscope.model.device_state import HANGS, OF_TRAININGS, judge
from gpuscope.model.job_state import job_state, worst_of_jobs
from gpuscope.model.stalls import find_stall
from gpuscope.report.host import Watched
from gpuscope.report.host import chapter as chapter_of_host
from gpuscope.store.view import HistoryOf, HostView, View
from gpuscope.tui.background.doctor_watch import DoctorWatch
from gpuscope.tui.device import text as device_text
from gpuscope.tui.device.load_text import load_lines
from gpuscope.tui.hosts.rows import host_row
from gpuscope.tui.hosts.summary import Grade, summarise
from gpuscope.tui.overview.detail_screen import detail_lines
from gpuscope.tui.overview.device_rows import device_row
from gpuscope.tui.overview.empty_states import problems
from gpuscope.tui.processes.entries import entries, state_of
from gpuscope.tui.processes.idle import Idleness
from gpuscope.tui.processes.text import order_lines
from gpuscope.tui.shared.job_rows import job_lines
from gpuscope.tui.theme import THEMES, Tokens
from gpuscope.wire import frames as f
from gpuscope.wire.environment import Device, Facts, Host, Xid
from tests.fakes import jobs, views
from tests.fakes.nvml import GIB, FakeNvml, FakeProcess
from tests.fakes.views import flat

TOTAL = FakeNvml(gpus=1).gpus[0].total
TOKENS = Tokens(THEMES[0])
WATCHED = AlertSettings(
    memory_percent=97,
    throttle=True,
    ecc=True,
    lost=True,
    spinning=True,
    filling=True,
    starved=True,
    tensor_idle=True,
    for_seconds=0.0,
)


@dataclass(frozen=True)
class State:
    """What is done to GPU 0, and what each surface is to say of it.

    ``word`` is that of the screens and --oneline.
    """

    name: str
    readings: dict[str, object]
    word: str
    kind: str
    held: int | None = None
    """What a process of ours holds there; None where nobody is on it."""
    lost: bool = False
    hangs: str = ""
    """The driver's call that does not return."""
    severity: str | None = None
    """Of the row in ``devices``."""
    finding: tuple[str, str] | None = None
    """The doctor's pitfall and how grave it is."""
    live: tuple[str, str] | None = None
    """What it says while it watches, where that is something else."""
    alert: str | None = None
    grade: Grade = Grade.FINE
    unowned: bool = False
    tight: bool = False
    """Its memory is drawn in the colour of a warning."""


BUSY = {"used": 20 * GIB, "utilisation": 97}
STATES = [
    State("well", BUSY, "ok", "ok", held=20 * GIB),
    State(
        "at its power limit",
        {**BUSY, "event_reasons": 0x4, "sm_clock": 1200},
        "ok",
        "ok",
        held=20 * GIB,
    ),
    State("free", {"used": 0, "utilisation": 0}, "free", "idle", grade=Grade.IDLE),
    State(
        "idle",
        {"used": 20 * GIB, "utilisation": 0},
        "idle",
        "idle",
        held=20 * GIB,
        grade=Grade.IDLE,
    ),
    State(
        "lost",
        {},
        "lost",
        "bad",
        lost=True,
        severity="problem",
        finding=("gpu-health", "problem"),
        alert="lost",
        grade=Grade.BROKEN,
    ),
    State(
        "a call that does not return",
        BUSY,
        "hung",
        "bad",
        hangs="nvmlDeviceGetMemoryInfo_v2",
        severity="unchecked",
        finding=("gpu-health", "problem"),
        alert="lost",
        grade=Grade.BROKEN,
    ),
    State(
        "a device that does not say who it is",
        BUSY,
        "hung",
        "bad",
        hangs="nvmlDeviceGetUUID",
        severity="unchecked",
        finding=("gpu-health", "problem"),
        alert="lost",
        grade=Grade.BROKEN,
    ),
    State(
        "three uncorrected errors",
        {**BUSY, "ecc": 3},
        "ECC",
        "warn",
        held=20 * GIB,
        severity="warning",
        finding=("gpu-health", "warning"),
        alert="ecc",
        grade=Grade.WARNING,
    ),
    State(
        "a row that cannot be replaced",
        {**BUSY, "remapped": (0, 1, 0, 1)},
        "remap failed",
        "bad",
        held=20 * GIB,
        severity="problem",
        finding=("gpu-health", "problem"),
        alert="lost",
        grade=Grade.BROKEN,
    ),
    State(
        "full at 98 %",
        {"used": TOTAL * 98 // 100, "utilisation": 97, "reserved": GIB},
        "full",
        "warn",
        held=TOTAL * 98 // 100,
        live=("other-process-holds-gpu", "warning"),
        alert="memory",
        grade=Grade.TIGHT,
        tight=True,
    ),
    State(
        "nearly full at 96 %",
        {"used": TOTAL * 96 // 100, "utilisation": 97, "reserved": GIB},
        "ok",
        "ok",
        held=TOTAL * 96 // 100,
        tight=True,
    ),
    State(
        "slowed by heat",
        {**BUSY, "event_reasons": 0x20},
        "throttled",
        "warn",
        held=20 * GIB,
        severity="warning",
        finding=("gpu-clocks", "warning"),
        alert="throttle",
        grade=Grade.WARNING,
    ),
    State(
        "400 MiB of nobody's",
        {"used": 400 << 20, "utilisation": 0},
        "idle",
        "idle",
        unowned=True,
        finding=("kill-zombie-process", "warning"),
        grade=Grade.IDLE,
    ),
]


@pytest.fixture(autouse=True)
def outside_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing hides the owners, wherever this runs."""
    monkeypatch.setattr(processes, "pid_namespace_note", lambda root="/": None)


def seen(hangs: bool = False) -> HostView:
    """What the verbs and the screens are told."""
    found = look(1.5 if hangs else 10.0, want_trainers=False, directories=())
    assert found.complete != hangs
    return found.host


def facts_of(timeout: float = 10.0, **environment: str) -> Facts:
    """What the doctor is told, likewise."""
    return replace(gather(timeout=timeout, environ=environment), host=Host(), xids=())


def assert_ps_says(host: HostView, state: State) -> None:
    """Check that ``ps`` lists who holds the device, and says when it could not be looked at."""
    problems = ps_document.find_problems(host)
    listed = ps_document.document(host, problems)
    silent = state.lost or bool(state.hangs)
    assert [row["severity"] for row in problems] == (["unchecked"] if silent else [])
    assert [
        (row["pid"], use["index"], use["used_bytes"])
        for row in listed["processes"]
        for use in row["devices"]
    ] == ([(os.getpid(), 0, state.held)] if state.held else [])
    assert ("No process here uses a GPU" in ps_text.text(listed)) == (not state.held and not silent)


@pytest.mark.parametrize("state", STATES, ids=[state.name for state in STATES])
def test_all_say_the_same_of_a_device(state: State) -> None:
    ours = [FakeProcess(os.getpid(), used=state.held, gpu=0)] if state.held else []
    fake = FakeNvml(gpus=1, processes=ours)
    fake.set(0, **state.readings)
    with fake.install(), fake.hang(state.hangs, 0) if state.hangs else nullcontext():
        if state.lost:
            fake.lose(0)
        host = seen(bool(state.hangs))
        facts = facts_of(1.5 if state.hangs else 10.0, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    (device,) = host.devices

    # the screens
    judged = judge(host, device)
    assert (judged.word, judged.kind) == (state.word, state.kind)
    assert f" {state.word}" in flat([device_row(host, device, TOKENS).cells["state"]])
    cells = device_row(host, device, TOKENS).cells
    assert (cells["used"].full[0][1] == "warn") == state.tight
    assert ("warn" in {token for _, token in cells["vram"].draw(40, TOKENS.glyphs)}) == state.tight
    live_host = replace(host, link=replace(host.link, state="live"))
    in_fleet = host_row(summarise(live_host), TOKENS).cells["memory"]
    assert (in_fleet[0][1] == "warn") == state.tight  # type: ignore[index]
    assert state.word in flat(device_text.state_lines(host, device, 120)[:1])
    assert f"state {state.word}" in " ".join(flat(detail_lines(host, device)).split())
    assert bool(problems(host, filtered=True)) == (state.kind == "bad")
    summary = summarise(host)
    assert summary.grade == state.grade
    assert summary.free == (state.word == "free")
    assert (
        "held by no visible process" in flat(device_text.process_lines(host, device, 20, 120))
    ) == state.unowned

    # the verbs
    rows = devices_document.find_problems(host)
    assert {row["severity"] for row in rows} == ({state.severity} if state.severity else set())
    printed = devices_text.text(host, rows)
    assert ("free  GPU 0" in printed) == (state.word == "free")
    assert ("full  GPU 0" in printed) == (state.word == "full")
    assert ("held by no visible process" in printed) == state.unowned
    said = oneline.line(host)
    assert (state.word in said.split()) == (
        state.kind in ("warn", "bad") or state.word == "free"
    ) or " " in state.word
    assert state.word in said or state.word in ("ok", "idle")
    assert_ps_says(host, state)

    # alerts, the exporter, the doctor
    assert [alert.kind for alert in Alerts(WATCHED).look(host)] == (
        [state.alert] if state.alert else []
    )
    samples = page.draw(View(1, (host,)), page.Memory(), page.SeriesLimits()).samples
    assert set(samples[table.DEVICE_UP.name].values()) == {0 if state.lost or state.hangs else 1}
    seen_live = [
        (one.pitfall, one.severity) for one in live.examine(host).findings if one.severity != "info"
    ]
    assert seen_live == [one for one in [state.live or state.finding] if one and not state.unowned]
    found = [
        one
        for one in environment_devices.judge(facts)
        if getattr(one, "severity", "info") != "info"
    ]
    assert [(one.pitfall, one.severity) for one in found] == (
        [state.finding] if state.finding else []
    )  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("number", "severity", "of_the_doctor"),
    [
        (79, "warning", "warning"),
        (13, "warning", "info"),
        (45, None, "info"),
        (500, "warning", "info"),
    ],
)
def test_all_judge_an_xid_error_alike(
    number: int, severity: str | None, of_the_doctor: str
) -> None:
    with FakeNvml(gpus=1).install():
        before = seen()
    readings = {**before.devices[0].readings, "xid_count": 1, "last_xid": number}
    host = replace(before, devices=(replace(before.devices[0], readings=readings),))

    rows = devices_document.find_problems(host)
    assert [(row["severity"], f"XID {number}: " in row["reason"]) for row in rows] == (
        [(severity, True)] if severity else []
    )
    document = devices_document.document(host, rows)
    assert document["devices"][0]["last_xid_words"].startswith(f"XID {number}: ")
    pieces = [piece for line in device_text.health_lines(host.devices[0], 120) for piece in line]
    (token,) = [token for text, token in pieces if f"XID {number}: " in text]
    assert token == ("warn" if severity else "text")
    alerts = Alerts(AlertSettings(xid=True, for_seconds=0.0))
    assert alerts.look(before) == []
    assert [alert.kind for alert in alerts.look(host)] == (["xid"] if severity else [])

    card = Device(0, UUIDS[0], "NVIDIA H200", pci="00000000:18:00.0")
    facts = Facts(devices=(card,), xids=(Xid("0000:18:00", number, 1),))
    (found,) = [one for one in environment_devices.judge(facts) if isinstance(one, Finding)]
    assert (found.pitfall, found.severity) == ("gpu-health", of_the_doctor)


# ── what the training on a device makes of it ──


def changed(frames: list[f.Frame], **columns: f.Scalar) -> list[f.Frame]:
    """The same frames with these readings of every device."""
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        for values in sample.g:
            for column, value in columns.items():
                values[1 + f.DEVICE_COLUMNS.index(column)] = value
    return frames


@pytest.mark.parametrize(
    ("use", "blamed"),
    [
        ({"sm_percent": 40.0}, False),
        ({"sm_percent": 0.0, "used_bytes": 4 * GIB}, True),
        ({"used_bytes": 4 * GIB}, False),
        ({"used_bytes": GIB // 8}, True),
    ],
    ids=["computes", "is idle", "may compute", "is small"],
)
def test_tensor_cores_are_not_called_idle_where_somebody_else_may_compute(
    use: dict[str, f.Scalar], blamed: bool
) -> None:
    process = f.ProcDef(51120, 9, views.WALL - 90000, "lin", "python", "python other.py", 1, False)
    beside = [f.Def(150, proc=process), f.Def(250, use=f.UseDef(150, 10))]
    host, history = beside_a_process(beside, use)
    assert (judge(host, host.devices[0], history).word == "tensor idle") is blamed
    left_open = [one.missing for one in live.examine(host, history).abstained]
    assert left_open == [] if blamed else len(left_open) == 1
    said = " ".join(left_open)
    assert blamed or "those of GPU 0 are active 1.8 % of the time, and another process" in said
    assert blamed or said.endswith(f"gpuscope why {jobs.FIRST_PID}")


@pytest.mark.parametrize(("job", "blamed"), [("another", False), ("job-r", True)])
def test_tensor_cores_are_called_idle_beside_a_rank_of_the_same_job_only(
    job: str, blamed: bool
) -> None:
    """The other may be the one that multiplies in float32."""
    process, _, rank, _ = views.trainer(51150, 4, 5, "ada", True, job)
    allocator = f.AllocDef(350, 0, "GPU-00000000-0000-0000-0000-000000000000", 10)
    beside = [process, f.Def(250, use=f.UseDef(150, 10)), rank, f.Def(450, alloc=allocator)]
    host, history = beside_a_process(beside, {"sm_percent": 40.0})
    assert (judge(host, host.devices[0], history).word == "tensor idle") is blamed


def beside_a_process(beside: list[f.Frame], use: dict[str, f.Scalar]) -> tuple[HostView, HistoryOf]:
    """Return a host whose first device works hard for a job, with a process beside it."""
    frames = changed(jobs.ranks(), **HARD)
    first = next(n for n, frame in enumerate(frames) if isinstance(frame, f.Sample))
    frames[first:first] = beside
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        sample.u.append(views.row("u", 250, **use))
    store = views.store_of(frames)
    return views.host_in(store), partial(store.history, views.SOURCE)


@dataclass(frozen=True)
class Trained:
    """What the trainings on the devices do, and what each surface is to say of GPU 0."""

    name: str
    frames: Callable[[], list[f.Frame]]
    word: str
    reason: str
    pitfall: str
    grade: Grade
    severity: str
    alert: str
    urgent: bool = False
    """Its training ends here soon: it is drawn as grave as a device that is lost."""


HARD = {"tensor_active_percent": 1.8, "sm_active_percent": 92.0, "power_watts": 630.0}
TRAINED = [
    Trained(
        "hung at 100 %",
        lambda: changed(jobs.ranks(stalled=True), utilization_percent=100.0, sm_active_percent=1.5),
        "spinning",
        "for rank 3 in a collective",
        "hang-in-loader",
        Grade.STALLED,
        "problem",
        "spinning",
    ),
    Trained(
        "tensor cores idle at full power",
        lambda: changed(jobs.ranks(), **HARD),
        "tensor idle",
        "likely FP32, mean 1.8 % at 630 W",
        "tensor-cores-idle",
        Grade.WARNING,
        "warning",
        "tensor_idle",
    ),
    Trained(
        "memory that runs out in seconds, on a card with room",
        lambda: jobs.ranks(leaks=0),
        "filling",
        "out of memory in ~9 s, about 19 steps",
        "detach-loss-accumulation",
        Grade.PROBLEM,
        "problem",
        "filling",
        urgent=True,
    ),
    Trained(
        "full, and too little is known of its memory",
        lambda: changed(jobs.ranks(seconds=10), used_bytes=int(0.98 * views.TOTAL)),
        "full",
        "free of",
        "reduce-batch-size",
        Grade.TIGHT,
        "warning",
        "memory",
    ),
]


@pytest.mark.parametrize("trained", TRAINED, ids=[trained.name for trained in TRAINED])
def test_all_say_the_same_of_a_device_whose_training_is_not_well(trained: Trained) -> None:
    store = views.store_of(trained.frames())
    host = views.host_in(store)
    history = partial(store.history, views.SOURCE)
    device = host.devices[0]

    # the screens
    judged = judge(host, device, history)
    assert (judged.word, judged.kind) == (trained.word, "warn")
    assert trained.reason in judged.reason
    row = device_row(host, device, TOKENS, True, history).cells
    token = "bad" if trained.urgent else "warn"
    assert f"{getattr(TOKENS.glyphs, token)} {trained.word} " in flat([row["state"]])
    assert row["state"][0][1] == token, "not green"
    if trained.word == "spinning":
        assert row["load"][0][1] == "muted", "a load that is no progress is not loud"
    assert trained.word in flat(device_text.state_lines(host, device, 120, history)[:1])
    assert f"state {trained.word}" in " ".join(flat(detail_lines(host, device, history)).split())
    told = load_lines(device, 120, 20, TOKENS.glyphs, judged)
    assert "too small or too few" not in flat(told)
    if trained.word == "spinning":
        assert "spinning for rank 3 in a collective: the load is no progress" in flat(told)
    summary = summarise(host, (), history)
    assert summary.grade == trained.grade
    (job,) = host.jobs
    of_job = job_state(host, job, history)
    assert of_job.word == ("stalled" if trained.word == "spinning" else trained.word)
    assert of_job.kind == ("bad" if trained.urgent or trained.word == "spinning" else "warn")
    assert summary.runs()[0].state == of_job
    (line,) = job_lines(host, history=history)
    assert line.kind == of_job.kind
    (process, *_) = entries(host, history, Idleness())
    if trained.word == "filling":
        assert state_of(process, TOKENS.glyphs)[0] == (f"{TOKENS.glyphs.bad} filling", "bad")
    assert (worst_of_jobs(host, history) == "bad") == (of_job.kind == "bad"), "the header"

    # the verbs
    assert trained.word in oneline.line(host)
    printed = devices_text.text(host, devices_document.find_problems(host))
    assert f"{trained.word}  GPU 0" in printed
    assert trained.reason in printed
    (row_of_device, *_) = devices_document.document(host, [])["devices"]
    assert row_of_device["state"]["word"] == trained.word
    assert devices_document.exit_code(devices_document.find_problems(host)) == ExitStatus.OK
    in_ps = ps_document.document(host, [])
    assert in_ps["processes"][0]["devices"][0]["state"] == row_of_device["state"]
    if trained.word in OF_TRAININGS - HANGS:
        assert f"{trained.word} on GPU 0: {trained.reason}" in ps_text.text(in_ps)

    # the report
    at = partial(store.host_at, views.SOURCE)
    watched = Watched(host=host, history=history, at=at, begin=0.0, report=None)
    of_report = chapter_of_host(watched, "node", "Recording")
    (gpus,) = (one for one in of_report.sections if one.title == "GPUs and ranks")
    assert gpus.parts[0].rows[0][-1] == f"{judged.word}: {judged.reason}"
    assert gpus.parts[0].tones[0] == judged.kind

    # alerts, the exporter, the doctor and the badge of its tab
    fired = [one for one in Alerts(WATCHED).look(host) if one.device_uuid == device.key]
    assert [one.kind for one in fired] == [trained.alert]
    if trained.alert != "memory":
        assert fired[0].text == f"GPU 0: {judged.word}: {judged.reason}"
    samples = page.draw(View(1, (host,)), page.Memory(), page.SeriesLimits()).samples
    states = samples[table.DEVICE_STATE.name]
    assert {labels[-1] for labels in states} >= {trained.word}
    found = [one for one in live.examine(host, history).findings if one.severity != "info"]
    assert [(one.pitfall, one.severity) for one in found][:1] == [
        (trained.pitfall, trained.severity)
    ]
    assert any("GPU 0" in one.where or "GPU 0" in one.title for one in found) or (
        trained.word == "spinning"
    )
    watch = DoctorWatch(lambda: None, lambda: False)
    watch.prepare()
    watch.look(host, history)
    problems_of, warnings, *_ = watch.counts()
    assert (problems_of if trained.severity == "problem" else warnings) >= 1


def test_all_say_that_a_job_hangs_in_nccl_though_its_gpus_are_busy() -> None:
    host = views.host_of(jobs.ranks(stalled=True))
    stall = find_stall(host.trainers)
    assert stall is not None
    for device, trainer in zip(host.devices, host.trainers, strict=True):
        assert (device.number("utilization_percent") or 0) > 90
        behind = trainer.definition.rank == 3
        assert judge(host, device).word == ("stalled" if behind else "spinning")
        verdict = ProcessWait(trainer.definition.pid, None)(host, 0.0)
        assert verdict is not None
        assert verdict.code == ExitStatus.STALLED
    assert summarise(host).grade == Grade.STALLED
    in_ps = ps_document.document(host, ps_document.find_problems(host))
    stuck = {row["trainer"]["rank"] for row in in_ps["processes"] if row["trainer"]["stall_at"]}
    assert stuck == {trainer.definition.rank for trainer in host.trainers}
    told = ps_text.text(in_ps)
    assert told.count("stuck at") == 1
    assert told.count("waits for rank 3 at ") == len(host.trainers) - 1
    assert {one.kind for one in Alerts(AlertSettings(stall=True, for_seconds=0.0)).look(host)} == {
        "stall"
    }
    samples = page.draw(View(1, (host,)), page.Memory(), page.SeriesLimits()).samples
    assert set(samples[table.STALLED.name].values()) == {1}
    grave = [one for one in live.examine(host).findings if one.severity == "problem"]
    assert any("rank 3" in one.title for one in grave)


# ── which GPUs a process sees ──

UUIDS = [f"GPU-{index + 1:08x}-0000-4000-8000-000000000000" for index in range(3)]
SHAPES = [
    (None, [0, 1, 2]),
    ("", []),
    ("-1", []),
    ("2,0", [2, 0]),
    (" 1 , 2 ", [1, 2]),
    ("0,0", []),
    ("1,7,0", [1]),
    ("0,,1", [0]),
    ("1gpu", [1]),
    ("gpu-00000002", []),
    (f"{UUIDS[2]},GPU-00000001", [2, 0]),
    ("GPU-0", []),
    ("GPU-00000002,0", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "wanted"), SHAPES)
def test_all_see_the_same_gpus(value: str | None, wanted: list[int]) -> None:
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    fake = FakeNvml(gpus=3, processes=[FakeProcess(os.getpid(), used=GIB, gpu=0)])
    with fake.install():
        host = seen()
    assert [device.definition.uuid for device in host.devices] == UUIDS

    (row,) = cuda_order.rows(host, {os.getpid(): environment})
    assert [one["index"] for one in row["ordinals"]] == wanted
    trained_on = visible_in_order(host.devices, environment)
    assert trained_on is not None
    assert [device.definition.index for device in trained_on] == wanted

    process = next(one for one in host.processes if one.definition.pid == os.getpid())
    inside = replace(process, definition=replace(process.definition, container=None))
    said = flat(order_lines(host, inside, environment))
    assert [said.count(f"GPU {index} ") for index in range(3)] == [
        int(index in wanted) for index in range(3)
    ]
    assert ("it sees no GPU" in said) == (not wanted)

    devices = tuple(Device(index, uuid, "NVIDIA H200") for index, uuid in enumerate(UUIDS))
    facts = Facts(devices=devices, environment=environment, xids=())
    assert [device.index for device in environment_topology.visible(facts)] == wanted
    complaints = [
        one for one in environment_devices.judge(facts) if one.pitfall == "visible-devices"
    ]
    read_all = value is None or len(wanted) == len(value.split(","))
    assert bool(complaints) == (not read_all)
