"""Runs the network on windows: log10 K of many, posterior samples of the few that alert.

Most windows are of constant stars, and the matched filter alone says so (`Scorer.ceiling`).

Every call of the network has one of a few fixed shapes (a full chunk of one bucket), so that a
window's K does not depend on which other windows came with it.

The network belongs into one thread. OpenMP keeps a team of threads for each thread that computes in
parallel, and once all teams together outnumber the cores it lets them sleep between calls, which
halves the speed (throttled spinning of libgomp). So a scorer leaves the thread that makes it with
one, and the thread that scores gets the team, for the network alone: fits, their rivals and samples
of one window are small operations, of which each would wait for the team. Those of several windows
may be made in several threads.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from broker_filter.errors import ModelError
from broker_filter.inference import scan, zoo
from broker_filter.inference.buckets import by_bucket
from broker_filter.inference.device import device_of
from broker_filter.inference.evidence import LN_10
from broker_filter.inference.fit import Fitter
from broker_filter.inference.flow_sampler import FlowSampler
from broker_filter.inference.likelihood import Likelihood
from broker_filter.inference.matched_filter import LEVELS, LensScan
from broker_filter.inference.network import Network
from broker_filter.inference.network_input import PADDING, network_input, split_padding
from broker_filter.inference.noise_bounds import NoiseBounds
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.rival_noise import NoisePrior
from broker_filter.inference.rival_shapes import Span
from broker_filter.inference.rivals import Comparison, compare
from broker_filter.inference.star_noise import star_noise
from broker_filter.inference.threads import one_thread
from broker_filter.types import PARAMETERS, Fit, NotFitted, StarEpochs, WindowBatch

__all__ = ["OWN_CHOICE", "Scored", "Scorer"]

UNDER_WAY = 2  # calls of the device at a time
FIT_STARTS = 256  # samples of the flow from which a fit starts
_NO_SAMPLES = np.empty((0, len(PARAMETERS)), np.float32)
Call = Callable[[Tensor, Tensor, NDArray[np.int64]], tuple[Tensor, ...]]
_log = logging.getLogger(__name__)
OWN_CHOICE = torch.get_num_threads()  # before anybody changes it


@dataclass(frozen=True, slots=True)
class Scored:
    """What the networks said of a batch.

    Parameters
    ----------
    log10_k : ndarray, shape (B,), float64
        NaN where no network was asked.
    summary : Tensor, shape (B, d), float32
        Of each row's network; zeros follow those that are narrower than the widest.
    model : ndarray, shape (B,), int64, optional
        Which of a scorer's networks each row is of; all of the first if left out.
    drawn : dict of (int, int) to ndarray, shape (n, 5), float32
        Samples of the posteriors by row and seed, as far as any were asked for.
    """

    log10_k: NDArray[np.float64]
    summary: Tensor
    model: NDArray[np.int64] | None = None
    drawn: dict[tuple[int, int], NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Model:
    """One loaded entry."""

    entry: zoo.Entry
    network: Network
    sampler: FlowSampler
    prior: BoxPrior
    fitter: Fitter
    buckets: tuple[int, ...]
    width: int
    reads_noise: bool

    @classmethod
    def load(cls, entry: zoo.Entry, device: str, noise: NoiseBounds | None) -> Self:
        network, prior = zoo.load(entry, device), BoxPrior.from_config(entry.config["prior"])
        return cls(
            entry,
            network,
            FlowSampler(network.estimator),
            prior,
            Fitter(prior, noise=noise, days=entry.window_days),
            tuple(entry.config["window"]["buckets"]),
            network.summary_width,
            entry.config["encoder"].get("star_noise", False),
        )


class Scorer:
    """A loaded zoo entry on one device, and those of surveys that have their own.

    Parameters
    ----------
    entry : Entry
    device : str
        ``cpu`` or ``cuda``.
    precision : str
        ``float32`` or ``bfloat16``, of the encoder's layers.
    chunk : int
        Windows per call of the network; half of them from the moment on at which the device has
        too little memory.
    threads : int, optional
        CPU threads of the thread that calls `warm_up`; torch's own choice if left out. The thread
        that makes a scorer has one from then on.
    noise : NoiseBounds, optional
        Constant stars against which fits of windows have a robust K.
    surveys : mapping of str to Entry, optional
        Other entries, by the surveys (in lower case) whose windows they take.

    Raises
    ------
    ModelError
        As `broker_filter.inference.zoo.load`.
    """

    def __init__(
        self,
        entry: zoo.Entry,
        *,
        device: str = "cpu",
        precision: str = "float32",
        chunk: int = 64,
        threads: int | None = None,
        noise: NoiseBounds | None = None,
        surveys: Mapping[str, zoo.Entry] | None = None,
    ) -> None:
        self.threads = threads or OWN_CHOICE
        torch.set_num_threads(1)
        self.entry = entry
        self.chunk = chunk
        self._device = device_of(device)
        self._filter = LensScan().to(self._device)
        self._autocast = torch.bfloat16 if precision == "bfloat16" else None
        entries = (entry, *(surveys or {}).values())
        self._models = [_Model.load(each, device, noise) for each in entries]
        self._model_of = {survey: i for i, survey in enumerate(surveys or {}, start=1)}

    def score(self, batch: WindowBatch, chosen: NDArray[np.bool_] | None = None) -> Scored:
        """Evaluate windows of a batch; blocks for as long as the networks take.

        Parameters
        ----------
        batch : WindowBatch
        chosen : ndarray, shape (B,), bool, optional
            The windows to evaluate; all if left out.
        """
        log10_k = np.full(len(batch), np.nan)
        which = np.array([self._model_of.get(s.lower(), 0) for s in batch.survey], np.int64)
        width = max((self._models[i].width for i in set(which.tolist())), default=1)
        scored = Scored(log10_k, torch.zeros(len(batch), width, device=self._device), which)
        self.add(scored, batch, np.ones(len(batch), np.bool_) if chosen is None else chosen)
        return scored

    @torch.inference_mode()
    def add(self, scored: Scored, batch: WindowBatch, chosen: NDArray[np.bool_]) -> None:
        """Evaluate more windows of a batch; what is found is written to ``scored``."""
        which = scored.model
        assert which is not None  # noqa: S101  `score` made it
        for i in np.unique(which[chosen]).tolist():
            model, own = self._models[i], np.flatnonzero(chosen & (which == i))
            part = batch if len(own) == len(batch) else batch.take(own)
            noise = star_noise(part) if model.reads_noise else None
            evaluate = partial(self._evaluate, model, noise=noise)
            for rows, (ln_k, s) in self._each_chunk(evaluate, part, model.buckets):
                log10_k = ln_k.double().cpu().numpy() / LN_10
                scored.log10_k[own[rows]] = model.entry.rescaled(log10_k)
                scored.summary[torch.from_numpy(own[rows]), : model.width] = s

    def ceiling(self, batch: WindowBatch, log10_k: float) -> NDArray[np.float64]:
        """The log10 K that windows can reach at most, by the matched filter alone; shape (B,).

        Below ``log10_k`` it may be given too low. That of a window does not depend on the others.
        """
        if self._device.type == "cpu":
            return scan.ceiling(batch, self.entry.window_days, log10_k, self.threads)
        return scan.ceiling_of(self._significances(batch))

    @torch.inference_mode()
    def _significances(self, batch: WindowBatch) -> NDArray[np.float64]:
        """The largest S of each window by level, from the device."""
        found = np.empty((len(batch), LEVELS))
        for rows, (s,) in self._each_chunk(self._scanned, batch, self._models[0].buckets):
            found[rows] = s.double().cpu().numpy()
        return found

    def _scanned(self, x: Tensor, baseline_error: Tensor, _: NDArray[np.int64]) -> tuple[Tensor]:
        return (self._filter.largest(*split_padding(x), baseline_error),)

    def _halve(self) -> None:
        """Not to be called in an except clause, which keeps the memory in question."""
        self.chunk //= 2
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        _log.warning(
            "too little memory on the device: from now on %d windows a call",
            self.chunk,
            extra={"event": "out_of_memory"},
        )

    def _each_chunk(
        self, call: Call, batch: WindowBatch, buckets: Sequence[int]
    ) -> Iterator[tuple[NDArray[np.int64], tuple[Tensor, ...]]]:
        """Rows of each chunk of a batch, and their results.

        A device computes one chunk while the next is copied to it: results, which are waited for,
        are handed over when the call after theirs is under way.
        """
        under_way: deque[tuple[NDArray[np.int64], tuple[Tensor, ...]]] = deque()
        for bucket, rows in by_bucket(batch, buckets, self.chunk):
            under_way.append((rows, self._called(call, batch, rows, bucket)))
            if len(under_way) == UNDER_WAY:
                yield under_way.popleft()
        yield from under_way

    def _called(
        self, call: Call, batch: WindowBatch, rows: NDArray[np.int64], bucket: int
    ) -> tuple[Tensor, ...]:
        """Results of a call of the device for some rows; each of length ``len(rows)``.

        Where the device has too little memory, calls become half as large, for good.
        """
        if len(rows) <= self.chunk:
            try:
                found = call(*self._input(batch, rows, bucket), rows)
                return tuple(each[: len(rows)] for each in found)
            except torch.OutOfMemoryError:
                if self.chunk == 1:
                    raise
            self._halve()
        parts = np.array_split(rows, -(-len(rows) // self.chunk))
        each_part = [self._called(call, batch, part, bucket) for part in parts]
        return tuple(torch.cat(each) for each in zip(*each_part, strict=True))

    def prior_of(self, survey: str) -> BoxPrior:
        """The prior of the model that takes the windows of a survey."""
        return self._models[self._model_of.get(survey.lower(), 0)].prior

    def _of(self, scored: Scored, row: int) -> tuple[_Model, Tensor]:
        """The model of a row, and its summary, shape (1, d)."""
        model = self._models[0 if scored.model is None else int(scored.model[row])]
        return model, scored.summary[row : row + 1, : model.width]

    @torch.inference_mode()
    def posterior(self, scored: Scored, row: int, samples: int, seed: int) -> NDArray[np.float32]:
        """Posterior samples of one window, shape (samples, 5); columns `PARAMETERS`.

        One window a call: the samples then are the same whichever other windows alert. Those that
        were drawn before are the first of them, so that a fit and its alert draw each once.
        """
        model, s = self._of(scored, row)
        known = scored.drawn.get((row, seed), _NO_SAMPLES)
        if len(known) < samples:
            with one_thread():
                n = max(samples, FIT_STARTS)
                theta, _ = model.sampler(s, n, [seed], known=len(known))
            known = np.concatenate([known, theta[0].cpu().numpy()])
            scored.drawn[row, seed] = known
        return known[:samples]

    @torch.inference_mode()
    def log10_k_lookalikes(self, scored: Scored, row: int) -> float | None:
        """log10 K of one window against variable stars; None if its entry has no head for it."""
        model, s = self._of(scored, row)
        head = model.network.lookalikes
        return None if head is None else float(head(s)) / LN_10

    def fit(
        self,
        epochs: StarEpochs,
        t_start: float,
        scored: Scored,
        row: int,
        seed: int,
        *,
        samples: int = 1000,
        whole_event: bool = False,
    ) -> Fit | NotFitted:
        """Fit epochs of a star, starting from what the network finds in one window.

        Parameters
        ----------
        epochs : StarEpochs
            Those of the window, or more.
        t_start : float, MJD TAI
            Start of the window.
        scored, row : Scored, int
            The window.
        seed : int
            The same seed gives the same fit.
        samples : int
            Of the posterior.
        whole_event : bool
            Whether the peak may lie before the window, as far back as the epochs go. Such a fit
            has no robust K.
        """
        fitter = self._of(scored, row)[0].fitter
        if whole_event:
            fitter = fitter.of_whole_event(max(t_start - float(epochs.mjd_tai[0]), 0.0))
        starts = torch.from_numpy(self.posterior(scored, row, FIT_STARTS, seed))
        with one_thread():
            return fitter(epochs, t_start, starts, seed, samples=samples)

    def compare(self, epochs: StarEpochs, fit: Fit, seed: int, noise: NoisePrior) -> Comparison:
        """Compare the lens of a fit with what else it could be.

        Parameters
        ----------
        epochs : StarEpochs
            The usable ones of those that were fitted, as `usable_epochs` gives them.
        fit : Fit
        seed : int
            The same seed gives the same result.
        noise : NoisePrior
        """
        if fit.lenses is None:
            raise ModelError("this fit has no lenses to compare with")
        likelihood = Likelihood(epochs, fit.t_start, self.prior_of(epochs.survey))
        days = likelihood.days
        span = Span(float(days.min()), float(days.max()))
        with one_thread():
            return compare(likelihood, fit.lenses, noise, span, seed)

    def warm_up(self) -> None:
        """Run each shape once, a fit, its rivals and the scan: the first alert waits for none.

        Belongs into the thread that will score.
        """
        torch.set_num_threads(self.threads)
        for i, model in enumerate(self._models):
            with torch.inference_mode():
                for bucket in model.buckets:
                    s = self._warmed(model, bucket)
            scored = Scored(np.zeros(1), s[:1], np.array([i]))
            star = _constant_star(self.entry.window_days)
            fit = self.fit(star, 0.0, scored, 0, 0)
            if isinstance(fit, Fit):
                self.compare(star, fit, 0, NoisePrior())
        scan.warm_up()

    def _warmed(self, model: _Model, bucket: int) -> Tensor:
        """Summaries of a full chunk without epochs."""
        try:
            x = torch.full((self.chunk, bucket, 3), PADDING, device=self._device)
            error = torch.zeros(self.chunk, device=self._device)
            return self._evaluate(model, x, error, np.arange(self.chunk))[1]
        except torch.OutOfMemoryError:
            if self.chunk == 1:
                raise
        self._halve()
        return self._warmed(model, bucket)

    def _input(
        self, batch: WindowBatch, rows: NDArray[np.int64], bucket: int
    ) -> tuple[Tensor, Tensor]:
        """Network input of a full chunk, and the baselines' errors."""
        n = batch.n[rows]
        width = max(int(n.max()), 1)
        since = batch.mjd_tai[rows, :width] - batch.t_start[rows, None]
        t = np.where(np.arange(width) < n[:, None], since, 0.0)
        columns = (t, batch.flux[rows, :width], batch.sigma[rows, :width], n)
        x = network_input(
            *(self._moved(torch.from_numpy(np.ascontiguousarray(c))) for c in columns),
            days=self.entry.window_days,
            length=bucket,
        )
        error = self._moved(torch.from_numpy(batch.baseline_error[rows].astype(np.float32)))
        spare = self.chunk - len(rows)
        return pad(x, (0, 0, 0, 0, 0, spare), value=PADDING), pad(error, (0, spare))

    def _moved(self, x: Tensor) -> Tensor:
        """On the device; from pinned memory, so that copies and calls overlap."""
        if self._device.type == "cpu":
            return x
        return x.pin_memory().to(self._device, non_blocking=True)

    def _evaluate(
        self,
        model: _Model,
        x: Tensor,
        baseline_error: Tensor,
        rows: NDArray[np.int64],
        noise: NDArray[np.float32] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Give ln K and summaries of a full chunk, whose ``rows`` come first; noise is of all."""
        stars = None
        if noise is not None:
            stars = self._moved(torch.from_numpy(noise[rows]))
            stars = pad(stars, (0, 0, 0, len(x) - len(rows)))
        with torch.autocast(self._device.type, self._autocast, self._autocast is not None):
            ln_k, s = model.network(x, baseline_error, stars)
        return ln_k, s


def _constant_star(days: float) -> StarEpochs:
    n = 100
    return StarEpochs(
        sources=(("", ""),),
        level=np.ones(1),
        error=np.full(1, 0.001),
        mjd_tai=np.linspace(0, days, n),
        flux=np.ones(n, np.float32),
        sigma=np.full(n, 0.01, np.float32),
        source=np.zeros(n, np.int16),
    )
