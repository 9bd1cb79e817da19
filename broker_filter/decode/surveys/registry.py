"""Which survey a packet comes from, by the name of its schema, else by its fields.

ALeRCE's and Lasair's own JSON are not among them: no packet of theirs was at hand to test with.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import numpy as np

from broker_filter.config import Packets
from broker_filter.decode.selection import MISSING, Many, Packet, Selection
from broker_filter.decode.surveys import babamul, lsst, roman, ztf
from broker_filter.decode.surveys.survey import EventTime, Survey
from broker_filter.errors import ConfigError
from broker_filter.photometry.times import TimeSystem

__all__ = ["GROUP", "adapter_for", "check_cuts", "event_times", "surveys"]

GROUP: Final = "broker_filter.surveys"
"""Entry points under which other packages bring surveys."""


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


_UNNAMED: Final = Survey(
    "lsst",
    _merged(lsst.SELECTION, roman.SELECTION),
    _read_unnamed,
    outline=frozenset({"diaSource", "prvDiaSources"}),
    event_time=lsst.EVENT_TIME,
    cuts=lsst.SURVEY.cuts | roman.SURVEY.cuts,
    star_of=lsst.SURVEY.star_of,
)

_OURS: Final[tuple[Survey, ...]] = (
    lsst.SURVEY,
    lsst.ELASTICC,
    roman.SURVEY,
    _UNNAMED,
    babamul.ZTF,  # its outline holds that of ZTF itself
    babamul.LSST,
    ztf.SURVEY,
)
"""Surveys of this package; where two may be meant, the first is."""

# Names that say nothing: JSON and Parquet have none, Spark (Fink) writes these.
_NO_NAME: Final = re.compile(r"|schema|spark_schema|record|topLevelRecord(\..*)?")


@cache
def surveys() -> tuple[Survey, ...]:
    """All surveys: those of this package, then those of others, by the names of their entry points.

    Raises
    ------
    ConfigError
        An entry point cannot be imported or is no `Survey`, or two surveys contradict each other.
    """
    found = list(_OURS)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        survey = _loaded(entry)
        _check(survey, found, _described(entry))
        found.append(survey)
    return tuple(found)


def _loaded(entry: EntryPoint) -> Survey:
    try:
        survey = entry.load()
    except Exception as error:
        raise ConfigError(
            f"{_described(entry)} cannot be loaded: {error!r:.300}. Mend or uninstall that package"
        ) from error
    if not isinstance(survey, Survey):
        raise ConfigError(
            f"{_described(entry)} is a {type(survey).__name__}, not a"
            " broker_filter.decode.surveys.survey.Survey"
        )
    return survey


def _described(entry: EntryPoint) -> str:
    package = f" of the package {entry.dist.name} {entry.dist.version}" if entry.dist else ""
    return f"the survey {entry.name} = {entry.value}{package} (entry point {GROUP})"


def _check(survey: Survey, others: Collection[Survey], described: str) -> None:
    """Refuse what could be meant by nobody."""
    if not survey.name or survey.name in {other.name for other in others}:
        raise ConfigError(f"{described} has the name {survey.name!r}, which is empty or taken")
    try:
        re.compile(survey.schema_name)
    except re.error as error:
        raise ConfigError(f"{described}: schema_name is no regular expression: {error}") from error
    for field, system in survey.event_time.items():
        for other in others:
            if other.event_time.get(field, system) != system:
                raise ConfigError(
                    f"{described} has {'.'.join(field)} in {system.name}, {other.name} in"
                    f" {other.event_time[field].name}: an archive cannot be read in both"
                )


@cache
def event_times() -> EventTime:
    """Where packets of any survey hold their time, and in which system; the first counts."""
    found: dict[tuple[str, str], TimeSystem] = {}
    for survey in surveys():
        for field, system in survey.event_time.items():
            found.setdefault(field, system)
    return found


def check_cuts(packets: Packets, key: str) -> None:
    """Refuse names of cuts that no survey has.

    Parameters
    ----------
    packets : Packets
    key : str
        Under which the settings have them, for the message.

    Raises
    ------
    ConfigError
        With the names that there are; and as `surveys`.
    """
    known = frozenset[str]().union(*(survey.cuts for survey in surveys()))
    if wrong := [name for name in packets.ignored_cuts if name not in known]:
        raise ConfigError(
            f"{key}.ignored_cuts: {', '.join(map(repr, wrong))}: no survey has such a cut; there"
            f" are {', '.join(sorted(known))}"
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

    Raises
    ------
    ConfigError
        As `surveys`.
    """
    for survey in surveys():
        if survey.schema_name and re.fullmatch(survey.schema_name, schema_name):
            return survey
    if not _NO_NAME.fullmatch(schema_name):
        return None
    names = frozenset(field_names)
    alike = (survey for survey in surveys() if survey.outline and survey.outline <= names)
    return next(alike, None)
