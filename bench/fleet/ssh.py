"""One viewer, many hosts over real ssh: how soon all are connected, and what they cost.

    python -m bench.fleet.ssh [--hosts 64] [--watch 5]

All hosts are this one machine, so its cores limit the result: Python is started for each agent. It
prints one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

from tests.fakes import ssh_fleet


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="the longest to wait for all of them"
    )
    parser.add_argument(
        "--watch", type=float, default=5.0, help="seconds to go on once they are there"
    )
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="gpuscope-") as folder,
        ssh_fleet.fleet(Path(folder), args.hosts) as made,
    ):
        found = asyncio.run(ssh_fleet.connect(made, args.seconds, args.watch))
    print(json.dumps({**found, "live": len(found["live"])}))


if __name__ == "__main__":
    main()
