"""Four instances on one machine, as the systemd template and plain shells start them."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.integration.harness import Filter, make_archive, settings_of, trial
from tests.integration.outcome import undisturbed
from tests.kafka_broker import free_ports

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

INSTANCES = 4


def environment(number: int, port: int) -> dict[str, str]:
    """What differs between instances that share a configuration: a name, and a port."""
    return {
        "BROKER_FILTER_KAFKA__GROUP_INSTANCE_ID": f"host-{number}",
        "BROKER_FILTER_METRICS__ENABLED": "true",
        "BROKER_FILTER_METRICS__PORT": str(port),
    }


def ready(port: int) -> bool:
    """Whether an instance says that it has its model, its broker and a partition."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        try:
            connection.request("GET", "/readyz")
        except OSError:  # it does not listen yet
            return False
        return connection.getresponse().status == HTTPStatus.OK


def restored(filters: list[Filter]) -> Counter[int]:
    """How often each instance began with a partition."""
    return Counter(
        number
        for number, filter_ in enumerate(filters)
        for line in filter_.lines()
        if line.get("event") == "restored"
    )


def test_four_instances_give_each_alert_once_while_one_is_started_again(
    kafka: str, tmp_path: Path
) -> None:
    archive = make_archive(stars=8, injected=6, every=6)
    alert = {"certified": False, "posterior_samples": 50}
    archive = replace(archive, settings=settings_of({"alert": alert}))
    ports = free_ports(INSTANCES)
    patient = {"session_timeout_ms": 60_000}
    with trial(kafka, archive, tmp_path, alert=alert, kafka=patient) as run:
        filters = [run.start(environment=environment(n, port)) for n, port in enumerate(ports)]
        run.until(lambda: all(map(ready, ports)))
        run.feed(8)
        run.until(lambda: run.share_done() > 0.3)
        assert filters[1].stop() == 0, run.logs()
        before = restored(filters)
        again = run.start(environment=environment(1, ports[1]))
        run.until(lambda: ready(ports[1]))
        run.until_done()
        # By its name it was known again: it has its partition, from the snapshot, and no other
        # instance took one meanwhile.
        assert again.logged("restored"), run.logs()
        assert restored(filters) == before
        for filter_ in (filters[0], again, *filters[2:]):
            assert filter_.stop() == 0, run.logs()
        verdict = run.verdict(undisturbed(archive))
        assert verdict, (verdict, run.logs())
        assert len(run.outcome()) > 0
