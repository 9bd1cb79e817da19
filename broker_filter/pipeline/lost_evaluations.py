"""Evaluations that failed: counted and logged, unless so many fail that no star is at fault."""

from __future__ import annotations

import logging
import threading
from typing import Final

from broker_filter.observe.metrics import Metrics
from broker_filter.pipeline.candidate import Candidate

__all__ = ["LostEvaluations"]

_log = logging.getLogger(__name__)

MAX_LOST_IN_A_ROW: Final = 1000
"""So many failed evaluations without one that works are no star's fault: the process ends."""


class LostEvaluations:
    """What failed for single windows; may be called from any thread.

    Parameters
    ----------
    metrics : Metrics
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._in_a_row = metrics, 0
        self._lock = threading.Lock()

    def note(self, window: Candidate, error: Exception, stage: str) -> None:
        """Count and log what failed for one window; raise it where every window fails."""
        self._metrics.inc("evaluations_lost_total", stage=stage)
        survey, star, band = window.key
        about = {"event": "evaluation_lost", "stage": stage, "star": str(star), "band": band}
        _log.error(
            "%s of the window of star %r in %s at MJD %.5f failed: %s: %s",
            *(stage, star, f"{survey} {band}", window.last_mjd, type(error).__name__, error),
            exc_info=error,
            extra=about,
        )
        with self._lock:
            self._in_a_row += 1
            too_many = self._in_a_row >= MAX_LOST_IN_A_ROW
        if too_many:
            raise error

    def end_row(self) -> None:
        """Note that an evaluation worked."""
        self._in_a_row = 0
