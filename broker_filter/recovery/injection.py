"""Synthetic microlensing in real photometry, to measure what the filter finds.

A stated share of the stars gets an event: the flux of the source in them is magnified, through
their real cadence and noise. Which stars, and what events, follows from the star's id and a seed
alone, so that the same archive gives the same events in any order and in any number of runs.

An epoch of flux F and error sigma of a star with baseline F_0 becomes ::

    g = f_s (A(u(t), rho) - 1)
    F' = F + F_0 g + sigma sqrt(g) z        z ~ N(0, 1)
    sigma' = sigma sqrt(1 + g)

The first line is microlensing with a blended source. The rest is photon noise: the number of
photons is Poisson distributed, so its variance grows as the number does (as in the equation of
Merline & Howell 1995, Exp. Astron. 6, 163), and the added photons bring noise of their own. All of
sigma^2 is taken as the star's photons; where the sky contributes, the true error at the peak is
smaller, so that what is found here is rather too little than too much.

What is magnified here is photometry; `broker_filter.recovery.records` does it to the messages of a
replay.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from broker_filter.errors import ConfigError
from broker_filter.inference.magnification import excess
from broker_filter.recovery.config import QUARTER, InjectionConfig, Range
from broker_filter.types import FloatArray, IntArray, Photometry, StarId

__all__ = [
    "Injector",
    "Lens",
    "light_curve_injector",
    "running_snr",
]

Curve = tuple[str, str]  # star, band


@dataclass(frozen=True, slots=True)
class Lens:
    """The event of one star: t0 MJD TAI, tE days, u0 and rho in Einstein radii."""

    t0: float
    u0: float
    tE: float  # noqa: N815
    rho: float


@dataclass(slots=True)
class _Touched:
    """What has been done to one star in one band.

    ``squares`` is the signal-to-noise squared of each epoch, by source and time: packets carry
    their history again and again.
    """

    lens: Lens
    f_s: float
    squares: dict[tuple[str, float], float] = field(default_factory=dict)


class Injector:
    """Magnifies the photometry that passes through it, and keeps the truth.

    It holds, beside the truth, two numbers for each star and band that it has seen, and one for
    each epoch that it has changed.

    Parameters
    ----------
    config : InjectionConfig
        With ``t0``.
    baselines : dict of (star, band, source) to float, nJy
        Baseline flux where it is known beforehand (of light curves, their median). Else it is
        taken from the first message: the photometry's reference, or, where total flux has none, its
        median. It stays, so that an epoch which comes again is magnified alike.
    spans : dict of str to Range, MJD TAI
        Of the stars whose first and last epoch are known; they stand in for a ``t0`` that is not
        configured. Without either a star is left alone.

    Raises
    ------
    ConfigError
        There is no ``t0`` and no span.
    """

    def __init__(
        self,
        config: InjectionConfig,
        baselines: Mapping[tuple[str, str, str], float] | None = None,
        spans: Mapping[str, Range] | None = None,
    ) -> None:
        if config.t0 is None and not spans:
            raise ConfigError("--inject: t0 is needed where there are no light curves")
        self._config, self._known, self._spans = config, baselines or {}, spans or {}
        self._found: dict[tuple[str, str, str, str], float] = {}
        self._chosen: dict[str, Lens | None] = {}
        self._touched: dict[Curve, _Touched] = {}
        self._windows: dict[Curve, tuple[float, int]] = {}  # last window seen, and how many
        self.without_baseline = 0

    def magnify(self, photometry: Photometry, *, history: bool = False) -> Photometry:
        """Magnify the epochs of chosen stars.

        Parameters
        ----------
        photometry : Photometry
            Of any number of stars; not changed.
        history : bool
            Whether only its last epoch is new, and puts its star to the test.

        Returns
        -------
        Photometry
            The same object where no chosen star is in it.
        """
        step = self._config.window_days / QUARTER
        windows = np.floor(photometry.mjd_tai / step).tolist()
        new_from = len(photometry) - 1 if history else 0
        chosen: dict[str, list[int]] = {}
        for row, (star, window) in enumerate(zip(photometry.star, windows, strict=True)):
            name = str(star)
            if self.lens(name) is not None:
                chosen.setdefault(name, []).append(row)
            elif row >= new_from:
                self._count((name, photometry.band), window)
        flux, flux_err = photometry.flux.copy(), photometry.flux_err.copy()
        for star, rows in chosen.items():
            left = self._magnify_star(star, photometry, np.array(rows), flux, flux_err)
            self.without_baseline += int((left >= new_from).sum())
        return replace(photometry, flux=flux, flux_err=flux_err) if chosen else photometry

    def lens(self, star: StarId) -> Lens | None:
        """The event of a star; None for one that is left as it is."""
        name = str(star)
        if name not in self._chosen:
            self._chosen[name] = self._draw(name)
        return self._chosen[name]

    def _draw(self, star: str) -> Lens | None:
        config, number = self._config, _hash(f"{self._config.seed}", star)
        span = config.t0 or self._spans.get(star)
        if number >= config.share * 2**64 or span is None:
            return None
        rng = np.random.default_rng([config.seed, number])
        return Lens(
            t0=span.draw(rng),
            u0=config.u0.draw(rng),
            tE=config.tE.draw(rng),
            rho=config.rho.draw(rng),
        )

    def _magnify_star(
        self,
        star: str,
        photometry: Photometry,
        rows: IntArray,
        flux: FloatArray,
        flux_err: FloatArray,
    ) -> IntArray:
        """Change the columns in place; return the rows that stay as they are.

        Those of a star whose baseline is not known do, and what is no measurement.
        """
        baseline = self._baseline(star, photometry, rows)
        good = (baseline > 0) & (flux_err[rows] > 0) & np.isfinite(flux[rows])
        left, rows = rows[~good], rows[good]
        if not len(rows):
            return left
        one = self._of(star, photometry.band)
        times, error = photometry.mjd_tai[rows], flux_err[rows]
        g = one.f_s * _excess(one.lens, times)
        flux[rows] += baseline * g + error * np.sqrt(g) * self._noise(star, photometry, times)
        flux_err[rows] = error * np.sqrt(1 + g)
        used = photometry.flags[rows] == 0
        squares = np.square(baseline * g / flux_err[rows])[used].tolist()
        epochs = ((photometry.source, time) for time in times[used].tolist())
        one.squares.update(zip(epochs, squares, strict=True))
        return left

    def _of(self, star: str, band: str) -> _Touched:
        lens = self.lens(star)
        if (star, band) not in self._touched and lens is not None:
            rng = np.random.default_rng([self._config.seed, _hash(star, band)])
            self._touched[star, band] = _Touched(lens, self._config.f_s.draw(rng))
        return self._touched[star, band]

    def _baseline(self, star: str, photometry: Photometry, rows: IntArray) -> float:
        """Baseline of a star in one source, NaN as long as it is not known."""
        curve = (star, photometry.band, photometry.source)
        if curve in self._known:
            return self._known[curve]
        key = (*curve, photometry.kind)
        if not self._found.get(key, math.nan) > 0:
            self._found[key] = _level(photometry, rows)
        return self._found[key]

    def _noise(self, star: str, photometry: Photometry, times: FloatArray) -> FloatArray:
        """Draw a normal number for each epoch that depends on nothing but the epoch."""
        seed = _hash(str(self._config.seed), star, photometry.band, photometry.source)
        bits = np.ascontiguousarray(times, np.float64).view(np.uint64).tolist()
        return np.array([np.random.default_rng([seed, n]).standard_normal() for n in bits])

    def _count(self, curve: Curve, window: float) -> None:
        """Count the windows that an untouched star fills: each is one test of it."""
        last, count = self._windows.get(curve, (-math.inf, 0))
        if window > last:
            self._windows[curve] = (window, count + 1)

    @property
    def lensed(self) -> int:
        """Stars of which an epoch was magnified so far."""
        return len({star for (star, _), one in self._touched.items() if one.squares})

    @property
    def stars(self) -> int:
        """Stars that were met so far."""
        return len(self._chosen)

    def truth(self) -> list[dict[str, Any]]:
        """Return the truth so far: a line on the run, and one for each star and band injected."""
        days = self._config.window_days
        tests = sum(count for _, count in self._windows.values())
        run = {
            "kind": "run",
            "share": self._config.share,
            "seed": self._config.seed,
            "window_days": days,
            "detectable_snr": self._config.detectable_snr,
            "untouched_stars": len({star for star, _ in self._windows}),
            "untouched_windows": tests,
            "untouched_star_days": tests * days / QUARTER,
            "epochs_without_baseline": self.without_baseline,
        }
        return [run, *(self._line(*item) for item in self._touched.items() if item[1].squares)]

    def _line(self, curve: Curve, one: _Touched) -> dict[str, Any]:
        star, band = curve
        times = np.array([time for _, time in one.squares])
        snr = running_snr(times, np.array(list(one.squares.values())), self._config.window_days)
        times.sort()
        reached = np.flatnonzero(snr >= self._config.detectable_snr)
        lens = one.lens
        return {
            "kind": "event",
            "star": star,
            "band": band,
            "t0": lens.t0,
            "u0": lens.u0,
            "tE": lens.tE,
            "rho": lens.rho,
            "f_s": one.f_s,
            "snr": float(snr.max()),
            "first_detectable_mjd": float(times[reached[0]]) if len(reached) else None,
            "epochs": len(times),
            "first_mjd": float(times[0]),
            "last_mjd": float(times[-1]),
        }

    def write(self, path: Path) -> None:
        """Write the truth as JSON lines, so that the file is whole at any time."""
        part = path.with_name(path.name + ".part")
        part.write_text("".join(json.dumps(line) + "\n" for line in self.truth()))
        part.replace(path)


def light_curve_injector(
    config: InjectionConfig,
    parts: Sequence[Photometry],
    start: float = -math.inf,
    stop: float = math.inf,
) -> Injector:
    """Make the injector for light curves: baselines are medians, t0 lies in each star's span.

    Parameters
    ----------
    config : InjectionConfig
    parts : sequence of Photometry
        Each of one star.
    start, stop : float, MJD TAI
        What is replayed: spans reach from the first epoch in it to the last one. A star without
        any is left alone.

    Raises
    ------
    ConfigError
        ``t0`` is missing, and there are no light curves to take it from; or it lies outside of
        what is replayed.
    """
    if config.t0 and not (config.t0.low < stop and config.t0.high >= start):
        raise ConfigError(
            f"--inject: t0 from {config.t0.low:g} to {config.t0.high:g} lies outside of what is "
            f"replayed, from {start:g} to {stop:g}: mend t0, --start or --stop"
        )
    spans: dict[str, Range] = {}
    for part in parts:
        times = part.mjd_tai[(part.mjd_tai >= start) & (part.mjd_tai < stop)]
        if not len(times):
            continue
        star, low, high = str(part.star[0]), float(times.min()), float(times.max())
        known = spans.get(star)
        low, high = (min(low, known.low), max(high, known.high)) if known else (low, high)
        spans[star] = Range(low=low, high=high)
    baselines = {
        (str(part.star[0]), part.band, part.source): float(np.median(part.flux))
        for part in parts
        if part.kind == "total"
    }
    return Injector(config, baselines, spans)


def running_snr(times: FloatArray, squares: FloatArray, days: float) -> FloatArray:
    """Signal-to-noise of an event in the days that end with each epoch.

    Parameters
    ----------
    times : ndarray, shape (n,), float64, days
    squares : ndarray, shape (n,), float64
        Square of signal over error of each epoch.
    days : float
        Length of the window.

    Returns
    -------
    ndarray, shape (n,), float64
        In order of time: that of a matched filter of the event's shape, the root of the sum.
    """
    order = np.argsort(times, kind="stable")
    times = times[order]
    total = np.concatenate([[0.0], np.cumsum(squares[order])])
    begins = np.searchsorted(times, times - days, side="right")
    return np.asarray(np.sqrt(np.maximum(total[1:] - total[begins], 0.0)))


def _level(photometry: Photometry, rows: IntArray) -> float:
    """Baseline flux of a star by its photometry; NaN where it has none."""
    if photometry.relative:
        return 1.0
    reference = photometry.ref_flux[rows]
    good = np.isfinite(reference)
    if not good.any() and photometry.kind == "total":
        reference = photometry.flux[rows]
        good = np.isfinite(reference) & (photometry.flags[rows] == 0)
    return float(np.median(reference[good])) if good.any() else math.nan


def _excess(lens: Lens, times: FloatArray) -> FloatArray:
    """A(u, rho) - 1 at the given times, in float64."""
    return excess(np.hypot(lens.u0, (times - lens.t0) / lens.tE), lens.rho)


def _hash(*parts: str) -> int:
    """64 bits that depend on the texts alone."""
    digest = blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
