"""Types of the fields, and rules, that several sections share."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import ConfigDict, Field

__all__ = ["SAFE_URL", "STRICT", "InputTopic", "Topic", "split"]

STRICT = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
SAFE_URL = re.compile(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])[:/]")

Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
InputTopic = Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]{1,249}|\^.{1,248})$")]


def split(value: object) -> object:
    """Part a text at its commas, as variables of the environment write lists."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value
