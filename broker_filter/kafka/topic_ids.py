"""Ids of topics: one that is deleted and made anew has another, whatever its offsets say."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Final

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from broker_filter.config import Kafka
from broker_filter.kafka.client import MOCK_CLUSTER, client_config, open_client

__all__ = ["TopicIds"]

ANSWER_S: Final = 5.0
UNKNOWN: Final = "AAAAAAAAAAAAAAAAAAAAAA"  # of a broker that gives its topics no ids


class TopicIds:
    """Reads the ids of topics from a broker; may be called from any thread.

    Parameters
    ----------
    kafka : Kafka
    """

    def __init__(self, kafka: Kafka) -> None:
        self._admin = open_client(AdminClient, client_config(kafka))

    def __call__(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of topics, as far as they are known; blocks for some seconds at most.

        Nothing is known while no broker answers, or where brokers give no ids.
        """
        if not topics or self._is_mock():
            return {}
        answers = self._admin.describe_topics(
            ck.TopicCollection(sorted(topics)), request_timeout=ANSWER_S
        )
        found = {}
        for topic, answer in answers.items():
            with suppress(ck.KafkaException):
                found[topic] = str(answer.result(2 * ANSWER_S).topic_id)
        return {topic: name for topic, name in found.items() if name != UNKNOWN}

    def _is_mock(self) -> bool:
        """Whether it is librdkafka's stand-in, which never answers; also where nobody does."""
        try:
            cluster = self._admin.list_topics(timeout=ANSWER_S).cluster_id or ""
        except ck.KafkaException:
            return True
        return str(cluster).startswith(MOCK_CLUSTER)
