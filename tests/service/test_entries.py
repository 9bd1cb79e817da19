"""Entries that the settings name for surveys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_filter.config import Settings
from broker_filter.errors import ConfigError, ModelError
from broker_filter.service.entries import open_entry, survey_entries


def settings(**surveys: str) -> Settings:
    kafka = {"bootstrap_servers": "localhost:9092", "input_topics": ["photometry"]}
    return Settings.model_validate({"kafka": kafka, "model": {"surveys": surveys}})


def test_a_survey_has_the_entry_that_the_settings_name() -> None:
    chosen = settings(ZTF="fspl-paper-1.0.0")
    found = survey_entries(chosen, open_entry(chosen))
    assert {name: entry.model_id for name, entry in found.items()} == {"ztf": "fspl-paper-1.0.0"}
    assert survey_entries(settings(), open_entry(settings())) == {}


def test_an_entry_that_is_not_there_is_named() -> None:
    chosen = settings(ztf="fspl-nowhere-1.0.0")
    with pytest.raises(ModelError, match=r"fspl-nowhere-1.0.0"):
        survey_entries(chosen, open_entry(chosen))


def test_windows_of_another_length_are_refused() -> None:
    chosen = settings(ztf="fspl-paper-1.0.0")
    entry = open_entry(chosen)
    window = {**entry.config["window"], "days": 150.0}
    longer = replace(entry, config={**entry.config, "window": window})
    with pytest.raises(ConfigError, match=r"ztf: fspl-paper-1.0.0 has windows of 20 d"):
        survey_entries(chosen, longer)


def test_windows_of_single_bands_beside_those_of_all_are_refused() -> None:
    chosen = settings(ztf="fspl-paper-1.0.0")
    entry = open_entry(chosen)
    window = {**entry.config["window"], "joins_bands": True}
    joins = replace(entry, config={**entry.config, "window": window})
    with pytest.raises(ConfigError, match=r"of fspl-roman-1.0.0 hold all bands of a star"):
        survey_entries(chosen, joins)
