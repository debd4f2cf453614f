"""Alerts fire once and clear once, with hysteresis.

They are shown, logged, rung, and handed to the user's command.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from functools import partial

import pytest

from gpuscope import config
from gpuscope.model.alerts import EVENT_SECONDS, Alerts
from gpuscope.model.alerts_settings import AlertSettings
from gpuscope.store.store import Store
from gpuscope.tui.shell.session import Session
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.fakes.waiting import until_true
from tests.tui.pilot import feed, in_loop, make_app, until

HOLD = 5.0


class World:
    """A host with one GPU and one trainer of ours, told sample by sample.

    What fires and clears is kept.
    """

    def __init__(self, **settings: object) -> None:
        self.alerts = Alerts(AlertSettings(for_seconds=HOLD, **settings))  # type: ignore[arg-type]
        self.store: Store = views.store_of([views.hello(), views.host_def(), views.gpu(0)])
        self.tell(*views.trainer(48213, 0, 1, "ada", True, "job-a"))
        self.now = views.END
        self.told: list[tuple[str, str]] = []

    def tell(self, *frames: f.Frame) -> None:
        for frame in frames:
            self.store.apply(views.SOURCE, frame, getattr(frame, "m", 0) / 1e9)

    def tick(self, seconds: float, every: float = 1.0, **device: f.Scalar) -> list[tuple[str, str]]:
        """Time goes on by ``seconds``, with these readings ``every`` second; what changed."""
        before = len(self.told)
        trainer = {key: device.pop(key) for key in list(device) if key in f.TRAINER_COLUMNS}
        for _ in range(int(seconds / every)):
            self.now += every
            gpu = views.device_row(0, 50.0, 90.0, **device)
            row = views.trainer_row(13, 100, 0.5, **trainer)
            sample = f.Sample(
                int(self.now), int(self.now * 1e9), h=[views.host_row()], g=[gpu], t=[row]
            )
            self.tell(sample)
            self.look()
        return self.told[before:]

    def look(self) -> None:
        host = self.store.view().host
        assert host is not None
        history = partial(self.store.history, host.key)
        self.told += [(alert.kind, alert.state) for alert in self.alerts.look(host, history)]


def test_temperature_has_hysteresis_in_value_and_time():
    world = World(temperature_celsius=85)
    assert world.tick(20, temperature_celsius=84) == []
    assert world.tick(4, temperature_celsius=90) == [], "not long enough"
    assert world.tick(2, temperature_celsius=80) == []
    assert world.tick(7, temperature_celsius=86) == [("temperature", "fired")]
    assert [alert.text for alert in world.alerts.active] == ["GPU 0: 86 °C (alert at 85 °C)"]
    for heat in (84, 86, 83, 85, 84):
        assert world.tick(7, temperature_celsius=heat) == [], (
            "between the two thresholds nothing changes"
        )
    assert world.tick(4, temperature_celsius=70) == []
    assert world.tick(1, temperature_celsius=84) == []
    assert world.tick(7, temperature_celsius=70) == [("temperature", "cleared")]
    assert world.alerts.active == []
    assert world.tick(20, temperature_celsius=70) == []


def test_memory():
    world = World(memory_percent=90)
    full, room = int(0.95 * views.TOTAL), int(0.5 * views.TOTAL)
    assert world.tick(7, used_bytes=full) == [("memory", "fired")]
    assert world.tick(20, used_bytes=int(0.89 * views.TOTAL)) == []
    assert world.tick(7, used_bytes=room) == [("memory", "cleared")]


def test_throttle_and_not_what_is_harmless():
    world = World(throttle=True)
    assert world.tick(20, clock_event_reasons=0x1 | 0x4) == [], (
        "idle and the power cap are no fault"
    )
    assert world.tick(7, clock_event_reasons=0x40) == [("throttle", "fired")]
    assert "GPU 0: throttled:" in world.alerts.active[0].text
    assert world.tick(7, clock_event_reasons=0) == [("throttle", "cleared")]


def test_ecc():
    world = World(ecc=True)
    assert world.tick(3, ecc_uncorrected_count=0) == []
    assert world.tick(3, ecc_uncorrected_count=2) == [("ecc", "fired")]
    assert world.tick(3, ecc_uncorrected_count=0) == [("ecc", "cleared")]


def test_xid_clears_after_a_while():
    world = World(xid=True)
    assert world.tick(3, xid_count=2, last_xid=13) == [], (
        "what was there before somebody looked is no news"
    )
    assert world.tick(2, xid_count=3, last_xid=43) == [], (
        "what follows from a program's own error is no alarm"
    )
    assert world.tick(2, xid_count=4, last_xid=79) == [("xid", "fired")]
    assert world.alerts.active[0].text.startswith("GPU 0: XID 79: ")
    assert world.tick(EVENT_SECONDS + 2, xid_count=4, last_xid=79) == [("xid", "cleared")]


def test_stall_of_my_trainer():
    world = World(stall=True)
    assert world.tick(10) == []
    assert world.tick(7, step_age_seconds=400.0, stall_at="train.py:88 load") == [
        ("stall", "fired")
    ]
    assert "stuck at train.py:88 load" in world.alerts.active[0].text
    assert world.tick(7, step_age_seconds=0.2) == [("stall", "cleared")]


def test_a_trainer_of_mine_that_ended_and_one_that_runs_again():
    world = World(gone=True)
    world.tick(2)
    for number in (113, 213, 313, 413):
        world.tell(f.Event(number, "gone", int(world.now * 1e9), "killed by signal 9"))
    world.look()
    assert world.told == [("gone", "fired")]
    assert "has ended: killed by SIGKILL" in world.alerts.active[0].text
    world.tell(*views.trainer(48214, 0, 1, "ada", True, "job-a"))
    assert world.tick(3) == [("gone", "cleared")]


def test_an_end_before_somebody_looked_is_no_news():
    world = World(gone=True)
    for number in (113, 213, 313, 413):
        world.tell(f.Event(number, "gone", int((world.now - 60) * 1e9), "exited"))
    assert world.tick(10) == []


def test_a_lost_gpu_and_one_that_answers_again():
    world = World(lost=True)
    assert world.tick(10) == []
    why = [[10, "used_bytes", "lost", "GPU is lost"]]
    world.tell(f.Sample(int(world.now), int((world.now + 0.5) * 1e9), why=why))
    assert world.tick(4, used_bytes=None) == [], "not long enough"
    assert world.tick(3, used_bytes=None) == [("lost", "fired")]
    assert [alert.text for alert in world.alerts.active] == ["GPU 0: lost: GPU is lost"]
    assert world.tick(7) == [("lost", "cleared")]


def test_idle_tensor_cores_are_not_over_because_the_card_is_full():
    world = World(tensor_idle=True)
    hard = {"tensor_active_percent": 1.8, "sm_active_percent": 92.0, "power_watts": 630.0}
    assert world.tick(10) == []
    assert world.tick(7, **hard) == [("tensor_idle", "fired")]
    assert world.alerts.active[0].text == "GPU 0: tensor idle: likely FP32, mean 1.8 % at 630 W"
    assert world.tick(20, **hard, used_bytes=int(0.99 * views.TOTAL)) == []
    assert world.tick(7) == [("tensor_idle", "cleared")]


@pytest.mark.slow
def test_steps_that_become_slower_are_told_once_for_each_change_and_not_again():
    world, dice = World(slower=True), random.Random(5)

    def pace(step: float, seconds: int) -> list[tuple[str, str]]:
        return [
            one
            for _ in range(seconds // 5)
            for one in world.tick(5, 5.0, step_seconds=step * (1 + 0.02 * dice.gauss(0, 1)))
        ]

    assert pace(0.5, 300) == []
    assert pace(0.8, 1200) == [("slower", "fired"), ("slower", "cleared")]
    assert pace(1.4, 600) == [("slower", "fired"), ("slower", "cleared")]
    world, fired = World(slower=True), [("slower", "fired"), ("slower", "cleared")]
    assert pace(0.5, 600) + pace(0.8, 600) == fired
    assert pace(0.5, 1500) == [], "fast again"
    assert pace(0.9, 1200) == fired


def test_the_alert_of_a_slower_trainer_says_since_when_and_ends_with_the_trainer():
    world = World(slower=True)
    world.tick(200, step_seconds=0.5)
    world.tick(100, step_seconds=0.8)
    (alert,) = world.alerts.active
    assert alert.text.startswith("rank 0 (pid 48213): steps take 1.60 times as long since ")
    assert alert.value == pytest.approx(1.6, abs=0.01)
    gone = f.Event(313, "gone", int(world.now * 1e9), "exited")
    world.tell(gone)
    assert world.tick(3) == [("slower", "cleared")]


def test_an_unknown_reading_neither_fires_nor_clears():
    world = World(temperature_celsius=85, throttle=True, ecc=True, memory_percent=10)
    assert world.tick(7, temperature_celsius=90, used_bytes=None) == [("temperature", "fired")]
    assert world.tick(30, temperature_celsius=None, used_bytes=None, clock_event_reasons=None) == []
    assert len(world.alerts.active) == 1


def test_without_settings_nothing_is_watched():
    world = World()
    assert (
        world.tick(20, temperature_celsius=120, ecc_uncorrected_count=9, step_age_seconds=9e3) == []
    )


# ── the config file ──


def test_the_table_is_read(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(
        '[alerts]\ntemperature_celsius = 85\nstall = true\non_alert = ["notify", "x"]\n'
        "bell = true\n"
    )
    settings, problems = config.load(path)
    assert problems == []
    assert settings.alerts == AlertSettings(
        temperature_celsius=85.0, stall=True, on_alert=("notify", "x"), bell=True
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("temperature_celsius = 900", "a number from 20 to 120"),
        ("temprature = 80", "there are: temperature_celsius"),
        ('stall = "yes"', "true or false"),
        (
            'on_alert = "notify-send hot"',
            'a list of words, because no shell splits it: ["notify-send", …]',
        ),
        ("on_alert = []", "a list of words"),
        ("on_alert = [1]", "a list of words"),
    ],
)
def test_a_wrong_line_says_what_to_do_and_the_rest_holds(tmp_path, line, says):
    path = tmp_path / "config.toml"
    path.write_text(f"rate_hz = 1\n[alerts]\necc = true\n{line}\n")
    settings, problems = config.load(path)
    assert (settings.rate_hz, settings.alerts) == (1.0, AlertSettings(ecc=True))
    assert problems[0].startswith(f"{path}:4: alerts.")
    assert says in problems[0]


def test_alerts_that_are_no_table(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("alerts = true\n")
    assert "write [alerts]" in config.load(path)[1][0]


# ── in the session ──

WRITE = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


def hot(seconds: float) -> f.Sample:
    at = views.END + seconds
    return f.Sample(
        int(at),
        int(at * 1e9),
        h=[views.host_row()],
        g=[views.device_row(0, 50.0, 90.0, temperature_celsius=91)],
    )


@in_loop
async def test_a_screen_tells_that_steps_became_slower_by_the_history_that_it_has():
    frames: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0)]
    frames += views.trainer(48213, 0, 1, "ada", True, "job-a")

    def sample(number: int) -> f.Sample:
        row = views.trainer_row(13, 10 * number, 0.5 if number < 150 else 0.8)
        return f.Sample(number, int((1000 + 2 * number) * 1e9), h=[views.host_row()], t=[row])

    frames += [sample(number) for number in range(299)]
    alerts = AlertSettings(slower=True)
    app = make_app(frames, settings=config.Settings(alerts=alerts))
    async with app.run_test(size=(160, 30)) as pilot:
        feed(app, sample(299))
        await until(pilot, "alert: rank 0 (pid 48213): steps take 1.60 times as long")


@in_loop
async def test_it_is_shown_rung_logged_and_given_to_the_command(tmp_path):
    path = tmp_path / "alerts.jsonl"
    alerts = AlertSettings(
        temperature_celsius=85,
        for_seconds=1,
        bell=True,
        on_alert=(sys.executable, "-c", WRITE, str(path)),
    )
    app = make_app(views.vacant(4.0), settings=config.Settings(alerts=alerts))
    rung = []
    app.bell = lambda: rung.append(1)  # type: ignore[method-assign]
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        for seconds in (1, 2, 3):
            feed(app, hot(seconds))
            await asyncio.sleep(0.05)
            await pilot.pause()
        await until(pilot, "GPU 0: 91 °C (alert at 85 °C)")
        await until_true(lambda: path.exists() and path.read_text().endswith("\n"), 10)
        await pilot.press("6")
        await until(pilot, "alert: GPU 0: 91 °C")
    assert rung == [1]
    (told,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (told["alert"], told["state"], told["value"], told["threshold"]) == (
        "temperature",
        "fired",
        91.0,
        85.0,
    )
    assert told["device_uuid"].startswith("GPU-")
    assert told["host"] == "node-17"


async def run_command(*argv: str, seconds: float = 10.0, live: bool = True) -> list[str]:
    from gpuscope.tui.shell.alerts import AlertWatch

    session = Session(views.store_of([views.hello(), views.host_def(), views.gpu(0)]))
    settings = AlertSettings(
        temperature_celsius=85, for_seconds=0, on_alert=argv, on_alert_seconds=seconds
    )
    watch = AlertWatch(settings, session.notices, lambda: live)
    assert session._store is not None
    session._store.apply(views.SOURCE, hot(1), 0.0)
    watch.look(session._store.view().hosts)
    while watch._running:
        await asyncio.sleep(0.01)
    watch.close()
    return [notice.text for notice in session.notices.all]


@in_loop
async def test_a_command_that_is_missing_fails_or_hangs_is_told_and_ended():
    assert any(
        "cannot start /nonexistent/x" in text for text in await run_command("/nonexistent/x")
    )
    assert any(
        "ended with 3" in text
        for text in await run_command(sys.executable, "-c", "raise SystemExit(3)")
    )
    told = await run_command("sh", "-c", "sleep 30 & sleep 30", seconds=0.5)
    assert any("did not end within 500 ms, and was stopped" in text for text in told)


@in_loop
async def test_the_words_of_the_command_reach_no_shell(tmp_path):
    path = tmp_path / "made"
    await run_command(sys.executable, "-c", "pass", f"; touch {path}", f"$(touch {path})")
    assert not path.exists()


@in_loop
async def test_in_a_recording_nothing_is_started(tmp_path):
    path = tmp_path / "made"
    told = await run_command("touch", str(path), live=False)
    assert any("91 °C" in text for text in told)
    assert not path.exists()
