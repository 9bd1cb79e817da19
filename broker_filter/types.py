"""The frozen types that travel from one stage to the next.

``source -> decode -> photometry -> window -> batch -> evidence -> posterior -> alert -> sink``

Nothing per point is a Python object: a message becomes one `Photometry`, whose columns are arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ALERT_TOPIC",
    "ALL_BANDS",
    "DEAD_LETTER_TOPIC",
    "HISTORY",
    "PARAMETERS",
    "STATES",
    "AlertState",
    "DeadLetter",
    "Fit",
    "FloatArray",
    "Headers",
    "IntArray",
    "KeyOf",
    "Lenses",
    "Message",
    "NoiseFit",
    "NotFitted",
    "OutgoingMessage",
    "Partition",
    "Photometry",
    "RobustK",
    "SourceFit",
    "SourceHistory",
    "StarEpochs",
    "StarId",
    "StateKey",
    "WindowBatch",
    "runs_of",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
StarId = str | int
Partition = tuple[str, int]  # topic and number

ALL_BANDS: Final = "all"
"""Stands for the band of a window that holds the epochs of all bands of its star."""
StateKey = tuple[str, int]
"""Where the state of a star is kept: the topic and number of its partition, or in place of the
topic the pattern that it came by, whose topics share their stars."""
KeyOf = Callable[[Partition], StateKey]
PARAMETERS = ("t0", "u0", "log10_tE", "log10_rho", "f_s")
"""Columns of posterior samples, in this order: t0 in days after the window's start (TAI), u0 in
Einstein radii, log10 of tE in days, log10 of rho in Einstein radii, source share of the baseline
flux."""
Headers = tuple[tuple[str, bytes], ...]
AlertState = Literal["new", "update", "retraction", "final"]
STATES: tuple[AlertState, ...] = get_args(AlertState)
ALERT_TOPIC = "microlensing-alerts"
"""Topic of alerts where no setting names another, and below that of dead letters."""
DEAD_LETTER_TOPIC = "microlensing-dead-letters"


@dataclass(slots=True)
class Message:
    """One message as it came from a topic, undecoded.

    Nobody changes one; it is not frozen because to make one would take six times as long, and one
    is made of each epoch.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: Headers = ()

    @property
    def next_offset(self) -> int:
        """The offset to commit once this message is done."""
        return self.offset + 1


def runs_of(messages: Iterable[Message]) -> Iterator[tuple[Partition, list[Message]]]:
    """Part messages where the partition changes: a partition, and those that follow each other."""
    run: list[Message] = []
    topic, partition = "", -1
    for message in messages:
        if message.partition != partition or message.topic != topic:
            if run:
                yield (topic, partition), run
            topic, partition, run = message.topic, message.partition, []
        run.append(message)
    if run:
        yield (topic, partition), run


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message to publish: an alert or a dead letter."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be used, with where it stood and why."""

    message: Message
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Photometry:
    """The epochs of one message: one band and one source, one star or many.

    Parameters
    ----------
    survey, band, source : str
        ``source`` distinguishes sites, cameras or fields of one star; each has its own baseline.
    star : list of (str or int), length n
        The star of each epoch. Either all int (64 bit) or all str (1 to 64 bytes of UTF-8).
    mjd_tai : ndarray, shape (n,), float64, days
        Mid-exposure, MJD TAI.
    flux, flux_err : ndarray, shape (n,), float64
        In nJy, or in units of the star's baseline where ``relative`` is true.
    flags : ndarray, shape (n,), uint32
        Zero means good.
    ref_flux, ref_flux_err : ndarray, shape (n,), float64, same unit as ``flux``
        Catalogue flux of the star and its 1-sigma error; NaN where unknown.
    kind : "total" or "difference"
        Difference fluxes need a reference flux (or a baseline of their own) to become total.
    coordinates : dict
        Star to (ra, dec) in degrees, for the stars whose position the message gives.
    same_epoch_s : float
        Seconds by which the time of one exposure may differ from message to message, because
        not all of them state how long it was. Shorter than the time from one exposure to the next.
        Set by the readers of surveys; our own message formats do not carry it.
    """

    survey: str
    band: str
    source: str
    star: list[StarId]
    mjd_tai: FloatArray
    flux: FloatArray
    flux_err: FloatArray
    flags: NDArray[np.uint32]
    ref_flux: FloatArray
    ref_flux_err: FloatArray
    kind: Literal["total", "difference"] = "total"
    relative: bool = False
    coordinates: dict[StarId, tuple[float, float]] = field(default_factory=dict)
    same_epoch_s: float = 0.0

    def __len__(self) -> int:
        return len(self.star)

    def take(self, rows: IntArray) -> Photometry:
        """The epochs of some rows; coordinates stay those of all stars."""
        return replace(
            self,
            star=[self.star[row] for row in rows.tolist()],
            mjd_tai=self.mjd_tai[rows],
            flux=self.flux[rows],
            flux_err=self.flux_err[rows],
            flags=self.flags[rows],
            ref_flux=self.ref_flux[rows],
            ref_flux_err=self.ref_flux_err[rows],
        )


