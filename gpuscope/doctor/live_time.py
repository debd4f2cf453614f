"""Judges where a step's time goes: copies, communication, slow ranks, launches, skipped steps.

Shares of a step are measured on the device where such measurements exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..model.device_trainings import STARVED
from ..model.late_rank import LateRank, late_rank
from ..model.ranks import name_of
from ..model.step_time import input_wait, shares_of
from ..model.stragglers import HostPaced, one_works_longest
from ..model.time_cause import BARS
from ..model.time_ledger import recent
from ..store.view import JobView, TrainerView
from ..text.units import duration_text, percent_text
from . import effects
from .finding import Evidence, Finding, Fix
from .live_causes import at_line, is_of_late_rank, of_ledger, own_line
from .live_input import steady_ranks, workers_fixes
from .live_scene import MIN_STEPS, WORDINGS, Findings, LiveScene, place

COPIES, MANY_COPIES = 0.10, 0.20
LISTED = BARS["copies-in"].told
TALKS, TALKS_MUCH = 0.25, 0.40
SM_LOW = 20.0
SHORT_STEP = 0.01
"""Seconds; a shorter step gives the GPU little to do, whatever else it waits for."""
SKIPPED_STEPS, SKIPPED_SHARE = 10, 0.05
SETTLED = 2.0
"""The scaler has settled after this many times as many good steps as it had skipped."""


def copies(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding on copies to the device that nothing overlaps.

    Where the clock of the training thread shows that it waits for them, ``live_causes`` tells it.
    """
    for trainer in steady_ranks(job)[:1]:
        if any(row.name == "copy" and row.share >= LISTED for row in recent(trainer).rows):
            continue
        share = shares_of([trainer]).get("h2d")
        took = trainer.number("h2d_seconds")
        if share is None or took is None or share < COPIES:
            continue
        text = f"{duration_text(took)} a step are copies from host to device: {percent_text(share)}"
        yield WORDINGS.finding(
            "live.copies",
            {"share": percent_text(share)},
            where=place(scene, trainer),
            rank=share,
            severity="warning" if share >= MANY_COPIES else "info",
            evidence=(Evidence(text, "probe"),),
        )


def communication(scene: LiveScene, job: JobView) -> Findings:
    """Yield a finding on collectives that do not overlap with compute, where no rank is slower.

    Ranks on a CPU also wait for its cores, and the readings cannot tell the two apart.
    """
    ranks = steady_ranks(job)
    if len(ranks) < 2:
        return
    share = shares_of(ranks).get("communication")
    if share is None or share < TALKS or one_works_longest(ranks):
        return
    if late_rank(ranks, scene.history) is not None:
        return
    took = max(value for t in ranks if (value := t.number("communication_seconds")) is not None)
    on_gpu = any(t.definition.cuda for t in ranks)
    text = (
        f"mean of {len(ranks)} ranks: {percent_text(share)} of a step, up to "
        f"{duration_text(took)}, is exposed communication"
    )
    yield WORDINGS.finding(
        "live.communication",
        {"share": percent_text(share)},
        where=place(scene, ranks[0]),
        rank=share,
        severity="warning" if share >= TALKS_MUCH and on_gpu else "info",
        evidence=(
            Evidence(text, "probe"),
            Evidence(
                "no rank is behind the others: the transport is slow, or there is too little "
                "compute between collectives",
                "probe",
            ),
        ),
    )


def slow_rank(scene: LiveScene, job: JobView) -> Findings:
    """Yields a finding on the rank that the others wait for, as grave as what that costs."""
    ranks = steady_ranks(job)
    found = late_rank(ranks, scene.history, scene.host)
    if found is not None:
        yield from of_late_rank(scene, job, ranks, found)


def of_late_rank(
    scene: LiveScene, job: JobView, ranks: Sequence[TrainerView], found: LateRank
) -> Findings:
    """Yields the same of a rank that is known to be late."""
    slow, paced = found.trainer, found.paced
    if paced is not None:
        yield _late_launches_finding(scene, slow, paced)
        return
    evidence = [Evidence(found.text, "probe")]
    judged = of_ledger(scene, slow, recent(slow), found)
    of_late = [one for one in judged if is_of_late_rank(one) and one.cause.name == "input"]
    input_of_late = of_late[0].finding if of_late else None
    fixes: Sequence[Fix] = ()
    if input_of_late is not None:
        fixes = input_of_late.fixes
        evidence = [*input_of_late.evidence, *evidence]
    elif _is_mostly_input(found):
        fixes = workers_fixes(scene, slow)
    name = "ranks.slow_input" if fixes else "ranks.straggler"
    if found.odd is not None and not fixes:  # the line that takes the time says more than advice
        fixes = own_line(found.odd.row, recent(slow))
        evidence += [at_line(*found.odd.row.places[0], recent(slow))] if fixes else []
    evidence += _of_its_devices(scene, job, ranks, slow)
    if name == "ranks.straggler" and any(
        one.source == "nvml" and "shared" in one.text for one in evidence
    ):
        name = "ranks.shared_device"
    effect = input_of_late.effect if input_of_late is not None and found.slow is None else None
    yield WORDINGS.finding(
        name,
        {"who": name_of(slow).capitalize(), "pid": slow.definition.pid},
        [*fixes, *WORDINGS.fixes(["equal-work"], {})],
        severity="warning" if found.warns else "info",
        confidence="likely",
        evidence=tuple(evidence),
        where=place(scene, slow),
        rank=found.share,
        effect=effect or effects.of_late_rank(found),
    )


def _is_mostly_input(late: LateRank) -> bool:
    slow = late.slow
    if slow is None:
        return False
    return slow.mostly == "input" and slow.mostly_seconds > 0.5 * slow.late_seconds


