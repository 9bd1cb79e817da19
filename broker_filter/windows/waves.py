"""How messages of one poll are put together without changing what their windows see.

A window that is due is read before its star's next message comes, so two messages of one star go
into two waves. All that is in one wave is inserted in few large steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from broker_filter.types import FloatArray, Photometry, StarId

__all__ = ["concatenate", "waves"]


def waves(packets: Sequence[Sequence[Photometry]]) -> list[list[Photometry]]:
    """Part messages so that no star occurs in two of one wave, and its own stay in their order.

    Each message goes into the wave after the last one in which a star of it occurs. A message may
    have several parts, such as the bands of one star; they stay together.
    """
    packets = [parts for parts in packets if parts]
    if len(packets) == 1:
        return [list(packets[0])]
    found: list[list[Photometry]] = []
    next_wave: dict[StarId, int] = {}
    last: list[StarId] | None = None
    at = 0
    for parts in packets:
        stars = parts[0].star if len(parts) == 1 else [star for part in parts for star in part.star]
        # Exposure after exposure of one field: quicker than to look up all.
        if stars is last or stars == last:
            at += 1
        else:
            next_wave.update(dict.fromkeys(last or (), at + 1))
            last = stars
            at = max(map(next_wave.__getitem__, next_wave.keys() & set(stars)), default=0)
        if at == len(found):
            found.append([])
        found[at] += parts
    return found


def concatenate(pieces: Sequence[Photometry]) -> list[Photometry]:
    """Join messages of the same survey, band, source and kind, in order of first appearance."""
    groups: dict[tuple[str, str, str, str, bool], list[Photometry]] = {}
    for piece in pieces:
        key = (piece.survey, piece.band, piece.source, piece.kind, piece.relative)
        groups.setdefault(key, []).append(piece)
    return [group[0] if len(group) == 1 else _joined(group) for group in groups.values()]


def _joined(group: list[Photometry]) -> Photometry:
    def column(name: str) -> FloatArray:
        return np.concatenate([getattr(piece, name) for piece in group])

    first = group[0]
    coordinates = {}
    for piece in group:
        coordinates.update(piece.coordinates)
    return Photometry(
        survey=first.survey,
        band=first.band,
        source=first.source,
        star=list(chain.from_iterable(piece.star for piece in group)),
        mjd_tai=column("mjd_tai"),
        flux=column("flux"),
        flux_err=column("flux_err"),
        flags=np.concatenate([piece.flags for piece in group]),
        ref_flux=column("ref_flux"),
        ref_flux_err=column("ref_flux_err"),
        kind=first.kind,
        relative=first.relative,
        coordinates=coordinates,
        same_epoch_s=max(piece.same_epoch_s for piece in group),
    )
