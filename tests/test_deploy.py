"""The files in deploy/: they fit the code, each other, and the tools that will read them."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import runpy
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import broker_filter.cli
from broker_filter.commands.demo_archive import MadeUpField
from broker_filter.config import Settings, load_settings
from broker_filter.decode.decoder import Decoder
from broker_filter.kafka.sink import MemorySink
from broker_filter.types import Message
from tests.deploy_files import (
    DEPLOY,
    PROMETHEUS,
    ROOT,
    RULES,
    RULES_TEST,
    alert_rules,
    names_in,
    output,
    panels,
    queries,
    series,
    tool,
)

DOCKERFILE = DEPLOY / "Dockerfile"
ENTRYPOINT = DEPLOY / "entrypoint.sh"
COMPOSE = DEPLOY / "compose.yaml"
CHART = DEPLOY / "helm" / "broker-filter"
UNIT = DEPLOY / "systemd" / "broker-filter@.service"
VERSIONS = ("1.27", "1.31", "1.34")


# Dashboard and rules


def test_reading_a_query() -> None:
    query = 'a_total{x="b", y=~"c"} / on (z) sum by (le, w) (rate(d_bucket[5m] offset 1h)) > 1e3'
    assert names_in(query) == ({"a_total", "d_bucket"}, {"x", "y", "z", "le", "w"})
    assert names_in("time() - max(e > bool 0) or absent(f) == Inf") == ({"e", "f"}, set())


@pytest.mark.parametrize("query", queries())
def test_query_asks_for_what_is_measured(query: str) -> None:
    known = series()
    names, labels = names_in(query)
    assert names
    assert names <= set(known), query
    assert labels <= set().union(*(known[name] for name in names)), query


def test_dashboard_shows_every_metric() -> None:
    shown = {name for query in queries() for name in names_in(query)[0]}
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in series()} - stems == {
        "process_open_fds"
    }


def test_panels_explain_themselves_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        assert len(panel["description"]) > 20, panel["title"]
        box = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(box["x"], box["x"] + box["w"])
            for y in range(box["y"], box["y"] + box["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    identities = [panel["id"] for panel in panels()]
    assert len(identities) == len(set(identities))


def test_every_alert_has_its_paragraph() -> None:
    page = (DEPLOY / "README.md").read_text()
    described = re.findall(r"^### (BrokerFilter\w+)\n\n\S", page, re.M)
    names = [rule["alert"] for rule in alert_rules()]
    assert sorted(described) == sorted(names)
    for rule in alert_rules():
        anchor = f"deploy/README.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook"] == anchor
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_every_alert_is_tested_both_ways() -> None:
    cases = [
        case
        for test in yaml.safe_load(RULES_TEST.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    fires = {case["alertname"] for case in cases if case.get("exp_alerts")}
    silent = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    assert fires == silent == {rule["alert"] for rule in alert_rules()}


def test_promtool_accepts_rules_and_configuration() -> None:
    promtool = tool("promtool")
    assert f"{len(alert_rules())} rules found" in output(promtool, "check", "rules", RULES)
    output(promtool, "check", "config", "--syntax-only", PROMETHEUS)


def test_rules_fire_as_they_should() -> None:
    assert "SUCCESS" in output(tool("promtool"), "test", "rules", RULES_TEST)


# Image


def stages() -> list[list[tuple[str, str]]]:
    """Instructions and their arguments, by stage."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.M).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    found: list[list[tuple[str, str]]] = [[]]
    for word, rest in lines:
        found += [[]] if word == "FROM" else []
        found[-1].append((word, rest))
    return found


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path of the checkout out; the last line that fits decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").removeprefix("**/")
            parents = [path, *map(str, Path(path).parents)]
            names = [*parents, Path(path).name] if "**/" in line else parents
            if any(fnmatch.fnmatch(name, pattern) for name in names if name != "."):
                out = not line.startswith("!")
    return out


def copied_to(source: str) -> str:
    """Where the image has a file of the checkout."""
    places = [rest.split() for word, rest in stages()[-1] if word == "COPY"]
    (place,) = [to for *names, to in places if source in names]
    return place


