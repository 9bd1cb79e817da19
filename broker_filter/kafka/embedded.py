"""A Kafka broker inside this process, for the demo and for tests.

It is the mock cluster that librdkafka carries, so there is nothing to install; other processes
reach it by its host:port. Its limits:

- everything is in memory and ends with it;
- a partition keeps its newest 5 MiB or 100,000 batches and drops the rest, read or not, without a
  word: `BoundedPublisher` keeps a fast producer within that;
- a group's first member joins at once, but every later change of members takes
  ``kafka.session_timeout_ms`` less a second: set that to seconds where members come and go;
- transactions succeed but commit nothing; there is no login, TLS or topic administration.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Self

from confluent_kafka import cimpl

from broker_filter.errors import ConfigError, StateError, TransientError
from broker_filter.kafka.sink import Sink, partition_of
from broker_filter.types import Headers, Partition

__all__ = ["BoundedPublisher", "EmbeddedBroker", "StandStill"]

# Batches of up to 1 MB are dropped as a whole, so this leaves room below 5 MiB.
LIMIT_BYTES = 3 << 20
LIMIT_MESSAGES = 50_000
_OVERHEAD_BYTES = 100  # a record's own fields, rounded up

_PRODUCER = 0
_POINTER, _TEXT, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (_INT, [_POINTER, _TEXT, _TEXT, _TEXT, ctypes.c_size_t]),
    "rd_kafka_conf_set_log_cb": (None, [_POINTER, _POINTER]),
    "rd_kafka_new": (_POINTER, [_INT, _POINTER, _TEXT, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_POINTER]),
    "rd_kafka_handle_mock_cluster": (_POINTER, [_POINTER]),
    "rd_kafka_mock_cluster_bootstraps": (_TEXT, [_POINTER]),
    "rd_kafka_mock_topic_create": (_INT, [_POINTER, _TEXT, _INT, _INT]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_down": (_INT, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_up": (_INT, [_POINTER, ctypes.c_int32]),
}


class EmbeddedBroker:
    """One Kafka broker on 127.0.0.1, from ``with`` to the end of the block.

    Parameters
    ----------
    topics : mapping of str to int, optional
        Number of partitions of each topic to create. A topic that a producer names without it
        comes into being with 4.

    Attributes
    ----------
    bootstrap_servers : str
        Its host:port.
    topics : dict of str to int
        Number of partitions of the topics that were created here.

    Raises
    ------
    ConfigError
        Where this build of confluent-kafka has no mock cluster.
    """

    # The mock cluster is driven through librdkafka's C functions: the Python client can start one
    # but can neither choose partition counts nor stop a broker.

    def __init__(self, topics: Mapping[str, int] | None = None) -> None:
        self._library = _load_library()
        self._client = self._start()
        self._cluster = self._library.rd_kafka_handle_mock_cluster(self._client)
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        self.bootstrap_servers: str = self._library.rd_kafka_mock_cluster_bootstraps(
            self._cluster
        ).decode()
        self.topics: dict[str, int] = {}
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic; raises StateError where it exists or cannot be."""
        error = self._library.rd_kafka_mock_topic_create(
            self._cluster, name.encode(), partitions, 1
        )
        if error:
            raise StateError(f"topic {name!r} with {partitions} partitions: error {error}")
        self.topics[name] = partitions

    def interrupt(self) -> None:
        """Break all connections and refuse new ones, keeping what is stored."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, 1)

    def restore(self) -> None:
        """Answer again after `interrupt`."""
        self._library.rd_kafka_mock_broker_set_up(self._cluster, 1)

    def close(self) -> None:
        """End the broker and forget its messages; a second call does nothing."""
        if self._client:
            self._library.rd_kafka_destroy(self._client)
            self._client = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> int | None:
        message = ctypes.create_string_buffer(512)
        conf = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set_log_cb(conf, None)  # it writes to stderr otherwise
        refused = self._library.rd_kafka_conf_set(
            conf, b"test.mock.num.brokers", b"1", message, len(message)
        )
        client = self._library.rd_kafka_new(_PRODUCER, conf, message, len(message))
        if refused or not client:
            raise ConfigError(f"no embedded broker: {message.value.decode()}")
        return int(client)


def _load_library() -> ctypes.CDLL:
    """Find the librdkafka that the Python client is linked to."""
    # Symbols of a library are found through any module that depends on it.
    library = ctypes.CDLL(cimpl.__file__)
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ConfigError(
                f"no embedded broker: this build of confluent-kafka hides {name};"
                " install it from a wheel of PyPI"
            ) from None
        function.restype, function.argtypes = result, arguments
    return library


class StandStill:
    """Ends a wait in which nothing moves, however slowly it may move otherwise.

    Of the time between two questions at most a second counts, so that a process that was stopped
    meanwhile (Ctrl-Z, a suspended machine) does not take its own rest for a standstill.

    Parameters
    ----------
    limit_s : float
        Seconds without any change that are too many.
    clock : callable
        Seconds that never go back.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._asked, self._still_s, self._seen = clock(), 0.0, object()

    def __call__(self, seen: object) -> bool:
        """Whether ``seen`` has been the same for too long; to be called again and again."""
        now = self._clock()
        self._still_s += min(now - self._asked, 1.0)
        self._asked = now
        if seen != self._seen:
            self._seen, self._still_s = seen, 0.0
            return False
        return self._still_s >= self._limit_s


