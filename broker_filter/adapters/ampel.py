"""AMPEL: a T2 unit that is bound to the state of a stock, for LSST.

It sees all data points of the state, so K sees all history that AMPEL keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from broker_filter.adapters.evidence import evidence, lsst_columns

if TYPE_CHECKING:
    Base = object
else:
    try:
        from ampel.abstract.AbsStateT2Unit import AbsStateT2Unit as Base
    except ModuleNotFoundError:
        Base = object

__all__ = ["T2MicrolensingEvidence"]


class T2MicrolensingEvidence(Base):
    """Bayes factor of microlensing for the state of a stock."""

    survey: str = "lsst"

    def process(
        self, compound: Mapping[str, Any], datapoints: Iterable[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """K by name: what is known, with string keys and plain numbers."""
        time, flux, error, band = lsst_columns(point["body"] for point in datapoints)
        stock = compound["stock"]
        star = stock if isinstance(stock, int | str) else str(stock)
        return evidence(star, time, flux, error, band, survey=self.survey).known()
