"""Which topics share their stars, and which cannot."""

from __future__ import annotations

from typing import Any

import pytest

from broker_filter.config import Kafka
from broker_filter.errors import ConfigError
from broker_filter.kafka.sharing import key_of, require_alike, require_matched, whole

NIGHTS = "^ztf_.*_programid1$"


def reading(*topics: str, **keys: Any) -> Kafka:
    return Kafka(bootstrap_servers="h:1", input_topics=topics, **keys)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("ztf_20260101_programid1", NIGHTS),
        ("ztf_20260102_programid1", NIGHTS),
        ("ztf_20260102_programid2", "^ztf"),
        ("ztf_special_programid1", "ztf_special_programid1"),
        ("lsst", "lsst"),
    ],
)
def test_topics_of_one_pattern_share_and_those_named_do_not(topic: str, name: str) -> None:
    key = key_of(reading(NIGHTS, "^ztf", "ztf_special_programid1", "lsst"))
    assert key((topic, 3)) == (name, 3)


def test_different_numbers_of_partitions_are_refused_with_topics_and_ways_out() -> None:
    counts = {f"ztf_{n}_programid1": 16 for n in range(30)} | {"ztf_old_programid1": 8, "x": 1}
    with pytest.raises(ConfigError) as caught:
        require_alike(reading(NIGHTS), counts)
    text = str(caught.value)
    for part in ("kafka.input_topics", NIGHTS, "ztf_old_programid1 has 8", "has 16", "pattern of"):
        assert part in text
    assert len(text) < 600


def test_what_no_pattern_shares_may_differ() -> None:
    counts = {"one": 1, "two": 2, "a1": 3, "a2": 3, "b1": 4}
    require_alike(reading("one", "two", "^a", "^b"), counts)
    require_alike(reading("^a", "a1"), {"a1": 1, "a2": 2})


def test_a_pattern_that_is_read_in_two_ways_is_refused() -> None:
    require_matched(reading(NIGHTS, "x"), ["ztf_1_programid1", "x"])
    with pytest.raises(ConfigError, match=r"night7 matches.*\[0-9\]"):
        require_matched(reading("^night[a-z]"), ["night7"])


def test_a_star_is_whole_where_all_its_nights_are_ours() -> None:
    kafka, counts = reading("^n", "x"), {"n1": 2, "n2": 2, "x": 2, "else": 9}
    owned = {("n1", 0), ("n2", 0), ("n2", 1), ("x", 1)}
    assert whole(kafka, owned, counts) == {("n1", 0), ("n2", 0), ("x", 1)}
    # A topic that is gone is missed by nobody.
    assert whole(kafka, {("n1", 0), ("n2", 0)}, {"n2": 2}) == {("n1", 0), ("n2", 0)}
