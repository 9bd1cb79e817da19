"""What a user may choose about the reading of survey packets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["SurveyOptions"]


@dataclass(frozen=True, slots=True)
class SurveyOptions:
    """How survey packets are read; the defaults reject rather than guess.

    Parameters
    ----------
    ignored_cuts : frozenset of str
        Quality cuts that reject nothing, by the names under which they are counted: ``"nbad"``,
        ``"pixelFlags_streak"``.
    star_behind : "both" or "either"
        Which shape criteria of ZTF's nearest reference source must hold besides its distance, for
        its flux to be taken as the star's: chi and sharpness, or one of them (as Fink has it).
    ztf_min_rb : float
        Least real-bogus score of a ZTF detection; 0 cuts nothing.
    lsst_min_reliability : float
        The same for LSST, whose score is not yet trustworthy.
    roman_zero_points : dict of str to float
        Band to AB magnitude of 1 DN in RAPID's difference images. RAPID's fluxes are instrumental
        whatever their name says, so that bands that are not listed are rejected and counted.
        `broker_filter.decode.surveys.roman.NOMINAL_ZERO_POINTS` are those of simulated images.
    roman_time : "start_utc" or "mid_tai"
        What ``midpointMjdTai`` of RAPID holds: the header's MJD-OBS (start of exposure, UTC), as
        its writer fills it, or what its name says.
    roman_exposure_s : float
        Length of a Roman exposure, seconds: half of it is added to a start.
    """

    ignored_cuts: frozenset[str] = frozenset()
    star_behind: Literal["both", "either"] = "both"
    ztf_min_rb: float = 0.0
    lsst_min_reliability: float = 0.0
    roman_zero_points: Mapping[str, float] = field(default_factory=dict)
    roman_time: Literal["start_utc", "mid_tai"] = "start_utc"
    roman_exposure_s: float = 0.0