def _of_its_devices(
    scene: LiveScene, job: JobView, ranks: Sequence[TrainerView], slow: TrainerView
) -> Iterator[Evidence]:
    """Yield what is odd about the GPU of a late rank: others work on it, or its clock is slower."""
    for device in scene.devices(slow):
        foreign = scene.others(device, job)
        alike = all(scene.others(d, job) for t in ranks if t is not slow for d in scene.devices(t))
        if foreign and not alike:
            pids = ", ".join(str(process.definition.pid) for process, _ in foreign[:4])
            yield Evidence(f"GPU {device.definition.index} is shared with pid {pids}", "nvml")
        clock = scene.mean(device, "sm_clock_mhz")
        peers = [
            v
            for t in ranks
            if t is not slow
            for d in scene.devices(t)
            if (v := scene.mean(d, "sm_clock_mhz")) is not None
        ]
        if clock is not None and peers and clock < 0.9 * max(peers):
            text = f"its SM clock is {clock:.0f} MHz, the others' {max(peers):.0f} MHz"
            yield Evidence(text, "nvml")


def _late_launches_finding(scene: LiveScene, slow: TrainerView, paced: HostPaced) -> Finding:
    index = paced.device.definition.index
    what = "SM activity" if paced.by_sms else "GPU-Util"
    return WORDINGS.finding(
        "ranks.host_paced",
        {"who": name_of(slow)},
        evidence=(
            Evidence(f"the others wait for {name_of(slow)} in every step", "probe"),
            Evidence(f"{what} of its GPU {index}: {paced.percent:.0f} %", "nvml"),
        ),
        where=place(scene, slow),
        rank=0.0,
    )


def launch_bound(scene: LiveScene, job: JobView) -> Findings:
    """Yield a finding where a GPU is in use most of the time but its SMs are hardly active.

    Its kernels are short then, and launching them takes most of the time.
    """
    ranks = steady_ranks(job)
    for trainer in ranks[:1]:
        devices = scene.devices(trainer)
        if not trainer.definition.cuda or not devices:
            continue
        if scene.look(trainer) is not None:
            continue  # it has seen the kernels, and how long the device waits for launches
        device = devices[0]
        wait, step = input_wait(trainer)
        shares = shares_of([trainer])
        if (
            max(shares.get("input", 0.0), shares.get("h2d", 0.0), shares.get("communication", 0.0))
            >= STARVED
        ):
            continue
        if "input" not in shares and (
            not step or (step >= SHORT_STEP if wait is None else wait >= STARVED * step)
        ):
            continue  # nothing rules out that the input is the cause
        sm, load = (
            scene.mean_of_job(trainer, device, "sm_active_percent"),
            scene.mean_of_job(trainer, device, "utilization_percent"),
        )
        if sm is None:
            if load is not None and load < 50:
                yield WORDINGS.abstained("launch-bound")
            continue
        if sm >= SM_LOW or scene.others(device, job):
            continue
        tensor = scene.mean_of_job(trainer, device, "tensor_active_percent")
        evidence = [
            Evidence(
                f"SM activity {sm:.1f} %"
                + (f", GPU-Util {load:.0f} %" if load is not None else "")
                + (f", tensor cores active {tensor:.1f} %" if tensor is not None else ""),
                "nvml",
            )
        ]
        if step:
            part = (
                ", without a DataLoader"
                if wait is None
                else f", of which input is {percent_text(min(1.0, wait / step))}"
            )
            evidence.append(Evidence(f"{duration_text(step)} a step on average{part}", "probe"))
        yield WORDINGS.finding(
            "live.launch_bound",
            {"sm": _small_percent_text(sm)},
            evidence=tuple(evidence),
            where=place(scene, trainer),
            rank=1 - sm / 100,
        )


def _small_percent_text(sm: float) -> str:
    return f"{sm:.0f} %" if sm >= 1 else "less than 1 %"


def skipped_steps(scene: LiveScene, job: JobView) -> Findings:
    """Yield a finding where the grad scaler keeps skipping steps.

    Infinite gradients cause this. A new scaler also skips a few steps at first, and then no more.
    """
    for trainer in steady_ranks(job)[:1]:
        left_out, step = trainer.number("skipped_steps"), trainer.number("step")
        if left_out is None or step is None or left_out < SKIPPED_STEPS:
            continue
        share = left_out / (step + left_out)
        if share < SKIPPED_SHARE or _scaler_has_settled(scene, trainer, left_out):
            continue
        lately = scene.rise(trainer, "skipped_steps")
        text = (
            f"{left_out:.0f} of {step + left_out:.0f} steps were skipped because of inf or NaN "
            f"gradients: {percent_text(share)}"
        )
        evidence = [
            Evidence(text + (f"; {lately:.0f} in the last minute" if lately else ""), "probe")
        ]
        evidence.append(
            Evidence("a healthy scaler skips a few steps at first, then about one in 2,000")
        )
        yield WORDINGS.finding(
            "live.skipped_steps",
            {"share": percent_text(share)},
            where=place(scene, trainer),
            evidence=tuple(evidence),
            rank=share,
        )


def _scaler_has_settled(scene: LiveScene, trainer: TrainerView, left_out: float) -> bool:
    """Returns whether the last step that was left out lies many steps back."""
    counts, steps = scene.known(trainer, "skipped_steps", None), scene.known(trainer, "step", None)
    # The two histories may begin at different times, but both end now.
    both = list(zip(reversed(counts), reversed(steps), strict=False))
    since = [step for count, step in both if count == left_out]
    return bool(since) and since[0] - since[-1] >= max(MIN_STEPS, SETTLED * left_out)
