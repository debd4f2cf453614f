"""This module knows which screen or dialog opens for which kind of thing.

Screens do not import each other: they ask the application for a kind. Its module is imported
when it is first opened, so that none of them delays the start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ...store.view import by_pid

if TYPE_CHECKING:
    from textual.screen import Screen

    from ...store.view import HostView
    from ..shell.session import Session


class ScreenPlace(NamedTuple):
    """A module below ``gpuscope.tui``, and the class or function there that makes the screen.

    It gets the session first, if ``with_session``. A function may return None where there is
    nothing to open; it has told the user why then.
    """

    module: str
    name: str
    with_session: bool = True


PLACES: dict[str, ScreenPlace] = {
    # What is looked at closely, by its key.
    "readings": ScreenPlace("overview.detail_screen", "DetailScreen"),
    "job": ScreenPlace("trainer.job_screen", "JobScreen"),
    "device": ScreenPlace("device.device_screen", "DeviceScreen"),
    "process": ScreenPlace("trainer.one_process_screen", "OneProcessScreen"),
    "pid": ScreenPlace("app.navigation", "of_process"),
    "processes": ScreenPlace("processes.process_screen", "ProcessScreen"),
    "snapshot": ScreenPlace("snapshot.screen", "SnapshotScreen", with_session=False),
    "profile": ScreenPlace("trainer.profile_screen", "ProfileScreen"),
    # What is asked of a trainer, a process or a device.
    "act": ScreenPlace("trainer.action_dialog", "ActDialog"),
    "stacks": ScreenPlace("trainer.stacks_screen", "StacksScreen"),
    "attach": ScreenPlace("trainer.attach_screen", "AttachScreen"),
    "consent": ScreenPlace("trainer.attach_consent_dialog", "ConsentDialog"),
    "signal": ScreenPlace("processes.signal_dialog", "signal_dialog"),
    "signal_to": ScreenPlace("processes.signal_dialog", "signal_dialog_to"),
    "environment": ScreenPlace("processes.environment_dialog", "EnvironmentDialog"),
    "columns": ScreenPlace("processes.columns_dialog", "ColumnDialog"),
    "holders": ScreenPlace("device.holders_dialog", "HoldersDialog"),
    "snapshot_stack": ScreenPlace("snapshot.stack_dialog", "StackDialog", with_session=False),
    "time_row": ScreenPlace("time.row_dialog", "TimeRowDialog", with_session=False),
    "work": ScreenPlace("time.work_dialog", "WorkDialog", with_session=False),
    # The Doctor, and the Lab, whose dialogs get its runs.
    "pitfall": ScreenPlace("doctor.dialogs", "ExplainDialog", with_session=False),
    "dead_job": ScreenPlace("doctor.dead_job_dialog", "DeadJobDialog", with_session=False),
    "proof": ScreenPlace("doctor.dialogs", "CommandDialog", with_session=False),
    "lab_value": ScreenPlace("lab.dialogs", "ValueDialog", with_session=False),
    "lab_held": ScreenPlace("lab.dialogs", "HeldDialog", with_session=False),
    "lab_quit": ScreenPlace("lab.dialogs", "QuitDialog", with_session=False),
    "lab_repeat": ScreenPlace("lab.dialogs", "RepeatDialog", with_session=False),
    "lab_pitfalls": ScreenPlace("lab.pitfalls_dialog", "PitfallsDialog", with_session=False),
    "lab_tune": ScreenPlace("lab.tune_screen", "TuneScreen"),
    "lab_tune_new": ScreenPlace("lab.tune_dialog", "TuneDialog", with_session=False),
    "lab_recording": ScreenPlace("lab.recording_dialog", "RecordingDialog", with_session=False),
    "lab_run": ScreenPlace("lab.run_dialog", "RunDialog", with_session=False),
    # The program itself.
    "help": ScreenPlace("app.help_screen", "HelpScreen"),
    "settings": ScreenPlace("app.settings_dialog", "SettingsDialog"),
    "word": ScreenPlace("app.word_dialog", "WordDialog", with_session=False),
    "connect": ScreenPlace("hosts.connect_dialog", "ConnectDialog"),
}


def screen_for(kind: str, session: Session, *args: object) -> Screen[Any] | None:
    """Return the screen for this kind of thing; None where there is nothing to open."""
    place = PLACES[kind]
    make = getattr(import_module(f"gpuscope.tui.{place.module}"), place.name)
    screen: Screen[Any] | None = make(session, *args) if place.with_session else make(*args)
    return screen


def of_process(session: Session, host: HostView, pid: int) -> Screen[Any] | None:
    """Return the screen for a process.

    It is the ranks of its job where a probe is in it, else every reading of it.
    """
    job = next((j for j in host.jobs if any(t.definition.pid == pid for t in j.trainers)), None)
    if job is not None:
        return screen_for("job", session, job.key)
    process = by_pid(host.processes, pid)
    return screen_for("readings", session, process.key) if process is not None else None
