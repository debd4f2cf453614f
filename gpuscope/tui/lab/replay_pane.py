"""This is the Lab's tab in a replay: the Lab's runs in the recording, and where a live Lab is."""

from __future__ import annotations

import json
import shlex

from textual.app import ComposeResult

from ...lab.config import ConfigError, LabConfig
from ...model.pace import pace_of
from ...store.view import HostView, JobView, by_pid
from ...text import styled
from ...text.styled import Line
from ...text.units import bytes_text, count_text, duration_text
from ..shared.job_rows import loss_text
from ..shell.session import Session
from ..widgets.pane import Pane
from ..widgets.text import Lines
from .rows import setting_of

COMMAND_CELLS, LEAST_CELLS = 28, 60
"""The cells of a command before what it does, and the fewest for both in one line."""


class ReplayLabPane(Pane):
    """The tab in a replay.

    The Lab's runs that are stored on this machine are no part of the recording. Under the badge
    of a replay they would be taken for it, so they are not even read.
    """

    def __init__(self, session: Session, **kwargs: str) -> None:
        super().__init__(session, **kwargs)
        self._about = Lines(classes="panel")
        self._cells = 76

    def compose(self) -> ComposeResult:
        self._about.border_title = "Lab"
        self._about.styles.height = "1fr"
        yield self._about

    def show(self, host: HostView | None) -> None:
        replay = self.session.replay
        recording = str(replay.path) if replay is not None else ""
        runs = recorded_runs(host, self._cells) if host is not None else []
        name = host.name if host is not None else ""
        self._about.show([*runs, *no_lab_lines(name, bool(runs), recording, self._cells)])

    def fit_to(self, width: int, height: int) -> None:
        self._cells = max(20, width - 4)


def recorded_runs(host: HostView, cells: int) -> list[Line]:
    """Return the Lab's trainings that the recording has at this moment, each with its settings."""
    jobs = [job for job in host.jobs if any(t.definition.origin == "lab" for t in job.trainers)]
    if not jobs:
        return []
    out: list[Line] = [
        [
            (f"{count_text(len(jobs), 'run')} of the Lab in this recording", "title"),
            ("  in full on the tabs 1 to 4", "muted"),
        ]
    ]
    for job in jobs:
        config = _config_of(host, job)
        head: Line = (
            setting_of(config, config.model, None)
            if config is not None
            else [(job.title, "text"), ("  its settings were not recorded", "faint")]
        )
        out += styled.hang([], head, cells)
        out += styled.hang([("  ", "text")], [(_figures(job, config), "muted")], cells)
    return [*out, []]


def _figures(job: JobView, config: LabConfig | None) -> str:
    """Return how far a run is, how fast, its loss and its peak, as far as they are known."""
    pace = pace_of(job.trainers)
    losses = [n for t in job.trainers if (n := t.number("loss")) is not None]
    peaks = [
        n for t in job.trainers for a in t.allocators if (n := a.number("peak_allocated_bytes"))
    ]
    asked = f" of {config.steps:,}" if config is not None and config.steps else ""
    parts = [
        f"step {pace.steps_text}{asked}" if pace.steps_text else "no step yet",
        f"median step {duration_text(pace.usual_seconds)}" if pace.usual_seconds else "",
        f"loss {loss_text(losses[0])}" if losses else "",
        f"peak allocated {bytes_text(max(peaks))}" if peaks else "",
        "ended" if all(t.gone is not None for t in job.trainers) else "",
    ]
    return " · ".join(part for part in parts if part)


def _config_of(host: HostView, job: JobView) -> LabConfig | None:
    """Return the settings that the command of a worker has; None where it was not recorded."""
    for trainer in job.trainers:
        process = by_pid(host.processes, trainer.definition.pid)
        try:
            words = shlex.split((process.definition.command or "") if process is not None else "")
            text = words[words.index("--config") + 1]
            return LabConfig.from_mapping(json.loads(text))
        except (ValueError, IndexError, TypeError, AttributeError, ConfigError):
            continue
    return None


def no_lab_lines(host: str, some: bool, recording: str, cells: int) -> list[Line]:
    """Return that a replay has no Lab, and the commands that lead to one.

    ``some`` says that the recording has runs of a Lab, which are told above.
    """
    where = f" on {host}" if host else ""
    about = (
        f"The Lab trains on this machine, now. The recording has what was measured{where} then"
        f"{'' if some else ', and no run of a Lab at this moment'}. The runs that are stored on "
        "this machine are no part of it, so they are not shown here."
    )
    commands = [
        ("gpuscope --lab", "the Lab of this machine, with its stored runs"),
        ("gpuscope lab runs", "a list of these runs"),
    ]
    if recording.endswith(".gsr"):  # a black box has no steps to compare
        commands.append(
            (
                f"gpuscope lab runs compare RUN {shlex.quote(recording)}",
                "a stored run, by its number, and the training of this recording, compared",
            )
        )
    title = "No run can be started in a replay." if some else "A replay has no Lab."
    out: list[Line] = [[(title, "title")]]
    out += [*styled.wrap([(about, "muted")], cells), []]
    for command, does in commands:
        short = len(command) < COMMAND_CELLS and cells >= LEAST_CELLS
        head: Line = [(f"{command:{COMMAND_CELLS}}" if short else "    ", "accent")]
        out += [] if short else styled.wrap([(command, "accent")], cells)
        out += styled.hang(head, [(does, "muted")], cells)
    return out
