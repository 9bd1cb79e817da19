"""Topics that share their stars: those that one pattern of ``kafka.input_topics`` matches.

A survey that makes a topic a night has the nights of one star in as many topics. So partitions of
the same number, of topics of one pattern, are one place for a star; a topic that is named literally
is a place of its own. For that the topics need the same number of partitions, and one member of the
group must own all that belong together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache

from broker_filter.config import Kafka
from broker_filter.errors import ConfigError
from broker_filter.types import KeyOf, Partition, StateKey

__all__ = ["key_of", "require_alike", "require_matched", "whole"]


def key_of(kafka: Kafka) -> KeyOf:
    """Return what says where the state of a partition's stars is kept.

    A topic that is named literally stands for itself, also where a pattern matches it.
    """
    named = frozenset(kafka.input_topics).difference(kafka.patterns)

    @cache
    def name_of(topic: str) -> str:
        matching = (pattern for pattern in kafka.patterns if re.match(pattern, topic))
        return topic if topic in named else next(matching, topic)

    def key(partition: Partition) -> StateKey:
        return name_of(partition[0]), partition[1]

    return key


def require_matched(kafka: Kafka, topics: Collection[str]) -> None:
    """Refuse topics that came by a pattern which reads otherwise here than in the Kafka client.

    Raises
    ------
    ConfigError
    """
    key = key_of(kafka)
    for topic in sorted(set(topics).difference(kafka.input_topics)):
        if key((topic, 0))[0] == topic:
            raise ConfigError(
                f"kafka.input_topics: the Kafka client finds that {topic} matches, and Python's"
                " regular expressions do not: write the pattern with what both know, such as [0-9]"
            )


def require_alike(kafka: Kafka, counts: Mapping[str, int]) -> None:
    """Refuse topics of one pattern that differ in their numbers of partitions.

    Parameters
    ----------
    kafka : Kafka
    counts : mapping of str to int
        Partitions of all topics that are there, others than ours too.

    Raises
    ------
    ConfigError
        Names the topics, their counts, and the ways out.
    """
    key = key_of(kafka)
    for pattern in kafka.patterns:
        found = {topic: n for topic, n in counts.items() if key((topic, 0))[0] == pattern}
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{topic} has {n}" for topic, n in _examples(found).items())
            raise ConfigError(
                f"kafka.input_topics: the topics that {pattern!r} matches share their stars by"
                f" number of partition, and have different numbers of partitions: {shown}. Give"
                " each set of topics with the same number a pattern of its own, or name a topic"
                " literally: then it has its stars for itself"
            )


def _examples(counts: Mapping[str, int]) -> dict[str, int]:
    """The first topics of each count, three at most."""
    ordered = sorted(counts.items(), key=lambda item: (item[1], item[0]))
    return {topic: n for i, (topic, n) in enumerate(ordered) if i < 3 or n != ordered[i - 3][1]}


def whole(kafka: Kafka, owned: Collection[Partition], counts: Mapping[str, int]) -> set[Partition]:
    """Those of our partitions whose stars are all ours.

    While a topic is new, some members of the group know of it and others do not yet; what then
    comes to us without the partitions of the same number waits for the next assignment.
    """
    key = key_of(kafka)
    mine = set(owned)
    there = {(topic, n) for topic, count in counts.items() for n in range(count)}
    parted = {key(where) for where in there - mine}
    return {where for where in mine if key(where) not in parted}
