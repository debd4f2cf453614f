"""``demos/fleet``: its files agree with the exporter, and a real Prometheus takes them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "prometheus_client", reason="needs the extra export: pip install prometheus-client"
)

from gpuscope.cli import main as cli
from gpuscope.cli.commands import export
from gpuscope.export.table import METRICS
from tests.export.test_export import everything, exporting, free_port, promtool
from tests.fakes import shim
from tests.fakes.probe_client import wait_for

FLEET = Path(__file__).parents[2] / "demos/fleet"
DASHBOARD = json.loads((FLEET / "dashboard.json").read_text())
ALERTS = (FLEET / "alerts.yml").read_text()


def queries() -> list[str]:
    """Of every panel and variable, as Grafana would send them with "All" chosen."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    for name in ("host", "training_job"):
        found = [query.replace(f"${name}", ".*") for query in found]
    return [query.replace("$__rate_interval", "1m") for query in found]


def expressions() -> list[str]:
    """Of every alert."""
    found = re.findall(r"expr: (?:>-\n((?:          .*\n)+)|(.+)\n)", ALERTS)
    return [" ".join((folded or plain).split()) for folded, plain in found]


def test_dashboard_and_alerts_ask_only_for_what_is_exported():
    asked = queries() + expressions()
    assert len(expressions()) == ALERTS.count("- alert:")
    assert len(queries()) > 20
    for query in asked:
        named = set(re.findall(r"\b((?:gpuscope|node)_\w+)", query))
        assert named, query
        assert named - {"node_textfile_mtime_seconds"} <= set(METRICS), query
        assert "$" not in query
    variables = [v["definition"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    for metric, label in (
        re.match(r"label_values\((\w+).*, (\w+)\)", v).groups() for v in variables
    ):  # type: ignore[union-attr]
        assert label in METRICS[metric].labels
    for query in asked:
        for metric, selector in re.findall(r"(gpuscope_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)=~?\"", selector)) <= {*METRICS[metric].labels}, query


def test_panels_do_not_lie_over_each_other():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_the_manifest_starts_the_exporter_as_it_can_be_started():
    text = (FLEET / "daemonset.yaml").read_text()
    (line,) = re.findall(r"args: \[(.+)\]", text)
    verb, *words = [word.strip().strip('"') for word in line.split(",")]
    assert verb in cli.VERBS
    parser = cli.Parser(prog="x")
    export.add_arguments(parser)
    args = parser.parse_args(words)
    assert args.allow_remote
    port = args.listen.rpartition(":")[2]
    assert f"containerPort: {port}" in text
    assert f"- port: {port}" in text or f"port: {port}" in text
    assert f"port: {port}" in (FLEET / "prometheus.yml").read_text()


def test_the_manifest_is_valid_yaml():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML to read a manifest")
    kinds = {one["kind"]: one for one in yaml.safe_load_all((FLEET / "daemonset.yaml").read_text())}
    assert set(kinds) == {"Namespace", "Service", "DaemonSet"}
    spec = kinds["DaemonSet"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert kinds["Service"]["spec"]["selector"].items() <= labels.items()
    mounts = {m["name"] for m in spec["template"]["spec"]["containers"][0]["volumeMounts"]}
    assert mounts == {v["name"] for v in spec["template"]["spec"]["volumes"]}


@pytest.mark.slow
def test_promtool_takes_configuration_rules_and_their_tests():
    for words in (
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ):
        done = subprocess.run([promtool(), *words], cwd=FLEET, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def ask(port: int, path: str, **values: str) -> Any:
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(values)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it starts
            return None
        raise AssertionError(f"{values}: {error.read().decode()}") from None
    except OSError:
        return None


@pytest.mark.slow
def test_a_real_prometheus_scrapes_the_exporter_and_answers_the_dashboard(tmp_path):
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("needs Prometheus: apt-get install --no-install-recommends prometheus")
    ours, full, theirs = free_port(), free_port(), free_port()
    (tmp_path / "metrics").write_text(everything())
    config = (FLEET / "prometheus.yml").read_text()
    config = re.sub(r"  # The DaemonSet.*", "", config, flags=re.S)
    config = config.replace(
        "localhost:9410", f"127.0.0.1:{ours}\n          - 127.0.0.1:{full}"
    ).replace("15s", "1s")
    config = config.replace("alerts.yml", str(FLEET / "alerts.yml"))
    (tmp_path / "prometheus.yml").write_text(config)
    serve = [
        sys.executable,
        "-m",
        "http.server",
        "--bind",
        "127.0.0.1",
        "-d",
        str(tmp_path),
        str(full),
    ]
    pages = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    words = [
        prometheus,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{theirs}",
        "--log.level=warn",
    ]
    log = (tmp_path / "log").open("w")
    server = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "GOMAXPROCS": "2"})
    try:
        with exporting("--listen", f"127.0.0.1:{ours}", env=shim.environment(gpus=2)) as process:

            def value(query: str) -> list[dict[str, Any]]:
                return (ask(theirs, "query", query=query) or {}).get("result", [])

            live = f'{{instance="127.0.0.1:{ours}"}}'
            wait_for(
                lambda: len(value("gpuscope_gpu_memory_used_bytes" + live)) == 2,
                60,
                "a scrape with devices",
            )
            (up,) = value("gpuscope_agent_up" + live)
            assert up["value"][1] == "1"
            assert up["metric"]["job"] == "gpuscope"
            wait_for(lambda: value("gpuscope_torch_ooms_total"), 30, "the page with everything")
            # of the page alone, because this machine may have trainings of other tests
            steps = f'gpuscope_train_steps_total{{instance="127.0.0.1:{full}"}}'
            wait_for(
                lambda: len(value(f"count_over_time({steps}[1m]) > 2")) == 2, 90, "three scrapes"
            )
            kept = value(steps)[0]["metric"]
            assert {name for name in kept if name.startswith("exported_")} == set()
            empty = [query for query in queries() if not value(query)]
            assert empty == ['gpuscope_export_left_out{host=~".*"} > 0']
            for expression in expressions():
                value(expression)
            rules = ask(theirs, "rules")["groups"][0]["rules"]
            assert {rule["name"] for rule in rules} == set(re.findall(r"- alert: (\w+)", ALERTS))
            wait_for(
                lambda: all(
                    r["health"] == "ok" for r in ask(theirs, "rules")["groups"][0]["rules"]
                ),
                30,
                "health",
            )
            assert value('ALERTS{alertname="TrainingStalled"}')
            process.send_signal(signal.SIGTERM)
            process.wait(10)
            wait_for(
                lambda: not value("gpuscope_gpu_memory_used_bytes" + live), 30, "stale series gone"
            )
    finally:
        for one in (server, pages):
            one.terminate()
            one.wait(20)
        log.close()
