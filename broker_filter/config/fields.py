"""Types of the fields, and rules, that several sections share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

__all__ = ["SAFE_URL", "STRICT", "BySurvey", "File", "InputTopic", "Pair", "Topic", "split"]

STRICT = ConfigDict(
    extra="forbid",
    frozen=True,
    hide_input_in_errors=True,
    allow_inf_nan=False,
    str_min_length=1,
)
T = TypeVar("T")

SAFE_URL = re.compile(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])[:/]")

Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
InputTopic = Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]{1,249}|\^.{1,248})$")]


def _named(value: object) -> object:
    # An empty path would be the folder in which the process happens to run.
    if isinstance(value, str) and (not value or "\0" in value):
        raise ValueError("is no path: it is empty, or holds a NUL")
    return value


File = Annotated[Path, BeforeValidator(_named)]


def split(value: object) -> object:
    """Part a text at its commas, as variables of the environment write lists."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _distinct(surveys: dict[str, T]) -> dict[str, T]:
    """Refuse names of which but one could ever hold: messages match them in any case."""
    names: dict[str, str] = {}
    for name in surveys:
        if (other := names.setdefault(name.lower(), name)) != name:
            raise ValueError(f"{other!r} and {name!r} are one survey: case does not matter")
    return surveys


# The bound is that of messages: a longer name would match none.
BySurvey = Annotated[
    dict[Annotated[str, Field(max_length=64)], T], Field(max_length=100), AfterValidator(_distinct)
]
"""Something for each of some surveys, by the name that their photometry has."""


def _two(value: object) -> object:
    value = split(value)
    if isinstance(value, list | tuple) and len(value) != 2:
        raise ValueError("needs two numbers")
    return value


Pair = Annotated[tuple[float, float], BeforeValidator(_two)]
