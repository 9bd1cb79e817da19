"""What a producer that the brokers shut out says."""

from __future__ import annotations

import pytest

from broker_filter.config import Kafka
from broker_filter.kafka.transaction import _fenced


@pytest.mark.parametrize(("name", "twin"), [("pod-0", True), (None, False)])
def test_a_filter_without_a_name_of_its_own_has_no_twin(name: str | None, twin: bool) -> None:
    kafka = Kafka(
        bootstrap_servers="kafka:9092",
        input_topics=("epochs",),
        group_instance_id=name,
        transaction_timeout_s=12,
    )
    text = str(_fenced(kafka, "fenced"))
    assert "did not answer within kafka.transaction_timeout_s = 12" in text
    assert ("another filter has started as kafka.group_instance_id = pod-0" in text) is twin
