"""A real Prometheus scrapes our endpoint and answers every query of dashboard and rules."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_filter.observe.health import Health
from broker_filter.observe.metrics import Metrics
from broker_filter.observe.server import ObserveServer
from broker_filter.observe.table import METRICS
from tests.deploy_files import (
    DEPLOY,
    PROMETHEUS,
    RULES,
    alert_rules,
    dashboard_queries,
    names_in,
    queries,
    series,
    tool,
    variable_queries,
)

PATIENCE_S = 60.0
Ask = Callable[..., Any]


def touched() -> Metrics:
    """Metrics of a filter in which everything has happened once."""
    metrics = Metrics()
    for metric in METRICS:
        value = metric.known[0] if metric.known else "0"
        labels: dict[str, object] = dict.fromkeys(metric.labels, value)
        act = {"counter": metrics.inc, "gauge": metrics.set, "histogram": metrics.observe}
        act[metric.kind](metric.name, 1.0, **labels)
    return metrics


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (result := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return result


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Asks the HTTP API of a Prometheus with our configuration that scrapes a running endpoint."""
    program = tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with ObserveServer(touched().registry, Health(), "127.0.0.1", 0) as server:
        config = yaml.safe_load(PROMETHEUS.read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES)]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{server.port}"]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        log = folder / "log"
        with log.open("wb") as stderr, _started(program, folder, stderr) as process:
            try:
                address = until(lambda: _address(process, log), "no start")
                until(lambda: _ready(address), "not ready")
                yield _asker(address)
            finally:
                process.terminate()
                process.wait(timeout=30)


def _started(program: str, folder: Path, stderr: Any) -> subprocess.Popen[bytes]:
    options = {
        "config.file": folder / "prometheus.yaml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": "127.0.0.1:0",
        "log.level": "info",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return subprocess.Popen([program, *words], stderr=stderr, stdout=stderr)


def _address(process: subprocess.Popen[bytes], log: Path) -> str | None:
    """Where it listens, by its log; it takes a free port."""
    assert process.poll() is None, log.read_text()[-2000:]
    for line in log.read_text().splitlines():
        if 'msg="Listening on"' in line:
            return line.partition("address=")[2].split()[0]
    return None


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def _asker(address: str) -> Ask:
    def ask(path: str, **parameters: str) -> Any:
        url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    return ask


def test_prometheus_finds_every_metric(ask: Ask) -> None:
    names = set(series())
    until(lambda: names <= set(ask("label/__name__/values")), "some metrics are missing")


def test_every_name_that_is_used_has_values(ask: Ask) -> None:
    used = {name for query in queries() for name in names_in(query)[0]}
    for name in sorted(used):
        until(lambda name=name: ask("query", query=name)["result"], f"{name} has no value")


@pytest.mark.parametrize("query", dashboard_queries())
def test_dashboard_query_gives_something(ask: Ask, query: str) -> None:
    # Events of one kind, such as restarts, may rightly give nothing.
    until(lambda: "result" in ask("query", query=query), query)
    if "changes(" not in query:
        until(lambda: ask("query", query=query)["result"], f"{query} is empty")


def test_dashboard_variables_have_choices(ask: Ask) -> None:
    for selector, label in variable_queries():
        found = ask("query", query=selector.replace("$job", ".*"))["result"]
        assert {item["metric"][label] for item in found}


def test_rules_are_evaluated_without_error(ask: Ask) -> None:
    def evaluated() -> list[dict[str, Any]]:
        rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    rules = until(evaluated, "rules are not evaluated")
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in alert_rules()}
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []


def test_provisioning_names_what_compose_mounts() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((provisioning / "dashboards/broker-filter.yaml").read_text())[
        "providers"
    ]
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    port = services["prometheus"]["ports"][0].split(":")[-1]
    assert source["url"] == f"http://prometheus:{port}"
    mounts = [volume.split(":")[1] for volume in services["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/broker-filter.json" in mounts