@dataclass(frozen=True, slots=True)
class WindowBatch:
    """Windows that are due, ready for the network, in the order in which they became due.

    Rows are sorted by time; the columns beyond ``n[i]`` are padding with ``valid`` false.

    Parameters
    ----------
    slot : ndarray, shape (B,), int64
        Place of each window in its store.
    star, survey, band : lists of length B
        The band is `ALL_BANDS` where windows hold those of all bands.
    coordinates : list of (ra, dec) in degrees or None, length B
    t_start : ndarray, shape (B,), float64, MJD TAI
        Start of each window; it ends ``window_days`` later.
    mjd_tai : ndarray, shape (B, N), float64
    flux, sigma : ndarray, shape (B, N), float32
        In units of the star's baseline.
    n : ndarray, shape (B,), int64
        Number of epochs.
    baseline, baseline_err : ndarray, shape (B,), float64, nJy
        Baseline flux of the window's newest source and its 1-sigma error
        (1 and the relative error for photometry in relative units).
    baseline_error : ndarray, shape (B,), float64
        1-sigma relative error that the baselines of the window's sources have in common: that of
        their mean, weighted as the window's points are.
    relative : ndarray, shape (B,), bool
        True where the photometry came in units of the baseline, so that nJy are unknown.
    source : ndarray, shape (B, N), int16
        Which of the window's sources each point comes from: an index into its ``sources``.
    sources : list of tuple of (str, str), length B
        Band and name of each window's sources, "NAME (difference)" where only difference flux is
        known.
    source_level, source_error : ndarray, shape (B, D), float64
        Flux of the quiet star in each source (nJy, or 1 in relative units), the unit of its
        points, and its 1-sigma error in that unit; NaN where there are fewer than D sources.
    source_history : ndarray, shape (B, D, 6), float64
        Noise of each source before the window, columns `HISTORY`; zeros where nothing is known.
    """

    slot: IntArray
    star: list[StarId]
    survey: list[str]
    band: list[str]
    coordinates: list[tuple[float, float] | None]
    t_start: FloatArray
    mjd_tai: FloatArray
    flux: NDArray[np.float32]
    sigma: NDArray[np.float32]
    n: IntArray
    baseline: FloatArray
    baseline_err: FloatArray
    baseline_error: FloatArray
    relative: NDArray[np.bool_]
    source: NDArray[np.int16]
    sources: list[tuple[tuple[str, str], ...]]
    source_level: FloatArray
    source_error: FloatArray
    source_history: FloatArray

    def __len__(self) -> int:
        return len(self.star)

    def take(self, rows: IntArray) -> WindowBatch:
        """The windows of some rows."""
        taken: dict[str, Any] = {}
        for each in fields(self):
            column = getattr(self, each.name)
            in_list = isinstance(column, list)
            taken[each.name] = [column[i] for i in rows.tolist()] if in_list else column[rows]
        return WindowBatch(**taken)

    def epochs(self, row: int) -> StarEpochs:
        """What one window holds."""
        n, sources = int(self.n[row]), self.sources[row]
        return StarEpochs(
            sources,
            self.source_level[row, : len(sources)].copy(),
            self.source_error[row, : len(sources)].copy(),
            self.mjd_tai[row, :n].copy(),
            self.flux[row, :n].copy(),
            self.sigma[row, :n].copy(),
            self.source[row, :n].copy(),
            tuple(SourceHistory(*h) for h in self.source_history[row, : len(sources)].tolist()),
            self.survey[row],
        )

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Shape (B, N): true where a column holds an epoch."""
        return np.asarray(np.arange(self.mjd_tai.shape[1])[None, :] < self.n[:, None])


@dataclass(frozen=True, slots=True)
class SourceHistory:
    """Noise of a star in one source before a window, in units of the window's errors.

    Parameters
    ----------
    nights : float
        How many there were; where it is 0 the figures of nights have no meaning.
    freedom : float
        Epochs less nights.
    error_scale : float
        Scatter of epochs about the mean of their night, over their errors.
    night_squares : float
        Mean squared offset of a night's mean from the level, in errors of one epoch.
    night_expected : float
        The same for white noise of right errors: the mean of 1 / n.
    catalogue : float
        1 where a catalogue has said the baseline, else 0.
    """

    nights: float
    freedom: float
    error_scale: float
    night_squares: float
    night_expected: float
    catalogue: float = 0.0


HISTORY: Final = tuple(each.name for each in fields(SourceHistory))
"""Columns of an array in which a row is a `SourceHistory`."""


@dataclass(frozen=True, slots=True, eq=False)
class StarEpochs:
    """Epochs of one star over an event, those of all its sources, in order of time.

    Parameters
    ----------
    sources : tuple of (str, str)
        Band and name of each source (site, camera or field); each has a baseline of its own.
    level : ndarray, shape (D,), float64, nJy (1 in relative units)
        Flux of the quiet star in each source, the unit of its points.
    error : ndarray, shape (D,), float64
        1-sigma error of ``level`` in that unit.
    mjd_tai : ndarray, shape (n,), float64
    flux, sigma : ndarray, shape (n,), float32
        In units of the source's level.
    source : ndarray, shape (n,), int16
        Index into ``sources``.
    history : tuple of SourceHistory
        Of each source; empty where nothing is known of any.
    survey : str
        Whose usual noise stands for that of stars without a history.
    """

    sources: tuple[tuple[str, str], ...]
    level: FloatArray
    error: FloatArray
    mjd_tai: FloatArray
    flux: NDArray[np.float32]
    sigma: NDArray[np.float32]
    source: NDArray[np.int16]
    history: tuple[SourceHistory, ...] = ()
    survey: str = ""

    def __len__(self) -> int:
        return len(self.mjd_tai)

    @property
    def by_source(self) -> IntArray:
        """Rows source by source, in order of time within each, shape (n,): curves have these."""
        return np.argsort(self.source, kind="stable")

    def take(self, rows: IntArray | NDArray[np.bool_]) -> StarEpochs:
        """The epochs of some rows; the sources stay, also those of which none is among them."""
        return replace(
            self,
            mjd_tai=self.mjd_tai[rows],
            flux=self.flux[rows],
            sigma=self.sigma[rows],
            source=self.source[rows],
        )

    def of_band(self, band: str) -> NDArray[np.bool_]:
        """Which epochs a window of this band, or of `ALL_BANDS`, may hold; shape (n,)."""
        mine = [band in (its_band, ALL_BANDS) for its_band, _ in self.sources]
        return np.array(mine, np.bool_)[self.source]


@dataclass(frozen=True, slots=True)
class SourceFit:
    """How the best curve meets the epochs of one source (site, camera or field) of one band.

    Parameters
    ----------
    band, source : str
    n : int
        Epochs of this source.
    f_s : float
        Share of this source's baseline flux that is lensed, at the maximum of the likelihood.
    baseline : float
        Flux of the constant star in units of the assumed baseline, there too.
    chi2 : float
    """

    band: str
    source: str
    n: int
    f_s: float
    baseline: float
    chi2: float


@dataclass(frozen=True, slots=True)
class NoiseFit:
    """The noise under which one source of a star is most probable without any event.

    Parameters
    ----------
    scale : float
        Factor on the errors.
    red_noise : float
        Amplitude of red noise, in units of the source's median error; 0 for white noise.
    tau : float, days
        Its correlation time.
    median_error : float
        Of the source, in units of its baseline.
    wrong_epochs : tuple of float, days after the fit's ``t_start``
    wrong_night : (float, float) or None, days after the fit's ``t_start``
        First and last epoch of a night that is off as a whole.
    scale_bounds : (float, float)
        Factors on the errors that were allowed for.
    red_noise_bound : float
        Amplitude that was allowed for, in units of the median error.
    baseline_error : float
        1-sigma, in units of the baseline.
    nights : int
        Behind these bounds; 0 where they are the survey's.
    """

    scale: float
    red_noise: float
    tau: float
    median_error: float
    wrong_epochs: tuple[float, ...]
    wrong_night: tuple[float, float] | None
    scale_bounds: tuple[float, float]
    red_noise_bound: float
    baseline_error: float
    nights: int


@dataclass(frozen=True, slots=True)
class RobustK:
    """K against the best constant star of a family of noise; error in dex, noise by source."""

    log10_k: float
    log10_k_error: float
    effective_sample_size: float
    noise: tuple[NoiseFit, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lenses:
    """Lenses drawn from a proposal, for averages over the prior.

    Parameters
    ----------
    theta : ndarray, shape (n, 4), float64
        Columns `PARAMETERS` without f_s; t0 in days after the fit's ``t_start``.
    log_ratio : ndarray, shape (n,), float64
        Natural log of prior over proposal density.
    """

    theta: FloatArray
    log_ratio: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The exact posterior and Bayes factor of a lens for the epochs of one star.

    Parameters
    ----------
    t_start : float, MJD TAI
        Zero of t0.
    samples : ndarray, shape (S, 5), float32
        Equally weighted; columns `PARAMETERS`, with f_s that of the source that says most.
    sources : tuple of SourceFit
    f_s : ndarray, shape (S, len(sources)), float32
        Of each source, drawn with the samples.
    log10_k, log10_k_error : float
        Unbiased estimate of K, and its Monte Carlo standard error in dex.
    effective_sample_size : float
    converged : bool
        Whether the samples suffice; ``reason`` says why not, and is empty where they do.
    best : ndarray, shape (5,), float64
        Maximum of the likelihood inside the prior, columns `PARAMETERS`.
    chi2 : float
        Of the best curve, each source with its own f_s and baseline.
    degrees_of_freedom : int
    p_value : float
        Probability of a larger chi2 where the best curve is true and the errors are.
    autocorrelation : float
        Of neighbouring residuals; 0 for white noise.
    robust : RobustK or None
        K against a family of noise, where one is given.
    lenses : Lenses or None
        From which the fit was made, for comparisons under other noise.
    longest : float
        log10 tE at which its prior ends.
    """

    t_start: float
    samples: NDArray[np.float32]
    sources: tuple[SourceFit, ...]
    f_s: NDArray[np.float32]
    log10_k: float
    log10_k_error: float
    effective_sample_size: float
    converged: bool
    reason: str
    best: FloatArray
    chi2: float
    degrees_of_freedom: int
    p_value: float
    autocorrelation: float
    robust: RobustK | None = None
    lenses: Lenses | None = None
    longest: float = float("inf")


@dataclass(frozen=True, slots=True)
class NotFitted:
    """Why the epochs of a star have no `Fit`: one sentence without a full stop."""

    reason: str
