"""The filter on labelled stars of the real sky: each star goes through the service's own path.

From its epochs in the order in which they happened to the alerts, with default settings.
`broker_filter` reads its files as ``replay`` does.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from broker_filter.alerts.certifications import Certification
from broker_filter.config import Settings
from broker_filter.errors import BrokerFilterError, ConfigError
from broker_filter.inference import zoo
from broker_filter.inference.scorer import Scored, Scorer
from broker_filter.observe.metrics import Metrics
from broker_filter.replay.lightcurves.stream import LightCurves
from broker_filter.service.watched import watched_pipeline
from broker_filter.types import (
    ALL_BANDS,
    DeadLetter,
    Fit,
    Message,
    NotFitted,
    Photometry,
    StarEpochs,
    WindowBatch,
)
from model_zoo.evaluate.labels import LabelledStar
from model_zoo.evaluate.measure.point_lens import point_lens_of
from model_zoo.evaluate.measure.wavelet import Wavelet, find_wavelet
from model_zoo.evaluate.measure.window_cuts import WindowCuts
from model_zoo.evaluate.sky_files import digest, read_star
from model_zoo.evaluate.sky_records import (
    AlertRecord,
    StarRecord,
    WindowRecord,
    append_record,
    read_records,
)
from model_zoo.progress import Progress

__all__ = ["Filter", "Filters", "evaluate_sky"]

YEAR: Final = 365.25
GAP_DAYS: Final = 20.0
TOPIC: Final = "sky"
WAVELET_EVERY: Final = 40
"""One window in so many is shown to the detector by wavelets, which takes longer than all else."""

EntryOf = Callable[[LabelledStar], zoo.Entry]


class _Watch:
    """Stands in for a scorer and notes its results.

    Parameters
    ----------
    scorer : Scorer
    cuts : callable
        Names of the cuts that a window passes.
    wavelet : callable, optional
        Whether a window has a peak.
    """

    def __init__(self, scorer: Scorer, cuts: WindowCuts, wavelet: Wavelet | None) -> None:
        self._scorer, self._cuts, self._wavelet = scorer, cuts, wavelet
        self.windows: dict[tuple[str, float], WindowRecord] = {}
        self._looks: Counter[tuple[str, float]] = Counter()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever a scorer has
        return getattr(self._scorer, name)

    def clear(self) -> None:
        self.windows = {}
        self._looks.clear()

    def score(self, batch: WindowBatch) -> Scored:
        scored = self._scorer.score(batch)
        for row, log10_k in enumerate(scored.log10_k.tolist()):
            last = float(batch.mjd_tai[row, batch.n[row] - 1])
            self.windows[batch.band[row], last] = self._record(batch, row, last, log10_k)
        return scored

    def _record(self, batch: WindowBatch, row: int, last: float, log10_k: float) -> WindowRecord:
        lens = point_lens_of(batch, row)
        shown = len(self.windows) % WAVELET_EVERY == 0
        return WindowRecord(
            last,
            log10_k,
            cuts=self._cuts(batch, row),
            point_lens=(round(lens.delta_chi2, 2), round(lens.chi2, 4)),
            wavelet=self._wavelet(batch, row) if shown and self._wavelet else None,
        )

    def fit(
        self,
        epochs: StarEpochs,
        t_start: float,
        *window: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> Fit | NotFitted:
        fit = self._scorer.fit(epochs, t_start, *window, **options)
        if isinstance(fit, Fit) and not options.get("whole_event"):
            band, last = epochs.sources[0][0], float(epochs.mjd_tai[-1])
            if (ALL_BANDS, last) in self.windows:  # of all bands, the first of which may change
                band = ALL_BANDS
            self._looks[band, t_start] += 1
            j = self._looks[band, t_start]
            key = band, last
            family, white = (
                Certification(t_start, j, 0.0, k.log10_k, 0.0, 1.0).charged
                for k in (fit.robust or fit, fit)
            )
            if key in self.windows:
                self.windows[key] = replace(self.windows[key], certified=family, white=white)
        return fit


class Filter:
    """The service's two halves in one thread; each star has a partition of its own.

    Parameters
    ----------
    entry : Entry
    every_days : float
        Days between two evaluations of a star.
    """

    def __init__(self, entry: zoo.Entry, *, every_days: float = 1.0) -> None:
        settings = Settings.model_validate(
            {
                "kafka": {"bootstrap_servers": "localhost:9092", "input_topics": [TOPIC]},
                "schedule": {"every_days": every_days},
                "model": {"id": entry.model_id, "threads": 1, "cascade": False},
                "batch": {"chunk": 1},
            }
        )
        wavelet = find_wavelet(entry.window_days)
        watch = partial(_Watch, cuts=WindowCuts(entry), wavelet=wavelet)
        self._pipeline, self._watch = watched_pipeline(settings, entry, Metrics(), watch)
        self._stars = 0

    def __call__(self, star: LabelledStar, parts: Sequence[Photometry]) -> StarRecord:
        """Send the epochs of one star through the filter.

        Raises
        ------
        ConfigError
            None of them is of use to it.
        """
        self._watch.clear()
        records = LightCurves(parts, epochs_per_message=1).read(lambda _: None)
        alerts: list[AlertRecord] = []
        refused: list[DeadLetter] = []
        for offset, record in enumerate(records):
            message = Message(
                *(TOPIC, self._stars, offset, record.key, record.value), headers=record.headers
            )
            out = self._pipeline.step([message], float(offset), flush=True)
            alerts += map(AlertRecord.of, out.alerts)
            refused += out.dead_letters
        self._stars += 1
        if refused and len(refused) == sum(map(len, parts)):
            raise ConfigError(f"{star.name}: no epoch is of use: {refused[0].detail}")
        return StarRecord(star, _years(parts), list(self._watch.windows.values()), alerts)


def _years(parts: Sequence[Photometry]) -> float:
    t = np.sort(np.concatenate([part.mjd_tai for part in parts]))
    step = np.diff(t)
    return float(step[step < GAP_DAYS].sum()) / YEAR


@dataclass(slots=True)
class Filters:
    """Sends each star through a filter of the entry that serves it; a record of each comes back.

    Parameters
    ----------
    folder : Path
        Of the stars' files.
    entry_of : callable
        The entry of a star.
    every_days : float
        Days between two evaluations of a star.
    """

    folder: Path
    entry_of: EntryOf
    every_days: float = 1.0
    _made: dict[str, Filter] = field(default_factory=dict, init=False)

    def __call__(self, star: LabelledStar) -> StarRecord:
        """What came of a star, or why its files could not be read."""
        entry, photometry = self.entry_of(star), digest(self.folder, star.files)
        try:
            parts = read_star(self.folder, star)
            if entry.model_id not in self._made:
                self._made[entry.model_id] = Filter(entry, every_days=self.every_days)
            record = self._made[entry.model_id](star, parts)
        except BrokerFilterError as error:
            record = StarRecord(star, problem=str(error))
        return replace(
            record, entry=entry.sha256, every_days=self.every_days, photometry=photometry
        )

    def gave(self, record: StarRecord, star: LabelledStar) -> bool:
        """Whether a record is what sending a star would give again, its labels apart."""
        same = (record.star.files, record.star.survey) == (star.files, star.survey)
        entry = record.entry in ("", self.entry_of(star).sha256)
        days = record.every_days in (None, self.every_days)
        return same and entry and days and not record.problem

    def edited(self, record: StarRecord) -> bool:
        """Whether files of a star have changed since; files that are gone count as unchanged."""
        known = {record.photometry, digest(self.folder, record.star.files)} - {""}
        return len(known) > 1


def evaluate_sky(
    filters: Filters,
    stars: Sequence[LabelledStar],
    out: Path,
    *,
    jobs: int = 1,
    quiet: bool = True,
) -> list[StarRecord]:
    """Send stars through filters; each is written to ``out`` (JSON lines) as it is done.

    Stars that are there from an earlier run are not sent again, unless that was through another
    entry, at other intervals, of other files, their files have changed, or could not be read.

    Parameters
    ----------
    filters : Filters
    stars : sequence of LabelledStar
    out : Path
        Its folder is made if need be.
    jobs : int
        Processes; with one all happens in this one.
    quiet : bool
        Shows no progress.

    Returns
    -------
    list of StarRecord
        In the order of the stars.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    there = {one.star.name: one for one in read_records(out)}
    done = {
        star.name: replace(there[star.name], star=star)
        for star in stars
        if star.name in there and filters.gave(there[star.name], star)
    }
    edited = [name for name, record in done.items() if filters.edited(record)]
    for name in edited:
        del done[name]
    left = [star for star in stars if star.name not in done]
    with Progress("sky", len(stars), "stars", quiet=quiet) as progress:
        if done:
            progress.say(f"those that an earlier run left in {out}", len(done))
        if edited:
            progress.say(f"sent again, as files have changed: {', '.join(edited)}", len(done))
        for record in _sent(filters, left, min(jobs, len(left))):
            append_record(out, record)
            done[record.star.name] = record
            progress.add(1)
    return [done[star.name] for star in stars]


def _sent(filters: Filters, stars: Sequence[LabelledStar], jobs: int) -> Iterator[StarRecord]:
    """What came of stars, in any order.

    Raises
    ------
    ConfigError
        A process was ended from outside.
    """
    if jobs <= 1:
        yield from map(filters, stars)
        return
    context = multiprocessing.get_context("spawn")  # a fork would share the threads of torch
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, context, _begin, (replace(filters),)) as pool:
        try:
            for each in as_completed([pool.submit(_send, star) for star in stars]):
                yield each.result()
        except BrokenProcessPool:
            raise ConfigError(
                "a process was ended from outside, for lack of memory perhaps: try fewer --jobs"
            ) from None
        except BaseException:  # an interruption does not wait for the stars that are left
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


_OF_PROCESS: list[Filters] = []


def _begin(filters: Filters) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the first process ends them
    _OF_PROCESS[:] = [filters]


def _send(star: LabelledStar) -> StarRecord:
    (filters,) = _OF_PROCESS
    return filters(star)
