"""A topic that was deleted and made anew is noticed while the filter runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from broker_filter.errors import StateError
from broker_filter.service.topics import TopicWatch

PATIENCE_S = 30.0


class Brokers:
    """Gives ids of topics, and counts how often they were read."""

    def __init__(self) -> None:
        self.ids = {"epochs": "one", "other": "two"}
        self.reads = 0

    def __call__(self, _: object) -> dict[str, str]:
        self.reads += 1
        return dict(self.ids)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def watch(brokers: Brokers) -> Iterator[TopicWatch]:
    with closing(TopicWatch(brokers, every_s=0.01)) as made:
        made.follow({"epochs"})
        until(lambda: made.id_of("epochs") == "one")
        yield made


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def read_again(brokers: Brokers) -> None:
    """Wait until an answer that was given from now on has been noted."""
    before = brokers.reads
    until(lambda: brokers.reads > before + 1)


def test_a_topic_made_anew_is_an_error(watch: TopicWatch, brokers: Brokers) -> None:
    watch.check()
    brokers.ids["epochs"] = "three"
    read_again(brokers)
    with pytest.raises(StateError, match=r"epochs was deleted and made anew.*kafka\.group_id"):
        watch.check()


def test_no_answer_and_topics_of_others_are_none(watch: TopicWatch, brokers: Brokers) -> None:
    brokers.ids = {"other": "three"}
    read_again(brokers)
    assert watch.id_of("epochs") == "one"
    brokers.ids = {"epochs": "one", "other": "four"}
    read_again(brokers)
    watch.check()
    assert (watch.id_of("epochs"), watch.id_of("other")) == ("one", "")


def test_a_topic_that_went_to_others_is_forgotten(watch: TopicWatch, brokers: Brokers) -> None:
    watch.follow(())
    until(lambda: watch.id_of("epochs") == "")
    brokers.ids["epochs"] = "three"
    watch.follow({"epochs"})
    until(lambda: watch.id_of("epochs") == "three")
    watch.check()
