"""How fast messages become windows, all the way: ``python -m tests.bench.bench_intake``.

Decoding, the checks of every epoch, waves, insertion and the look at what is due, as the service
does it; only Kafka and the network are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from broker_filter.config import Kafka, Settings
from broker_filter.decode.native import encode_block, encode_photometry
from broker_filter.inference import zoo
from broker_filter.observe.metrics import Metrics
from broker_filter.schemas import decode_strict, schema_header
from broker_filter.service.assembly import make_intake
from broker_filter.service.garbage import collect_rarely
from broker_filter.types import Message, Photometry
from tests.bench.bench_window import CADENCE, START, exposure
from tests.bench.figures import Figure, show

TOPIC = "epochs"
POLL = 10_000
READ_BY_FASTAVRO = 20_000


def blocks(n_stars: int, n_blocks: int) -> tuple[float, float]:
    """Points a second of block messages, once every star is known, and of copies of them."""
    rng = np.random.default_rng(1)
    star = list(range(10**12, 10**12 + n_stars))
    sent = [exposure(star, START + i * CADENCE, rng) for i in range(n_blocks + 1)]
    values = [encode_block(each) for each in sent]
    taken = n_stars * n_blocks / _seconds(values, "photometry_block", 1)
    return taken, n_stars * n_blocks / _copying(sent[1:])


def _copying(sent: Sequence[Photometry]) -> float:
    """Seconds to put times, fluxes and errors into arrays with a row a star, as numpy does it."""
    rows = np.arange(len(sent[0]))
    held = np.zeros((3, len(rows), len(sent)), np.float32)
    began = time.process_time()
    for i, each in enumerate(sent):
        for column, values in zip(held, (each.mjd_tai, each.flux, each.flux_err), strict=True):
            column[rows, i] = values
    return time.process_time() - began


def single_epochs(n_stars: int, n_epochs: int) -> tuple[float, float]:
    """Messages a second of one epoch each, star by star, and those that fastavro reads."""
    rng = np.random.default_rng(2)
    star = range(10**12, 10**12 + n_stars)
    values = [
        encode_photometry(exposure([one], START + i * CADENCE, rng))
        for i in range(n_epochs + 1)
        for one in star
    ]
    began = time.process_time()
    for value in values[:READ_BY_FASTAVRO]:
        decode_strict("photometry", value)
    alone = len(values[:READ_BY_FASTAVRO]) / (time.process_time() - began)
    return n_stars * n_epochs / _seconds(values, "photometry", n_stars), alone


def measure(*, quick: bool = False) -> list[Figure]:
    """Points or messages a second."""
    n = 1_000 if quick else 20_000
    label = f"Points per second from block messages of {n:,} stars to windows"
    blocks(1_000, 20)  # loads the compiled loops
    points, copies = blocks(n, 5 if quick else 20)
    messages, read = single_epochs(n, 3)
    return [
        Figure("block_ingest", label, points, "points/s", "numpy copies of decoded ones", copies),
        Figure(
            "star_ingest",
            "Messages of one epoch per second to windows",
            *(messages, "messages/s", "read by fastavro alone", read),
        ),
    ]


def _seconds(values: list[bytes], schema: str, first: int) -> float:
    """Time for all messages but the ``first`` ones, in which the stars are new."""
    header = (schema_header(schema),)
    messages = [Message(TOPIC, 0, i, None, v, 0, header) for i, v in enumerate(values)]
    entry = zoo.verify(zoo.find("fspl-paper-0.1.0"))
    settings = Settings(kafka=Kafka(bootstrap_servers="nowhere:9092", input_topics=(TOPIC,)))
    intake = make_intake(settings, entry, Metrics())
    dead = intake.take(messages[:first], 0.0)
    collect_rarely()
    began = time.process_time()
    for start in range(first, len(messages), POLL):
        dead += intake.take(messages[start : start + POLL], 0.0)
    spent = time.process_time() - began
    if dead:
        raise RuntimeError(f"the bench's own messages are refused: {dead[0].detail}")
    return spent


if __name__ == "__main__":
    show(measure())
