"""The entries of the model zoo that the settings name."""

from __future__ import annotations

from broker_filter.config import Settings
from broker_filter.errors import ConfigError
from broker_filter.inference.zoo import Entry, find, verify

__all__ = ["open_entry", "survey_entries"]


def open_entry(settings: Settings) -> Entry:
    """The verified zoo entry that the settings name."""
    return verify(settings.model.path or find(settings.model.id))


def survey_entries(settings: Settings, entry: Entry) -> dict[str, Entry]:
    """Verified entries of the surveys (in lower case) that have their own.

    Raises
    ------
    ConfigError
        If the windows of one are not as long as those of the main entry, or hold all bands of a
        star where those hold single ones.
    """
    entries = {name.lower(): verify(find(id_)) for name, id_ in settings.model.surveys.items()}
    for name, other in entries.items():
        if other.window_days != entry.window_days:
            raise ConfigError(
                f"model.surveys: {name}: {other.model_id} has windows of {other.window_days:g} d,"
                f" {entry.model_id} of {entry.window_days:g} d; one filter has one length"
            )
        if other.joins_bands != entry.joins_bands:
            joins, parts = (other, entry) if other.joins_bands else (entry, other)
            raise ConfigError(
                f"model.surveys: {name}: windows of {joins.model_id} hold all bands of a star,"
                f" those of {parts.model_id} single ones; one filter has one kind"
            )
    return entries
