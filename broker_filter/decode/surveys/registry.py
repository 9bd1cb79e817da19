"""Which survey a packet comes from, by the name of its schema, else by its fields.

ALeRCE's and Lasair's own JSON are not among them: no packet of theirs was at hand to test with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from broker_filter.config import Packets
from broker_filter.decode.selection import MISSING, Many, Packet, Selection
from broker_filter.decode.surveys import babamul, lsst, roman, ztf

__all__ = ["SURVEYS", "Survey", "adapter_for"]

Reader: TypeAlias = Callable[[dict[str, Any], Packets], Packet]
"""From what was selected of a packet to its photometry."""


@dataclass(frozen=True, slots=True)
class Survey:
    """How the packets of one survey are read.

    Parameters
    ----------
    name : str
    selection : Selection
        What is read of the packet.
    read : Reader
        What makes photometry of it.
    """

    name: str
    selection: Selection
    read: Reader


def _merged(one: Selection, other: Selection) -> Selection:
    """What either selects."""
    both: dict[str, Any] = {**one, **other}
    for name in one.keys() & other.keys():
        a, b = one[name], other[name]
        if isinstance(a, Many) and isinstance(b, Many):
            both[name] = Many({**a.fields, **b.fields})
        elif isinstance(a, Mapping) and isinstance(b, Mapping):
            both[name] = _merged(a, b)
    return both


def _read_unnamed(record: dict[str, Any], options: Packets) -> Packet:
    """LSST, ELAsTiCC and RAPID packets have the same outline; their detections differ."""
    first = record["diaSource"]
    if first is not None and first["sca"] != MISSING["i8"]:
        return roman.read(record, options)
    if first is not None and np.isfinite(first["midPointTai"]):
        return lsst.read_elasticc(record, options)
    return lsst.read(record, options)


_ZTF: Final = Survey("ztf", ztf.SELECTION, ztf.read)
_BABAMUL_ZTF: Final = Survey("babamul-ztf", babamul.ZTF_SELECTION, babamul.read_ztf)
_BABAMUL_LSST: Final = Survey("babamul-lsst", babamul.LSST_SELECTION, babamul.read_lsst)
_UNNAMED: Final = Survey("lsst", _merged(lsst.SELECTION, roman.SELECTION), _read_unnamed)

SURVEYS: Final[Mapping[str, Survey]] = {
    r"ztf\.alert": _ZTF,
    r"lsst\.v\d+_\d+\.alert": Survey("lsst", lsst.SELECTION, lsst.read),
    r"elasticc\.v\w+\.alert": Survey("elasticc", lsst.SELECTION, lsst.read_elasticc),
    r"rapid\.v\d+_\d+\.alert": Survey("roman", roman.SELECTION, roman.read),
    r"(.*\.)?EnrichedZtfAlert": _BABAMUL_ZTF,
    r"(.*\.)?EnrichedLsstAlert": _BABAMUL_LSST,
}
"""Pattern of the schema's full name to the survey."""

# Names that say nothing: JSON and Parquet have none, Spark (Fink) writes these.
_NO_NAME: Final = re.compile(r"|schema|spark_schema|record|topLevelRecord(\..*)?")

_BY_FIELDS: Final[tuple[tuple[frozenset[str], Survey], ...]] = (
    (frozenset({"objectId", "candidate", "prv_nondetections"}), _BABAMUL_ZTF),
    (frozenset({"objectId", "candidate", "properties"}), _BABAMUL_LSST),
    (frozenset({"objectId", "candidate", "prv_candidates"}), _ZTF),
    (frozenset({"diaSource", "prvDiaSources"}), _UNNAMED),
)


def adapter_for(schema_name: str, field_names: Collection[str]) -> Survey | None:
    """Find out how a packet is read.

    Parameters
    ----------
    schema_name : str
        Full name of the record's schema; empty where there is none.
    field_names : collection of str
        Names of the record's fields.

    Returns
    -------
    Survey or None
        None where the survey is not known. A name that is known or that names something else
        decides alone: packets of other surveys borrow ZTF's field names.
    """
    for pattern, survey in SURVEYS.items():
        if re.fullmatch(pattern, schema_name):
            return survey
    if not _NO_NAME.fullmatch(schema_name):
        return None
    names = frozenset(field_names)
    return next((survey for fields, survey in _BY_FIELDS if fields <= names), None)