class BoundedPublisher:
    """A `Sink` that waits for the consumer, so that the embedded broker drops nothing unread.

    It puts each message into a partition of its own choice (as given, else by key, else one after
    the other) and must be the only producer of its topics, so that it knows every message's offset.
    What was in them before must have been read.

    Parameters
    ----------
    sink : Sink
        Where the messages go.
    topics : mapping of str to int
        Number of partitions of each topic (`EmbeddedBroker.topics`).
    consumed : callable
        Given (topic, partition), the next offset that the consumer needs; called from `produce`.
        `GroupProgress` reads a group's committed offsets.
    limit_bytes : int
        Most bytes of one partition that may be unread.
    stall_s : float
        Time without any progress of the consumer after which `produce` gives up.
    work : callable
        Something that changes while the consumer works, beside what it has consumed.
    pause : callable
        Called with the seconds to wait before the consumer's position is read again.

    Attributes
    ----------
    sent : Counter
        Messages of each partition so far, which is the offset that its consumer must reach.

    Raises
    ------
    TransientError
        From `produce`, where the consumer stands still for ``stall_s``, and after `stop`.
    """

    def __init__(
        self,
        sink: Sink,
        topics: Mapping[str, int],
        consumed: Callable[[Partition], int],
        *,
        limit_bytes: int = LIMIT_BYTES,
        stall_s: float = 60.0,
        work: Callable[[], object] = lambda: None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._sink = sink
        self._topics = topics
        self._consumed = consumed
        self._limit_bytes = limit_bytes
        self._stall_s = stall_s
        self._work = work
        self._pause = pause
        self._stopped = False
        self._turn = 0
        self._unread: dict[Partition, _Unread] = {}
        self.sent: Counter[Partition] = Counter()

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """See `Sink.produce`; waits while the partition holds too much that is unread."""
        partition = self._choose(topic, key) if partition is None else partition
        where = (topic, partition)
        if where not in self._unread:
            self._unread[where] = _Unread(self._consumed(where))
        unread = self._unread[where]
        size = _OVERHEAD_BYTES + len(key or b"") + len(value)
        size += sum(len(name) + len(content) for name, content in headers)
        self._wait_for_room(where, unread, size)
        self._sink.produce(topic, key, value, headers, partition)
        self.sent[where] += 1
        unread.add(size)

    def stop(self) -> None:
        """Let `produce` fail from now on, in whichever thread it runs or waits."""
        self._stopped = True

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Sink.flush`."""
        self._sink.flush(timeout_s)

    def close(self) -> None:
        """See `Sink.close`."""
        self._sink.close()

    def _choose(self, topic: str, key: bytes | None) -> int:
        if topic not in self._topics:
            raise ConfigError(f"topic {topic!r} was not created on the embedded broker")
        if key is not None:
            return partition_of(key, self._topics[topic])
        self._turn += 1
        return self._turn % self._topics[topic]

    def _wait_for_room(self, where: Partition, unread: _Unread, size: int) -> None:
        still = StandStill(self._stall_s)
        while not self._stopped and not unread.fits(size, self._limit_bytes):
            moved = unread.read_to(self._consumed(where))
            if still((unread.start, self._work())):
                raise TransientError(
                    f"the consumer of {where[0]}[{where[1]}] stands at offset {unread.start}"
                    f" since {self._stall_s:g} s, {unread.size} bytes behind: does it run?"
                )
            if not moved:
                self._pause(0.005)
        if self._stopped:
            raise TransientError("the publisher was stopped")


class _Unread:
    """Sizes of the messages of one partition that the consumer has not read."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.size = 0
        self._sizes: deque[int] = deque()

    def add(self, size: int) -> None:
        self._sizes.append(size)
        self.size += size

    def fits(self, size: int, limit: int) -> bool:
        """Say whether a message has room; one beyond the limit goes alone."""
        room = self.size + size <= limit and len(self._sizes) < LIMIT_MESSAGES
        return room or not self._sizes

    def read_to(self, offset: int) -> bool:
        """Forget what lies before an offset; true where that was anything."""
        count = min(offset - self.start, len(self._sizes))
        for _ in range(count):
            self.size -= self._sizes.popleft()
        self.start += max(0, count)
        return count > 0
