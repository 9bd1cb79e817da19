"""K of one light curve in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from numpy.typing import ArrayLike

from broker_filter.errors import SchemaError
from broker_filter.extras import named_extras
from broker_filter.scoring.columns import Baseline, photometry_of
from broker_filter.scoring.result import Result
from broker_filter.service.garbage import not_collecting
from broker_filter.types import StarId

__all__ = ["score"]


def score(
    time: ArrayLike,
    flux: ArrayLike | None = None,
    error: ArrayLike | None = None,
    *,
    band: str | Sequence[str] | None = None,
    source: str | Sequence[str] | None = None,
    flags: ArrayLike | None = None,
    baseline: Baseline = None,
    time_system: str = "mjd_tai",
    zero_point: float | None = None,
    model: str | Path | None = None,
    cascade: bool = False,
    now: bool = False,
    star: StarId = "star",
    survey: str = "own",
) -> Result:
    """K of microlensing against a constant star, for one light curve.

    The epochs go through the pipeline of the service in order of time, so that the alerts are those
    that a subscriber of it would have got.

    Parameters
    ----------
    time : array, shape (n,), days
        In ``time_system``; or astropy's Time, or calendar dates (UTC). Or a table (astropy,
        lightkurve, pandas) with the columns time, flux and flux_err, of one star; its columns
        band (or filter), source (or site, telescope, camera), flags (or quality) and limits, by the
        names that `replay` knows, count where those below are left out, and other columns are not
        read.
    flux, error : array, shape (n,)
        Flux and its 1-sigma error, in nJy or with astropy's units; in another unit K is the same,
        as it depends on the ratio to the baseline, and magnitudes are off by a constant. Or
        magnitudes: plain with ``zero_point``, or of a unit such as ABmag, their errors in mag.
    band, source : str or sequence of str, length n
        Of all epochs or of each; a source (site, camera) has a baseline of its own.
    flags : array, shape (n,), integer or bool, optional
        0 where an epoch is good; all others are left out.
    baseline : float, (float, float) or "median", optional
        Flux (or magnitude) of the quiet star, with its 1-sigma error; or the median of the light
        curve, which looks ahead. By default it comes from the 30 epochs or more before each
        window, else from the quiet epochs in it.
    time_system : str
        MJD_TAI, MJD (UTC), JD, HJD, HJD', BJD, BTJD or BKJD.
    zero_point : float, optional
        Magnitude of 1 nJy, 31.4 for AB.
    model : str or Path, optional
        Entry of the model zoo, by name or folder.
    cascade : bool
        Whether the network is left out where the matched filter alone shows that a window cannot
        reach the threshold, as in the service: quicker, and K of such a window is NaN.
    now : bool
        One look at the last window instead of one after each epoch, as at a packet that brings the
        star's history with it: a fraction of a second, and one alert at most. An event that
        is over by then is not seen.
    star, survey : str
        What alerts call them.

    Returns
    -------
    Result
        Epochs that cannot be used are counted in its ``rejected``.

    Raises
    ------
    SchemaError
        The light curve is empty, holds no usable epoch, or its columns do not fit each other.
    ModelError
        There is no such model.
    ConfigError
        The extra ``filter`` is not installed.

    Notes
    -----
    The first call loads the model, and leaves torch with one thread in the thread that calls.

    Windows begin on a grid of dates, and looks are taken where an epoch enters a new cell of it. So
    the same data some seconds later (TDB taken for TAI is 32 s) may have another K where epochs lie
    on the edges of cells, as those of simulations on whole days do: 631.7 and 629.5, say.
    """
    parts = photometry_of(
        *(time, flux, error), star=star, survey=survey, band=band, source=source,
        flags=flags, baseline=baseline, time_system=time_system, zero_point=zero_point,
    )  # fmt: skip
    with not_collecting():
        with named_extras("broker_filter.score", "filter"):
            from broker_filter.scoring.star_scorer import scorer_of  # torch: seconds

            scorer = scorer_of(model, cascade)
        result = scorer(parts, now=now)
    if sum(result.rejected.values()) == result.epochs:
        why = ", ".join(f"{count} {name}" for name, count in result.rejected.items())
        raise SchemaError(f"none of the {result.epochs} epochs can be used: {why}")
    return result
