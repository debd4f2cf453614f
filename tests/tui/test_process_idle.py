"""Which process of a busy GPU idles, and since when; by its own share, not by the device's load."""

from __future__ import annotations

from gpuscope.store.store import Store
from gpuscope.tui.processes.idle import Idleness
from gpuscope.tui.processes.rows import Choice, Listing, listing
from gpuscope.wire import frames as f
from tests.fakes import views

BEGAN = views.END - 3600.0
NOTEBOOK, TRAINER = 4001, 4002


class World:
    """GPU 0 is busy all the time; a notebook and a trainer hold it, told each 5 s."""

    def __init__(self) -> None:
        self.store: Store = views.store_of([views.hello(), views.host_def(), views.gpu(0)])
        self.now = BEGAN
        self.idleness = Idleness()
        self.asked = 0
        for n, pid in ((150, NOTEBOOK), (151, TRAINER)):
            self.tell(
                f.Def(n, proc=f.ProcDef(pid, pid, views.WALL, "ada", "python", "python", 1, True))
            )
            self.tell(f.Def(n + 100, use=f.UseDef(n, 10)))

    def tell(self, frame: f.Frame) -> None:
        self.store.apply(views.SOURCE, frame, self.now)

    def pass_time(
        self, seconds: float, notebook: float | None, trainer: float | None, cpu: float = 0.0
    ) -> None:
        for _ in range(int(seconds / 5)):
            self.now += 5.0
            uses = [
                views.row("u", 250, used_bytes=views.GIB, sm_percent=notebook),
                views.row("u", 251, used_bytes=views.GIB, sm_percent=trainer),
            ]
            processes = [views.row("p", n, idle_seconds=cpu) for n in (150, 151)]
            row = views.device_row(0, 50.0, 90.0)
            self.tell(
                f.Sample(
                    int(self.now),
                    int(self.now * 1e9),
                    h=[views.host_row()],
                    g=[row],
                    u=uses,
                    p=processes,
                )
            )

    def listed(self, **choice: str) -> Listing:
        host = self.store.view().host
        assert host is not None

        def history(entity: int, column: str, seconds: float | None):  # type: ignore[no-untyped-def]
            self.asked += column == "sm_percent"
            return self.store.history(views.SOURCE, entity, column, seconds)

        return listing(host, history, Choice(**choice), "", self.idleness)  # type: ignore[arg-type]

    def column(self, key: str, **choice: str) -> dict[str, str]:
        cells = [
            {
                k: v if isinstance(v, str) else "".join(t for t, _ in v)
                for k, v in row.cells.items()
                if k != "bar"
            }
            for row in self.listed(**choice).rows
        ]
        return {cell["pid"]: cell[key] for cell in cells}


def test_beside_a_process_that_works_its_own_share_tells() -> None:
    world = World()
    world.pass_time(60, notebook=40.0, trainer=90.0)
    world.pass_time(300, notebook=0.0, trainer=90.0)
    assert world.column("sm") == {"4001": "0 %", "4002": "90 %"}
    assert world.column("idle") == {"4001": "4m", "4002": ""}, (
        "299 s since the last reading that was not 0"
    )


def test_since_before_somebody_looked_has_a_mark() -> None:
    world = World()
    world.pass_time(125, notebook=0.0, trainer=90.0)
    assert world.column("idle") == {"4001": "≥2m", "4002": ""}


def test_one_kernel_ends_it_and_the_history_is_read_once() -> None:
    world = World()
    world.pass_time(60, notebook=0.0, trainer=90.0)
    for _ in range(20):
        world.pass_time(5, notebook=0.0, trainer=90.0)
        world.listed()
    assert world.asked == 1
    assert world.column("idle")["4001"] == "≥2m"
    world.pass_time(5, notebook=7.0, trainer=90.0)
    assert world.column("idle")["4001"] == ""
    world.pass_time(20, notebook=0.0, trainer=90.0)
    assert world.column("idle")["4001"] == "15s"


def test_without_a_share_the_cpu_tells_and_a_busy_share_outweighs_it() -> None:
    world = World()
    world.pass_time(60, notebook=None, trainer=90.0, cpu=50.0)
    assert world.column("idle") == {"4001": "≥50s", "4002": ""}, (
        "a trainer that waits for its kernels uses no CPU"
    )
    assert world.column("sm")["4001"] == "–"


def test_sorted_by_share_the_busiest_stands_first_and_the_unknown_last() -> None:
    world = World()
    world.pass_time(10, notebook=12.0, trainer=90.0)
    assert list(world.column("sm", sort="sm")) == ["4002", "4001"]
    world.pass_time(10, notebook=12.0, trainer=None)
    assert list(world.column("sm", sort="sm")) == ["4001", "4002"]


def test_nobody_is_idle_for_longer_than_it_runs() -> None:
    world = World()
    started = f.ProcDef(
        NOTEBOOK,
        NOTEBOOK,
        views.WALL + BEGAN - views.hello().m / 1e9 + 100.0,
        "ada",
        "python",
        "python",
        1,
    )
    world.tell(f.Def(150, proc=started))
    world.pass_time(140, notebook=0.0, trainer=90.0)
    assert world.column("idle")["4001"] == "40s"
    assert world.column("age")["4001"] == "40s"