def settings_of(stage: list[tuple[str, str]]) -> dict[str, str]:
    """What the instructions ENV set."""
    words = [word for name, rest in stage if name == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


def test_hadolint_has_nothing_to_say() -> None:
    assert output(tool("hadolint"), "--failure-threshold", "style", DOCKERFILE) == ""


def test_image_takes_what_it_copies_and_no_more() -> None:
    copied = {
        source
        for stage in stages()
        for word, rest in stage
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert {"broker_filter", "model_zoo", "schemas", "constraints.txt"} <= copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert not ignored(source), source
    for path in (".git/config", ".venv/bin/python", ".env", "tests/conftest.py", "runs/x.pt"):
        assert ignored(path), path
    assert ignored("model_zoo/__pycache__/x.pyc")
    assert not ignored("model_zoo/weights/fspl-roman-0.1.0/model.safetensors")


def test_image_runs_without_rights_and_is_probed() -> None:
    last = dict(stages()[-1])
    user = re.fullmatch(r"(\d+):(\d+)", last["USER"])
    assert user
    assert int(user[1]) >= 10_000
    assert "/healthz" in last["HEALTHCHECK"]
    assert json.loads(last["ENTRYPOINT"]) == [Path(copied_to("deploy/entrypoint.sh")).name]
    assert json.loads(last["CMD"])[:2] == ["run", "--config"]


def test_image_finds_the_loops_that_it_was_built_with() -> None:
    build, last = settings_of(stages()[1]), settings_of(stages()[-1])
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        assert build[name] == last[name]
    assert f"LOOPS:-{build['NUMBA_CACHE_DIR']}" in ENTRYPOINT.read_text()
    assert Path(last["NUMBA_CACHE_DIR"]).parent == Path(last["HOME"])


def enter(folder: Path, cache: Path) -> str:
    """What the command of the image prints, with a filter that prints its arguments."""
    program = folder / "bin" / "broker-filter"
    program.parent.mkdir(exist_ok=True)
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    own = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "LOOPS": str(folder / "loops"),
        "NUMBA_CACHE_DIR": str(cache),
    }
    return output(ENTRYPOINT, "run", "--config", "a b", env=own)


def test_image_runs_its_command_with_the_loops_where_they_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "loops" / "scan").mkdir(parents=True)
    (tmp_path / "loops" / "scan" / "index").write_text("new")
    cache = tmp_path / "cache"
    assert enter(tmp_path, cache) == "run --config a b\n"
    assert (cache / "scan" / "index").read_text() == "new"
    (cache / "scan" / "index").write_text("of this start")
    enter(tmp_path, cache)
    assert (cache / "scan" / "index").read_text() == "of this start"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["bin", "cache", "loops"]


def test_image_runs_its_command_where_there_is_no_room_for_loops(tmp_path: Path) -> None:
    said = enter(tmp_path, tmp_path / "missing" / "cache")
    assert said.startswith("run --config a b\n")
    assert "compiles its loops" in said


def test_image_is_pinned_and_without_development_tools() -> None:
    text = DOCKERFILE.read_text()
    installs = re.findall(r"uv pip install(?:.*\\\n)*.*", text)
    assert len(installs) == 2
    assert all("constraints.txt" in install for install in installs)
    assert not re.search(r"\[(test|plot|train)|pytest|:latest", text)
    assert not re.search(r"(?i)(arg|env)\s+\w*(password|secret|token)", text)


# Trial on one machine


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text()))


def test_compose_opens_no_port_to_others(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 5
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)


def test_compose_holds_together(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) >= {
        "kafka",
        "filter",
        "page",
        "simulated",
        "archive",
        "prometheus",
        "grafana",
    }
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        for volume in service.get("volumes", ()):
            source = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).split(":")[0]
            there = (DEPLOY / source).exists() if source[0] == "." else source in compose["volumes"]
            assert there, volume
        if "build" not in service:
            assert re.search(r":\$\{\w+:-v?\d+\.\d+\.\d+\}$", service["image"]), name
        else:
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
    build = services["filter"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]) == DOCKERFILE


def test_compose_takes_the_health_of_the_image_for_that_of_the_filter_alone(
    compose: dict[str, Any],
) -> None:
    ours = {name for name, service in compose["services"].items() if "build" in service}
    own = {name for name in ours if "healthcheck" in compose["services"][name]}
    assert ours - own == {"filter"}


def test_compose_reads_the_same_topics(compose: dict[str, Any]) -> None:
    settings = load_settings(DEPLOY / "compose" / "config.yaml", {})
    kafka = settings.kafka
    made = set(re.findall(r"([\w-]+):\d(?=[ ;])", compose["services"]["topics"]["command"][0]))
    assert made == {*kafka.input_topics, kafka.alert_topic, kafka.dead_letter_topic}
    text = COMPOSE.read_text()
    assert f"INSIDE://{kafka.bootstrap_servers}" in text
    (scrape,) = yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]
    assert scrape["static_configs"][0]["targets"] == [f"filter:{settings.metrics.port}"]


