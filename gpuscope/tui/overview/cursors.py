"""Where the cursors of the Overview begin, and what Enter opens in the list of jobs.

They begin on what is selected, else on the worst, which they follow until a user moves one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.view import by_key
from ..shell.selection import device_of, keys_of, on_device
from .job_list import JobList, has_ranks

if TYPE_CHECKING:
    from ...store.view import HostView, TrainerView
    from ..shell.session import Session
    from ..widgets.program import Program
    from ..widgets.table import LiveTable

TAB = "overview"


def rank_at_cursor(jobs: JobList, host: HostView) -> TrainerView | None:
    """Return the worst rank of the job under the cursor."""
    line = jobs.current
    entity = line.entity if line is not None else None
    return by_key(host.trainers, entity.key) if entity is not None else None


def choose_job(jobs: JobList, host: HostView, session: Session) -> None:
    """Select the worst rank of the job that the user has put the cursor on."""
    trainer = rank_at_cursor(jobs, host)
    if trainer is not None:
        session.selection.choose(*keys_of(host, trainer))


def opens(jobs: JobList, host: HostView) -> str:
    """Return what Enter opens in the list of jobs, "" where it opens nothing."""
    from ..shared.job_rows import USER

    line = jobs.current
    if line is None:
        return ""
    if line.folds:
        return "fold them" if jobs.shows_ended else "list each"
    if line.key.startswith(USER):
        return f"processes of {line.key.removeprefix(USER)}"
    return "ranks" if has_ranks(host, line.key) else "readings"


def open_line(jobs: JobList, host: HostView, session: Session, program: Program) -> None:
    """Open the line under the cursor: a job's ranks, a user's processes, what ended."""
    from ..shared.job_rows import USER

    line = jobs.current
    if line is None:
        return
    if line.folds:
        jobs.toggle_ended()
    elif line.key.startswith(USER):
        session.state.process_filter = line.key.removeprefix(USER)
        program.open("processes")
    elif has_ranks(host, line.key):
        program.open("job", line.key)
    elif line.entity is not None:
        program.open("readings", line.entity.key)


def begin(jobs: JobList, devices: LiveTable, host: HostView, session: Session) -> str:
    """Put the cursors on what is selected, else on the worst.

    Returns the list in which the worst is, or "selected".
    """
    if not session.selection.leads(TAB):
        return _go_to_worst(jobs, devices, host, session)
    selection = session.selection
    trainer = by_key(host.trainers, selection.trainer)
    device = device_of(host, trainer) or by_key(host.devices, selection.device)
    if device is not None:
        devices.move_to(device.key)
    job = host.job_of(trainer or on_device(host, device))
    if job is not None and (place := jobs.place_of(job.key)) is not None:
        jobs.choose(place)
    return "selected"


def keep_up(jobs: JobList, devices: LiveTable, host: HostView, session: Session) -> bool:
    """Put the cursor on a GPU that is worse off than the one under it, unless a user chose that.

    What is wrong is often known some readings after the first. Returns whether a job stands still
    and the keyboard is elsewhere: that job is what its user wants to open.
    """
    from .device_rows import worst_device

    if session.selection.leads(TAB):
        return False
    worse = worst_device(host, session.history, devices.cursor_key)
    if worse is not None:
        devices.move_to(worse)
        session.selection.propose(TAB, worse)
    stuck = jobs.worst()
    if stuck is None:
        return False
    if jobs.is_on(stuck):  # the other tabs open on it as well
        device, trainer = keys_of(host, rank_at_cursor(jobs, host))
        if trainer is not None:
            session.selection.propose(TAB, device or session.selection.device, trainer)
    return not (jobs.has_focus and jobs.is_on(stuck))


def _go_to_worst(jobs: JobList, devices: LiveTable, host: HostView, session: Session) -> str:
    """Put the cursors on a job that stands still, and on the GPU that is worst off."""
    from .device_rows import worst_device

    stuck, rank = jobs.worst(), None
    if stuck is not None:
        jobs.choose(stuck)
        rank = rank_at_cursor(jobs, host)
    key = worst_device(host, session.history)
    if key is not None:
        devices.move_to(key)
    device, trainer = keys_of(host, rank)
    if key is not None or trainer is not None:
        session.selection.propose(TAB, device or key, trainer)
    return "devices" if stuck is None else "jobs"
