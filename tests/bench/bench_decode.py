"""How fast messages become photometry: ``python -m tests.bench.bench_decode``.

Prints one row a case; ``measure`` returns the same figures for the table of ``make bench``.
The rival of decoding is fastavro alone, which makes a dict of the bytes and checks nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from broker_filter.decode.decoder import Decoder
from broker_filter.decode.native import encode_block, encode_photometry
from broker_filter.schemas import decode_strict, schema_header
from broker_filter.types import Message, Photometry
from tests.bench.figures import Figure, show

ROWS = 10_000


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Best of five runs of ``repeats`` calls, seconds a call: the least disturbed one."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def exposure(n: int) -> Photometry:
    """One exposure of n stars with catalogue fluxes, as a survey bridge sends it."""
    rng = np.random.default_rng(1)
    return Photometry(
        survey="roman",
        band="F146",
        source="",
        star=[10**12 + i for i in range(n)],
        mjd_tai=np.full(n, 61500.25),
        flux=rng.normal(15_000, 30, n),
        flux_err=np.full(n, 30.0),
        flags=np.zeros(n, np.uint32),
        ref_flux=np.full(n, 15_000.0),
        ref_flux_err=np.full(n, 15.0),
    )


def message(value: bytes, schema: str) -> Message:
    return Message("epochs", 0, 0, b"7", value, 0, (schema_header(schema),))


def measure(*, quick: bool = False) -> list[Figure]:
    """Points or messages a second; nothing where it must be quick."""
    if quick:
        return []
    decoder, block, one = Decoder(), exposure(ROWS), exposure(1)
    place = {one.star[0]: (268.1, -29.2)}
    places = dict.fromkeys(block.star, (268.1, -29.2))
    blocks = {
        "integer star ids": ("int", block),
        "star ids as text": ("text", replace(block, star=[f"RGES-{star}" for star in block.star])),
        "with coordinates": ("coordinates", replace(block, coordinates=places)),
    }
    figures = []
    for words, (name, photometry) in blocks.items():
        sent = message(encode_block(photometry), "photometry_block")
        rate = ROWS / seconds(lambda m=sent: decoder.decode(m), 100)
        label = f"Points decoded per second from block messages, {words}"
        figures.append(Figure(f"decode_block_{name}", label, rate, "points/s"))
    single = encode_photometry(replace(one, coordinates=place))
    sent = message(single, "photometry")
    return [
        *figures,
        Figure(
            "decode_star",
            "Messages of one star decoded and checked per second",
            1 / seconds(lambda: decoder.decode(sent), 20_000),
            "messages/s",
            "fastavro alone",
            1 / seconds(lambda: decode_strict("photometry", single), 20_000),
        ),
        Figure(
            "encode_block",
            "Points written per second as block messages",
            ROWS / seconds(lambda: encode_block(block), 30),
            "points/s",
        ),
        Figure(
            "encode_star",
            "Messages of one star written per second",
            1 / seconds(lambda: encode_photometry(one), 5000),
            "messages/s",
        ),
    ]


if __name__ == "__main__":
    show(measure())