def test_compose_is_understood(tmp_path: Path) -> None:
    """By the loader that docker compose itself uses."""
    check = tool("compose-check")
    loaded = yaml.safe_load(output(check, COMPOSE))
    assert set(loaded["services"]) == set(yaml.safe_load(COMPOSE.read_text())["services"])
    (tmp_path / "wrong.yaml").write_text("services: {a: {image: x, prots: []}}")
    with pytest.raises(AssertionError, match="prots"):
        output(check, tmp_path / "wrong.yaml")


def test_simulated_stream_keeps_its_pace() -> None:
    script = runpy.run_path(str(DEPLOY / "compose" / "simulated.py"))
    prior = {"name": "box", "low": [0, 0, -1, -2, 0.1], "high": [20, 1.5, 1.3, 1, 1]}
    archive = MadeUpField(8, 1, 1, prior, 20.0)
    sink, slept = MemorySink(), [0.0]
    sent = script["publish"](
        archive,
        sink,
        "photometry",
        10.0,
        clock=lambda: slept[-1],
        sleep=lambda seconds: slept.append(slept[-1] + seconds),
    )
    assert sent == len(sink.messages)
    assert slept[-1] == pytest.approx((len(archive.times) - 1) / 10.0)
    first = sink.messages[0]
    message = Message(first.topic, 0, 0, None, first.value, headers=first.headers)
    assert Decoder("auto").decode(message).photometry[0].survey == "demo"


# Kubernetes

GIVEN = {
    "config": {"kafka": {"bootstrap_servers": "kafka:9092", "input_topics": ["photometry"]}},
}
FULL = {
    "config": {
        "kafka": {
            "bootstrap_servers": "a:9093,b:9093",
            "input_topics": ["photometry"],
            "security": {"protocol": "sasl_ssl", "mechanism": "PLAIN", "username": "filter"},
        },
        "input": {"flag_mask": 4294967295},
    },
    "replicas": 3,
    "image": {"pullSecrets": ["registry"]},
    "loginSecret": {"name": "kafka-login", "passwordKey": "word"},
    "tlsSecret": {"name": "kafka-tls", "clientCertificate": True},
    "snapshots": {"size": "100Gi", "storageClass": "nfs"},
    "env": [{"name": "AWS_REGION", "value": "us-east-1"}],
    "envFrom": [{"secretRef": {"name": "s3"}}],
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"enabled": True, "scrapers": [{"namespaceSelector": {}}]},
    "autoscaling": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
    "page": {"enabled": True, "passwordSecret": "word", "clientSecret": "login", "size": "5Gi"},
    "podLabels": {"team": "lensing"},
    "podAnnotations": {"note": "x"},
    "nodeSelector": {"gpu": "true"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
}
FILES = (
    *("--set-file", f"prometheusRule.rules={RULES}"),
    *("--set-file", f"dashboard.json={DEPLOY / 'grafana' / 'broker-filter.json'}"),
)


