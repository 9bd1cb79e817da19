"""Shapes of what is not a lens, with the prior of each: rivals of the lens.

Numbers are those of published samples: flares of Guenther et al. 2020 (AJ 159, 60) in the shape of
Davenport et al. 2014 (ApJ 797, 122), dwarf novae of Mroz et al. 2015 (AcA 65, 313). Outbursts are
wide enough in time for those of Be stars and for supernovae too. Light of neighbours only makes
amplitudes smaller, so that all are uniform in their logarithm, over the whole range that can be
seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from broker_filter.inference import shape_loops
from broker_filter.inference.rival_amplitude import Amplitude, AnySign, Between
from broker_filter.types import FloatArray

__all__ = [
    "CURVED",
    "FLARE",
    "SHORTEST_PERIOD",
    "CurvedShape",
    "LogNormal",
    "Period",
    "Span",
    "Uniform",
]

EDGE: Final = 1e-9
SHORTEST_PERIOD: Final = 0.05
DAY_MINUTES: Final = 1440.0


@dataclass(frozen=True, slots=True)
class Span:
    """When an event may be, in days."""

    first: float
    last: float


class Prior(Protocol):
    """Prior of one parameter, which is a function of a standard normal number z."""

    def of(self, z: FloatArray, span: Span) -> FloatArray:
        """The parameter."""

    def z(self, value: FloatArray, span: Span) -> FloatArray:
        """The inverse."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """A time, uniform over the span and some share of it before."""

    before: float = 0.0

    def of(self, z: FloatArray, span: Span) -> FloatArray:
        """See `Prior`."""
        first = self._first(span)
        return np.asarray(first + (span.last - first) * ndtr(z))

    def z(self, value: FloatArray, span: Span) -> FloatArray:
        """See `Prior`."""
        first = self._first(span)
        # A span of no length has one time, which is its middle.
        place = (
            (value - first) / (span.last - first) if span.last > first else np.full_like(value, 0.5)
        )
        return np.asarray(ndtri(np.clip(place, EDGE, 1 - EDGE)))

    def _first(self, span: Span) -> float:
        return span.first - self.before * (span.last - span.first)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A duration of this median, days, and this standard deviation of its natural logarithm.

    Below the median the deviation is ``shorter``, where one is given.
    """

    median: float
    spread: float
    shorter: float | None = None

    def of(self, z: FloatArray, span: Span) -> FloatArray:
        """See `Prior`."""
        del span
        return np.asarray(self.median * np.exp(self._spread(z) * z))

    def z(self, value: FloatArray, span: Span) -> FloatArray:
        """See `Prior`."""
        del span
        log = np.log(value / self.median)
        return np.asarray(log / self._spread(log))

    def _spread(self, at: FloatArray) -> FloatArray | float:
        return self.spread if self.shorter is None else np.where(at < 0, self.shorter, self.spread)


@dataclass(frozen=True, slots=True)
class Period:
    """A period, uniform in its logarithm from `SHORTEST_PERIOD` to half the span.

    A longer one would be seen less than twice, and any single bump has such a period.
    """

    def of(self, z: FloatArray, span: Span) -> FloatArray:
        """See `Prior`."""
        return np.asarray(SHORTEST_PERIOD * np.exp(self._log_range(span) * ndtr(z)))

    def z(self, value: FloatArray, span: Span) -> FloatArray:
        """See `Prior`."""
        place = np.log(value / SHORTEST_PERIOD) / self._log_range(span)
        return np.asarray(ndtri(np.clip(place, EDGE, 1 - EDGE)))

    def _log_range(self, span: Span) -> float:
        longest = max(0.5 * (span.last - span.first), 2 * SHORTEST_PERIOD)
        return math.log(longest / SHORTEST_PERIOD)


@dataclass(frozen=True, slots=True)
class CurvedShape:
    """A shape with parameters in which it is not linear, and one amplitude for each source.

    Parameters
    ----------
    name : str
    parameters : tuple of str
        Their names: times and durations in days.
    priors : tuple of Prior
        One for each.
    columns : callable
        Of times and parameters; see `broker_filter.inference.shape_loops`.
    amplitude : Amplitude
        Of the columns, in units of the baseline; each source has its own.
    centre : callable, optional
        Of durations, shape (m, d - 1): how long after the first parameter the light is highest.
        None for a shape without a time of its own.
    samples : int
        Of each round that its marginal likelihood is estimated by.
    """

    name: str
    parameters: tuple[str, ...]
    priors: tuple[Prior, ...]
    columns: Callable[[FloatArray, FloatArray], FloatArray]
    amplitude: Amplitude
    centre: Callable[[FloatArray], FloatArray] | None
    samples: int = 60

    @property
    def dimensions(self) -> int:
        """Number of parameters."""
        return len(self.priors)

    def shape(self, t: FloatArray, theta: FloatArray) -> FloatArray:
        """Columns in which the flux is linear, shape (n, m, q).

        Parameters
        ----------
        t : ndarray, shape (n,), float64, days
        theta : ndarray, shape (m, d), float64
        """
        return np.asarray(self.columns(t, theta)).transpose(1, 2, 0)

    def theta(self, z: FloatArray, span: Span) -> FloatArray:
        """Parameters, shape (m, d), of standard normal numbers."""
        columns = [prior.of(z[:, i], span) for i, prior in enumerate(self.priors)]
        return np.stack(columns, axis=1)

    def z(self, theta: FloatArray, span: Span) -> FloatArray:
        """The inverse of `theta`."""
        columns = [prior.z(theta[:, i], span) for i, prior in enumerate(self.priors)]
        return np.stack(columns, axis=1)


def _no_delay(durations: FloatArray) -> FloatArray:
    return np.zeros(len(durations))


FLARE: Final = CurvedShape(
    "flare",
    ("t_peak", "fwhm"),
    # 1.5, 6.6, 38 min at 5, 50, 95 %; the spread is wider for the long ones of high amplitude.
    (Uniform(), LogNormal(6.6 / DAY_MINUTES, 1.3)),
    shape_loops.flare,
    Between.logarithmic(0.003, 10.0, 6),
    _no_delay,
    300,  # it is shorter than the time between epochs, so that maxima are narrow and many
)

CURVED: Final = (
    FLARE,
    CurvedShape(
        "outburst",
        ("t_start", "rise", "plateau", "decline"),
        # 3.8, 9, 21.9 d in all at 5, 50, 95 % for dwarf novae; .33 to 3.6 mag, less where blended.
        # None is over in hours; Be stars and supernovae take months.
        (Uniform(0.3), LogNormal(0.7, 1.0, 0.6), LogNormal(2.0, 1.3), LogNormal(2.0, 1.2, 0.6)),
        shape_loops.outburst,
        Between.logarithmic(0.01, 30.0, 6),
        lambda durations: np.asarray(durations[:, 0] + 0.5 * durations[:, 1]),
    ),
    CurvedShape(
        "dip",
        ("t_min", "width"),
        (Uniform(), LogNormal(0.5, 1.5)),
        shape_loops.dip,
        Between.logarithmic(0.003, 1.0, 5),
        _no_delay,
    ),
    CurvedShape(
        "trend",
        ("t_step", "width"),
        # From a step in an hour to a drift over a season.
        (Uniform(), LogNormal(3.0, 2.0)),
        shape_loops.step,
        AnySign((0.01, 0.1, 1.0)),
        _no_delay,
    ),
    CurvedShape(
        "periodic",
        ("period",),
        (Period(),),
        shape_loops.harmonics,
        AnySign((0.01, 0.05, 0.3)),
        None,
    ),
)
"""The rivals whose parameters are sampled."""
