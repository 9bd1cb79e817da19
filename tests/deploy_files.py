"""What lies in deploy/, read for the tests: rules, dashboard, and the tools that check them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_filter.observe.table import METRICS, PREFIX, PROCESS_METRICS

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yaml"
RULES_TEST = DEPLOY / "prometheus" / "alerts_test.yaml"
PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yaml"
DASHBOARD = DEPLOY / "grafana" / "broker-filter.json"

# Labels that Prometheus or a histogram adds to ours.
ADDED_LABELS = {"job", "instance", "le"}
_WORDS = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "inf", "nan"}


def tool(name: str, *, optional: bool = False) -> str:
    """Path of a program; without it the test is skipped, or fails under ``make deploy-check``.

    What no registry of packages brings is optional there too.
    """
    places = (ROOT / "build" / "bin", Path(sys.executable).parent, os.environ.get("PATH", ""))
    found = shutil.which(name, path=os.pathsep.join(map(str, places)))
    if found is None:
        if os.environ.get("DEPLOY_CHECK") and not optional:
            pytest.fail(f"{name} is not installed")
        pytest.skip(
            f"{name} is not installed{'' if optional else ' (make deploy-check brings it)'}"
        )
    return found


def output(*command: object, **options: Any) -> str:
    """What a program prints, which must succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [p for p in json.loads(DASHBOARD.read_text())["panels"] if p["type"] != "row"]


def dashboard_queries() -> list[str]:
    """Every expression of the dashboard, with Grafana's variables filled in."""
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    queries += [note["expr"] for note in dashboard["annotations"]["list"]]
    filled = [query.replace("$__rate_interval", "1m") for query in queries]
    return [re.sub(r"\$(job|instance)\b", ".*", query) for query in filled]


def variable_queries() -> list[tuple[str, str]]:
    """(selector, label) of every variable of the dashboard that asks Prometheus."""
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    texts = [v["query"]["query"] for v in variables if v["type"] == "query"]
    found = [re.fullmatch(r"label_values\((.*), (\w+)\)", text) for text in texts]
    return [(match[1], match[2]) for match in found if match]


def queries() -> list[str]:
    selectors = [selector.replace("$job", ".*") for selector, _ in variable_queries()]
    return [str(rule["expr"]) for rule in alert_rules()] + dashboard_queries() + selectors


def names_in(query: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that a PromQL expression uses."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', query)
    labels = set()
    for inside in re.findall(r"\{([^}]*)\}", text):
        labels |= set(re.findall(r"([A-Za-z_]\w*)\s*(?:=~|!~|!=|=)", inside))
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    grouping = r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)"
    for inside in re.findall(grouping, text):
        labels |= set(re.findall(r"\w+", inside))
    text = re.sub(grouping, " ", text)
    text = re.sub(r"\boffset\s+\w+", " ", text)
    words = re.findall(r"(?<![\w.])([A-Za-z_:][\w:]*)(?!\s*\(|[\w:])", text)
    return {word for word in words if word.lower() not in _WORDS}, labels


def series() -> dict[str, set[str]]:
    """Every name that a scrape of ours gives, with its labels; and ``up``."""
    return {"up": set(ADDED_LABELS), **dict(_series())}


def _series() -> Iterator[tuple[str, set[str]]]:
    named = [(PREFIX + metric.name, metric) for metric in METRICS]
    named += [(metric.name, metric) for metric in PROCESS_METRICS]
    for name, metric in named:
        suffixes: tuple[str, ...] = ("",)
        if metric.kind == "histogram":
            # The client gives no sum and no count where values may be negative.
            suffixes = ("_bucket", "_sum", "_count") if metric.buckets[0] >= 0 else ("_bucket",)
        for suffix in suffixes:
            yield name + suffix, {*metric.labels, *ADDED_LABELS}