def helm(values: dict[str, Any], folder: Path, *options: object) -> list[dict[str, Any]]:
    """The objects that the chart makes of values."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    text = output(
        *(tool("helm"), "template", "lens", CHART, "--kube-version", "1.31.0"),
        *("--namespace", "sky", "--values", file, *options),
    )
    return [each for each in yaml.safe_load_all(text) if each]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return helm(GIVEN, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return helm(FULL, tmp_path_factory.mktemp("full"), *FILES)


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def settings_in_pod(objects: list[dict[str, Any]], folder: Path) -> Settings:
    """What the filter in the first pod would read, with mounted files in a folder."""
    environ = {}
    for item in container(objects)["env"]:
        field = item.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        value = "lens-broker-filter-0" if field == "metadata.name" else item["value"]
        environ[item["name"]] = value.replace("/etc/broker-filter-login", str(folder))
    for name in ("password", "word"):
        (folder / name).write_text("hunter2\n")
    (config,) = (each for each in objects if "config.yaml" in each.get("data", {}))
    (folder / "config.yaml").write_text(config["data"]["config.yaml"])
    return load_settings(folder / "config.yaml", environ)


def test_helm_lint(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(GIVEN))
    output(tool("helm"), "lint", "--strict", CHART, "--values", file)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_would_take_the_objects(
    plain: list[dict[str, Any]], full: list[dict[str, Any]], version: str
) -> None:
    foreign = {"PodMonitor", "PrometheusRule", "ScaledObject"}  # schemas of their operators
    kinds = set()
    for each in (*plain, *full):
        kinds.add(each["kind"])
        if each["kind"] not in foreign:
            kubernetes_validate.validate(each, version, strict=True)
    assert kinds >= foreign | {"StatefulSet", "PodDisruptionBudget", "Service", "NetworkPolicy"}


def test_a_wrong_object_would_be_noticed(plain: list[dict[str, Any]]) -> None:
    wrong = {**one(plain, "Service"), "sepc": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_member_reads_its_settings(full: list[dict[str, Any]], tmp_path: Path) -> None:
    settings = settings_in_pod(full, tmp_path)
    kafka = settings.kafka
    assert kafka.group_instance_id == "lens-broker-filter-0"
    assert kafka.security.password is not None
    assert kafka.security.password.get_secret_value() == "hunter2"
    assert str(kafka.security.key_location) == "/etc/broker-filter-tls/tls.key"
    assert settings.input.flag_mask == 0xFFFFFFFF
    assert settings.metrics.host == "0.0.0.0"  # noqa: S104  what the probes need
    assert settings.snapshot.url == "/var/lib/broker-filter/snapshots"


def test_secrets_stay_in_secrets(full: list[dict[str, Any]]) -> None:
    volumes = one(full, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    mounted = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in volumes}
    assert (mounted["login"], mounted["tls"]) == ("kafka-login", "kafka-tls")
    assert not any(each["kind"] == "Secret" for each in full)
    assert "PASSWORD_FILE" in str(container(full)["env"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "bootstrap_servers"),
        (
            {"config": {"kafka": {**GIVEN["config"]["kafka"], "security": {"password": "x"}}}},
            "password",
        ),
        ({**GIVEN, "replica": 3}, "replica"),
        ({**GIVEN, "metrics": {"port": "80"}}, "port"),
        ({**GIVEN, "terminationGracePeriodSeconds": 5}, "terminationGracePeriodSeconds"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], said: str, tmp_path: Path) -> None:
    tool("helm")
    with pytest.raises(AssertionError, match=said):
        helm(values, tmp_path)


def test_pod_has_no_rights(plain: list[dict[str, Any]]) -> None:
    pod = one(plain, "StatefulSet")["spec"]["template"]["spec"]
    inside = container(plain)["securityContext"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert inside["readOnlyRootFilesystem"] is True
    assert inside["allowPrivilegeEscalation"] is False
    assert inside["capabilities"] == {"drop": ["ALL"]}
    writable = {m["mountPath"] for m in container(plain)["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"/tmp", "/var/lib/broker-filter"}  # noqa: S108  names in the pod
    assert pod["securityContext"]["runAsUser"] == int(dict(stages()[-1])["USER"].split(":")[0])


def test_the_page_is_off_unless_it_is_asked_for(
    plain: list[dict[str, Any]], full: list[dict[str, Any]]
) -> None:
    assert not any(each["kind"] == "Deployment" for each in plain)
    deployment = one(full, "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod = deployment["spec"]["template"]
    # The members' own selector must not take the page's pod.
    members = one(full, "StatefulSet")["spec"]["selector"]["matchLabels"]
    assert not members.items() <= pod["metadata"]["labels"].items()
    (page,) = pod["spec"]["containers"]
    assert page["securityContext"]["readOnlyRootFilesystem"] is True
    assert "env" not in page


@pytest.mark.parametrize("start", ["compose", "chart"])
def test_the_page_is_started_with_options_that_it_has(
    start: str, compose: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    if start == "compose":
        command = compose["services"]["page"]["command"]
    else:
        pod = one(request.getfixturevalue("full"), "Deployment")["spec"]["template"]["spec"]
        command = pod["containers"][0]["args"]
    args = broker_filter.cli._parser().parse_args(command)
    assert (args.command, args.host, args.port) == ("page", "0.0.0.0", 8765)  # noqa: S104
    assert str(args.database).startswith("/var/lib/broker-filter/")


def test_a_page_without_a_password_is_refused(tmp_path: Path) -> None:
    tool("helm")
    with pytest.raises(AssertionError, match="passwordSecret"):
        helm({**GIVEN, "page": {"enabled": True}}, tmp_path)


def test_pod_is_given_time_to_stop_and_to_start(plain: list[dict[str, Any]]) -> None:
    pod = one(plain, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 25 + 30  # drain, then the last snapshot
    probes = container(plain)
    assert probes["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/readyz"
    start = probes["startupProbe"]
    assert start["failureThreshold"] * start["periodSeconds"] >= 600


def test_scaling_follows_the_lag(full: list[dict[str, Any]]) -> None:
    scaled = one(full, "ScaledObject")["spec"]
    assert scaled["minReplicaCount"] >= 1
    assert "replicas" not in one(full, "StatefulSet")["spec"]
    (trigger,) = scaled["triggers"]
    assert names_in(trigger["metadata"]["query"])[0] <= set(series())
    behaviour = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behaviour["scaleDown"]["stabilizationWindowSeconds"] >= 2400
    monitor = one(full, "PodMonitor")["spec"]["podMetricsEndpoints"][0]
    job = next(r["replacement"] for r in monitor["relabelings"] if r["targetLabel"] == "job")
    assert f'job="{job}"' in trigger["metadata"]["query"]


def test_example_of_the_page_renders(tmp_path: Path) -> None:
    (code,) = re.findall(r"```yaml\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    objects = helm(yaml.safe_load(code), tmp_path, *FILES)
    settings = settings_in_pod(objects, tmp_path)
    assert settings.snapshot.url == "s3://my-bucket/broker-filter"
    assert settings.kafka.security.mechanism == "SCRAM-SHA-512"
    assert not any(each["kind"] == "PersistentVolumeClaim" for each in objects)


def test_rules_and_dashboard_travel_with_the_chart(full: list[dict[str, Any]]) -> None:
    assert one(full, "PrometheusRule")["spec"] == yaml.safe_load(RULES.read_text())
    (board,) = (each for each in full if "broker-filter.json" in each.get("data", {}))
    assert json.loads(board["data"]["broker-filter.json"])["uid"] == "broker-filter"


def leaves(schema: dict[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, inner in schema.get("properties", {}).items():
        yield (*keys, name)
        if keys or name != "config":
            yield from leaves(inner, (*keys, name))


def paths(tree: dict[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    closed = {"config", "resources", "podSecurityContext", "securityContext", "labels"}
    for name, inner in tree.items():
        yield (*keys, name)
        if isinstance(inner, dict) and name not in closed:
            yield from paths(inner, (*keys, name))


def test_values_schema_knows_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(paths(values)) == set(leaves(schema)) - {("global",)}


def test_every_value_is_explained() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    closed = ("resources", "podSecurityContext", "securityContext")
    bare = [
        line
        for before, line in pairwise(lines)
        if re.match(r" *\w+: *\S", line) and not before.lstrip().startswith("#")
    ]
    blocks = yaml.safe_load((CHART / "values.yaml").read_text())
    allowed = {key for name in closed for key in blocks[name]}
    assert [line for line in bare if line.split(":")[0].strip() not in allowed] == []


# One machine


def test_unit_uses_settings_that_exist() -> None:
    text = UNIT.read_text()
    names = re.findall(r"BROKER_FILTER_(\w+__\w+)=", text)
    assert len(names) == 4
    for name in names:
        model: Any = Settings
        for key in name.lower().split("__"):
            assert key in model.model_fields, name
            model = model.model_fields[key].annotation
    assert "127.0.0.1" not in text  # the default stands


def test_unit_is_hardened() -> None:
    text = UNIT.read_text()
    for line in (
        "DynamicUser=yes",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
        "UMask=0077",
    ):
        assert re.search(rf"^{re.escape(line)}$", text, re.M), line
    stop = re.search(r"TimeoutStopSec=(\d+)", text)
    assert stop
    assert int(stop[1]) > 25 + 30


def test_instances_of_one_machine_differ_in_name_and_port() -> None:
    settings = dict(re.findall(r"^Environment=BROKER_FILTER_(\w+)=(.*)$", UNIT.read_text(), re.M))
    of_instance = {name: value for name, value in settings.items() if "%i" in value}
    assert of_instance == {"KAFKA__GROUP_INSTANCE_ID": "%H-%i", "METRICS__PORT": "946%i"}
    environment = {
        f"BROKER_FILTER_{name}": value.replace("%i", "7").replace("%H", "here")
        for name, value in of_instance.items()
    }
    loaded = load_settings(DEPLOY / "config.example.yaml", environment)
    assert (loaded.metrics.port, loaded.kafka.group_instance_id) == (9467, "here-7")


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    # Programs that are not installed here must not count, so stand-ins take their place.
    text = re.sub(r"/opt/\S+/broker-filter", "/bin/true", UNIT.read_text())
    instance = tmp_path / UNIT.name.replace("@", "@4")
    instance.write_text(text)
    said = output(tool("systemd-analyze", optional=True), "verify", instance)
    ours = [line for line in said.splitlines() if instance.name in line]
    newer = ("RestartSteps", "RestartMaxDelaySec")  # of systemd 254
    assert [line for line in ours if not any(word in line for word in newer)] == []
