"""A survey in a package of its own: packets of one band, in magnitudes, with a short history.

The whole of what such a package needs besides its metadata::

    [project.entry-points."broker_filter.surveys"]
    example = "example_survey:SURVEY"
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np

from broker_filter.config import Packets
from broker_filter.decode.selection import Leaf, Many, Packet, Selection
from broker_filter.decode.surveys.epochs import Star, epochs_of, make_packet
from broker_filter.decode.surveys.quality import cut, stacked
from broker_filter.decode.surveys.survey import Survey
from broker_filter.photometry.magnitudes import flux_error, flux_of
from broker_filter.photometry.times import TIME_SYSTEMS, to_mjd_tai

POINT: Final[dict[str, Leaf]] = {"hjd": "f8", "mag": "f8", "mag_err": "f8", "quality": "str"}
SELECTION: Final[Selection] = {
    "star": "str",
    "ra": "f8",
    "dec": "f8",
    "newest": POINT,
    "earlier": Many(POINT),
}


def read(record: dict[str, Any], _options: Packets) -> Packet:
    """Make photometry of a packet; rejected: ``quality`` (other than A)."""
    rejected: Counter[str] = Counter()
    if record["newest"] is None:
        return Packet((), Counter({"no_object": 1}))
    table = stacked(record["newest"], record["earlier"])
    table = cut(table, {"quality": table["quality"] != "A"}, rejected)
    flux = flux_of(table["mag"])
    epochs = epochs_of(
        to_mjd_tai(table["hjd"], TIME_SYSTEMS["HJD"]),
        flux,
        flux_error(flux, table["mag_err"]),
        np.full(len(flux), "I"),
        total=True,
        forced=False,
    )
    star = Star("example", record["star"], record["ra"], record["dec"])
    return make_packet(star, [epochs], rejected)


SURVEY: Final = Survey(
    "example",
    SELECTION,
    read,
    schema_name=r"example\.packet",
    outline=frozenset({"star", "newest", "earlier"}),
    event_time={("newest", "hjd"): TIME_SYSTEMS["HJD"]},
)
