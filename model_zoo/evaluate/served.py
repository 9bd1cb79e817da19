"""Which entry of the zoo serves which survey: the window and the prior are made for its cadence."""

from __future__ import annotations

from typing import Final

from broker_filter.config import Model

__all__ = ["SERVED", "serving"]

SERVED: Final = {
    "fspl-ground-1.0.0": ("ogle", "kmt", "moa", "macho", "eros", "prime", "ukirt"),
    "fspl-sparse-1.0.0": (
        *(
            "ztf",
            "lsst",
            "rubin",
            "crts",
            "catalina",
            "css",
            "sdss",
            "ptf",
            "iptf",
            "asas",
            "atlas",
        ),
        *("gaia", "ps1", "pan-starrs", "des", "decam", "vvv", "linear", "skymapper"),
    ),
}
"""Beginnings of the names of surveys, in lower case; all others are served by the default entry."""


def serving(survey: str) -> str:
    """The name of the entry whose windows and prior are made for a survey."""
    name = survey.lower()
    for entry, surveys in SERVED.items():
        if name.startswith(surveys):
            return entry
    return str(Model().id)
