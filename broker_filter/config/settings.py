"""All settings, read from a YAML file and then from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from broker_filter.config.alert import AlertSettings
from broker_filter.config.fields import STRICT
from broker_filter.config.file import (
    hidden,
    problem_lines,
    put,
    read_secrets,
    read_yaml,
    unknown_variables,
    variables,
    written_secrets,
)
from broker_filter.config.input import Input
from broker_filter.config.kafka import Kafka
from broker_filter.config.model import Batch, Model
from broker_filter.config.service import DeadLetters, Log, MetricsSettings, Snapshot
from broker_filter.config.window import ScheduleSettings, Window
from broker_filter.errors import ConfigError

__all__ = ["Settings", "load_settings", "masked", "unread_variables"]


class Settings(BaseModel):
    """All settings; the attributes are the sections of the file."""

    model_config = STRICT

    kafka: Kafka = Field(description=str(Kafka.__doc__))
    input: Input = Field(default_factory=Input, description=str(Input.__doc__))
    window: Window = Field(default_factory=Window, description=str(Window.__doc__))
    schedule: ScheduleSettings = Field(
        default_factory=ScheduleSettings, description=str(ScheduleSettings.__doc__)
    )
    model: Model = Field(default_factory=Model, description=str(Model.__doc__))
    alert: AlertSettings = Field(
        default_factory=AlertSettings, description=str(AlertSettings.__doc__)
    )
    batch: Batch = Field(default_factory=Batch, description=str(Batch.__doc__))
    snapshot: Snapshot = Field(default_factory=Snapshot, description=str(Snapshot.__doc__))
    dead_letters: DeadLetters = Field(
        default_factory=DeadLetters, description=str(DeadLetters.__doc__)
    )
    metrics: MetricsSettings = Field(
        default_factory=MetricsSettings, description=str(MetricsSettings.__doc__)
    )
    log: Log = Field(default_factory=Log, description=str(Log.__doc__))

    @model_validator(mode="after")
    def _windows_can_be_due(self) -> Self:
        if self.schedule.min_points > self.window.max_points:
            raise ValueError(
                f"schedule.min_points {self.schedule.min_points} must not be more than"
                f" window.max_points {self.window.max_points}"
            )
        return self

    @model_validator(mode="after")
    def _topics_are_read(self) -> Self:
        topics = self.kafka.input_topics
        for name in self.input.topic_schemas:
            if name not in topics and not any(re.match(at, name) for at in self.kafka.patterns):
                raise ValueError(
                    f"input.topic_schemas: {name!r} is none of kafka.input_topics:"
                    f" {', '.join(topics)}"
                )
        return self


def load_settings(path: Path | None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from a YAML file, overridden by the environment.

    Parameters
    ----------
    path : Path or None
        The YAML file; None takes everything from the environment.
    environ : mapping, optional
        Environment variables; those of the process by default.

    Returns
    -------
    Settings

    Raises
    ------
    ConfigError
        With one line per problem: where it stands, the key, its value (never a secret), what is
        allowed, and the nearest key where one is misspelt.
    """
    tree, places = read_yaml(path) if path else ({}, {})
    problems = written_secrets(tree, places)
    if path:
        places[()] = str(path)
    for name, keys, value in variables(os.environ if environ is None else environ):
        places[keys] = name
        for n in range(1, len(keys)):
            places.setdefault(keys[:n], name)
        if not put(tree, keys, value):
            problems.append(f"{name}: {'.'.join(keys[:-1])} is not a section")
    problems += read_secrets(tree)
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        problems += problem_lines(Settings, error, places, tree)
    if problems:
        # "from None" above all keeps the values that pydantic saw out of tracebacks.
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None
    return settings


def masked(settings: Settings) -> dict[str, Any]:
    """Return the settings as plain values, with asterisks for secrets, also those in URLs."""
    shown: dict[str, Any] = _hidden(settings.model_dump(mode="json"))
    return shown


def _hidden(tree: Any) -> Any:  # noqa: ANN401  a tree of plain values
    if isinstance(tree, dict):
        return {key: _hidden(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_hidden(value) for value in tree]
    return hidden(tree) if isinstance(tree, str) else tree


def unread_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """A line for each environment variable that looks like one of ours, but is not read."""
    return unknown_variables(Settings, os.environ if environ is None else environ)
