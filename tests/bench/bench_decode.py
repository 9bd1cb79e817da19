"""How fast messages become photometry: ``python tests/bench/bench_decode.py``.

Prints one row a case; ``measure`` returns the same figures for the table of ``make bench``.
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


def measure() -> dict[str, float]:
    """Points or messages a second, by case."""
    decoder, block, one = Decoder(), exposure(ROWS), exposure(1)
    place = {one.star[0]: (268.1, -29.2)}
    places = dict.fromkeys(block.star, (268.1, -29.2))
    blocks = {
        "int ids": block,
        "text ids": replace(block, star=[f"RGES-{star}" for star in block.star]),
        "int ids, coordinates": replace(block, coordinates=places),
    }
    rates = {}
    for name, photometry in blocks.items():
        sent = message(encode_block(photometry), "photometry_block")
        rates[f"block, {name}: points/s"] = ROWS / seconds(lambda m=sent: decoder.decode(m), 100)
    single = encode_photometry(replace(one, coordinates=place))
    sent = message(single, "photometry")
    rates["one star: messages/s"] = 1 / seconds(lambda: decoder.decode(sent), 20_000)
    rates["one star, fastavro alone: messages/s"] = 1 / seconds(
        lambda: decode_strict("photometry", single), 20_000
    )
    rates["write block: points/s"] = ROWS / seconds(lambda: encode_block(block), 30)
    rates["write one star: messages/s"] = 1 / seconds(lambda: encode_photometry(one), 5000)
    return rates


if __name__ == "__main__":
    for case, rate in measure().items():
        print(f"{case:45s} {rate:14,.0f}")
