"""How wide the family of noise of a star is, from its own history and from what its survey is like.

A narrow family keeps more events, one that is too narrow does not hold what the star does. So the
bounds come from the nights before the window, and are as wide as those nights leave them: few
nights know little, and are joined with figures that most stars of the survey keep to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from broker_filter.inference.noise_family import NoiseFamily
from broker_filter.types import SourceHistory, StarEpochs

__all__ = ["ENOUGH_NIGHTS", "NoiseBounds"]

ENOUGH_NIGHTS: Final = 10.0
"""So many nights weigh as much as the survey's figures."""
ENOUGH_EPOCHS: Final = 100.0
"""So many epochs, less their nights, do so for the scale of the errors."""
MARGIN: Final = 2.0
"""Standard errors by which the red noise may be larger than it was."""
NARROW, WIDE = 0.85, 1.25
"""Factors by which the scale of errors may change from what it was, down and up."""


@dataclass(frozen=True, slots=True)
class NoiseBounds:
    """Families of noise by survey and history.

    Parameters
    ----------
    usual : NoiseFamily
        Of stars without a history.
    surveys : mapping of str to NoiseFamily
        The same for stars of a survey; names are in lower case.
    """

    usual: NoiseFamily = field(default_factory=NoiseFamily)
    surveys: Mapping[str, NoiseFamily] = field(default_factory=dict)

    def families(self, epochs: StarEpochs) -> list[NoiseFamily]:
        """The family of each source of a star: fixed before the data of the window are."""
        histories = epochs.history or (None,) * len(epochs.sources)
        return [self.family(epochs.survey, history) for history in histories]

    def family(self, survey: str, history: SourceHistory | None) -> NoiseFamily:
        """The family of one source; ``history`` is what was known of it before the window."""
        usual = self.surveys.get(survey.lower(), self.usual)
        if history is None or history.nights <= 0:
            return usual
        scale, likely = _scales(usual, history)
        return replace(
            usual,
            scale=scale,
            red_noise=_red_noise(usual, history),
            likely_scale=likely,
            likely_red_noise=math.sqrt(history.night_squares - _own_noise(history)),
            nights=round(history.nights),
        )


def _scales(usual: NoiseFamily, history: SourceHistory) -> tuple[tuple[float, float], float]:
    """Bounds of the factor on the errors, and its likely value."""
    freedom = history.freedom
    if freedom <= 0:
        return usual.scale, usual.likely_scale
    share = freedom / (freedom + ENOUGH_EPOCHS)
    chance = 3 / math.sqrt(2 * freedom)
    own = max(history.error_scale, 0.1)
    low, high = own * NARROW / (1 + chance), own * WIDE * (1 + chance)

    def joined(survey: float, star: float) -> float:
        return math.exp((1 - share) * math.log(survey) + share * math.log(star))

    bounds = joined(usual.scale[0], low), joined(usual.scale[1], high)
    return bounds, joined(usual.likely_scale, own)


def _own_noise(history: SourceHistory) -> float:
    """Mean square of a night's offset that is the noise of its epochs."""
    return min(history.error_scale**2 * history.night_expected, history.night_squares)


def _red_noise(usual: NoiseFamily, history: SourceHistory) -> float:
    """Bound of the amplitude: scatter of nights beyond that of their epochs, and its error."""
    nights, squares = history.nights, history.night_squares
    square = squares - _own_noise(history) + MARGIN * squares * math.sqrt(2 / nights)
    share = nights / (nights + ENOUGH_NIGHTS)
    return math.sqrt((1 - share) * usual.red_noise**2 + share * square)
