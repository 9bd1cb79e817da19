"""Injection into the messages of a replay: photometry is magnified, packets become photometry.

A survey's packet cannot be magnified as it is: its magnitudes, statistics, history and cutouts
would have to agree again. So a packet in which a chosen star occurs is read as the filter reads it,
and what it holds goes out, magnified, as ``photometry_block`` messages, one for each band, source
and kind: to the filter they are the same epochs of the same star, though it may look at the star
between two of them. All other packets pass byte for byte.

An archive of alerts holds the epochs at which the survey itself saw a change, and the history of
such stars. Epochs that an event would have added are not in it, so that what is found in it is too
little rather than too much.
"""

from __future__ import annotations

from dataclasses import replace

from broker_filter.decode.decoder import Decoder
from broker_filter.decode.native import encode_block
from broker_filter.errors import PoisonMessage
from broker_filter.recovery.injection import Injector
from broker_filter.replay.publish import native_photometry, with_photometry
from broker_filter.replay.stream import Record
from broker_filter.schemas import schema_header
from broker_filter.types import Message, Photometry

__all__ = ["RecordInjector"]


class RecordInjector:
    """Puts events into records; what it gives is to be published in place of each.

    Parameters
    ----------
    injector : Injector
    decoder : Decoder
        Reads packets.
    """

    def __init__(self, injector: Injector, decoder: Decoder) -> None:
        self._injector, self._decoder = injector, decoder

    def __call__(self, record: Record) -> list[Record]:
        """Give the records in place of one: itself, unless a chosen star is in it.

        A packet that cannot be read passes as it is, for the filter to say what is wrong.

        Raises
        ------
        TransientError
            The schema of a packet cannot be had now.
        """
        photometry = native_photometry(record)
        if photometry is not None:
            changed = self._injector.magnify(photometry)
            return [record if changed is photometry else with_photometry(record, changed)]
        parts = self._parts(record)
        changed_parts = [self._injector.magnify(part, history=True) for part in parts]
        if all(new is old for new, old in zip(changed_parts, parts, strict=True)):
            return [record]
        return [_block(record, part) for part in changed_parts]

    def _parts(self, record: Record) -> tuple[Photometry, ...]:
        message = Message("", 0, 0, record.key, record.value, headers=record.headers)
        try:
            return self._decoder.decode(message).photometry
        except PoisonMessage:
            return ()


def _block(record: Record, photometry: Photometry) -> Record:
    return replace(
        record,
        key=str(photometry.star[0]).encode(),
        value=encode_block(photometry),
        headers=(schema_header("photometry_block"),),
    )
