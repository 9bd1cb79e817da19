"""How fast windows are scored, sampled and simulated: ``python -m tests.bench.bench_scoring``.

Prints one row a case; ``measure`` returns the same figures for the table of ``make bench``.
"""

from __future__ import annotations

import itertools
import time
import warnings

import numpy as np
import torch
from scipy.optimize import least_squares

from broker_filter.inference import zoo
from broker_filter.inference.fit import Fitter
from broker_filter.inference.magnification import magnification
from broker_filter.inference.network import Network
from broker_filter.inference.network_input import network_input
from broker_filter.inference.noise_bounds import NoiseBounds
from broker_filter.inference.prior import BoxPrior
from broker_filter.inference.scorer import Scorer
from broker_filter.types import FloatArray, StarEpochs, WindowBatch
from model_zoo.simulate.curves import Simulator
from tests.bench.bench_decode import seconds
from tests.bench.figures import Figure, show

PAPER_WINDOWS = 4
# A window of 20 days at 15 minutes, thinned by weather and its open end.
EPOCHS = {128: 128, 256: 256, 512: 512, 1000: 835}


def windows(n: int, epochs: int) -> WindowBatch:
    """Constant stars, each with the same number of epochs."""
    rng = np.random.default_rng(1)
    shape = (n, epochs)
    return WindowBatch(
        slot=np.arange(n),
        star=list(range(n)),
        survey=["roman"] * n,
        band=["F146"] * n,
        coordinates=[None] * n,
        t_start=np.full(n, 60_000.0),
        mjd_tai=60_000 + np.sort(rng.uniform(0, 20, shape), 1),
        flux=rng.normal(1, 0.01, shape).astype(np.float32),
        sigma=np.full(shape, 0.01, np.float32),
        n=np.full(n, epochs),
        baseline=np.full(n, 15_000.0),
        baseline_err=np.full(n, 15.0),
        baseline_error=np.full(n, 0.001),
        relative=np.zeros(n, bool),
        source=np.zeros(shape, np.int16),
        sources=[(("F146", "wfi"),)] * n,
        source_level=np.full((n, 1), 15_000.0),
        source_error=np.full((n, 1), 0.001),
        source_history=np.zeros((n, 1, 6)),
    )


def score(entry: zoo.Entry, precision: str, n: int) -> dict[int, float]:
    """Windows a second by bucket, from epochs to K."""
    scorer = Scorer(entry, precision=precision)
    scorer.warm_up()
    batches = {bucket: windows(n, epochs) for bucket, epochs in EPOCHS.items()}
    return {b: n / seconds(lambda w=w: scorer.score(w), 1) for b, w in batches.items()}


def score_as_in_the_paper(entry: zoo.Entry) -> float:
    """Windows a second of the paper's encoder, one token an epoch; untrained, which costs alike."""
    network = Network({**entry.config, "encoder": {"name": "paper"}}).eval()
    batch = windows(PAPER_WINDOWS, EPOCHS[1000])
    x = network_input(*_columns(batch), days=20, length=1000)
    with torch.inference_mode():
        return PAPER_WINDOWS / seconds(lambda: network(x), 1)


def sample(entry: zoo.Entry, n: int) -> float:
    """Milliseconds for posterior samples of one window."""
    scorer = Scorer(entry)
    scorer.warm_up()
    scored = scorer.score(windows(1, EPOCHS[1000]))
    seed = itertools.count(1)  # what was drawn with a seed is kept
    return 1000 * seconds(lambda: scorer.posterior(scored, 0, n, next(seed)), 1)


def prepare(n: int) -> float:
    """Curves a second of twice the network's length through thinning and normalising."""
    columns = _columns(windows(n, 1920))
    return n / seconds(lambda: network_input(*columns, days=20, length=1000), 1)


def simulate(n: int) -> float:
    """Gated events a second, ready for the network."""
    generator, simulator = torch.Generator().manual_seed(1), Simulator()
    return n / seconds(lambda: simulator.events(n, generator), 1)


def event(seed: int, n: int) -> StarEpochs:
    """A lensed star of one source, in 20 days at 15 minutes less what the weather took."""
    rng = np.random.default_rng(seed)
    t, sigma = np.sort(rng.choice(1920, n, replace=False)) / 96, 0.01
    u = np.hypot(rng.uniform(0.1, 0.8), (t - rng.uniform(3, 17)) / 10 ** rng.uniform(-0.8, 0.6))
    excess = magnification(u, 0.01) - 1
    flux = 1 + 30 * sigma / np.linalg.norm(excess) * excess + rng.normal(0, sigma, n)
    return StarEpochs(
        sources=(("F146", "wfi"),),
        level=np.ones(1),
        error=np.full(1, 0.001),
        mjd_tai=60_000 + t,
        flux=flux.astype(np.float32),
        sigma=np.full(n, sigma, np.float32),
        source=np.zeros(n, np.int16),
    )


def fit_times(entry: zoo.Entry, n: int) -> tuple[float, float]:
    """Milliseconds of processor time of a fit, without and with K against the noise family.

    Medians over n events, measured in turns on one thread.
    """
    torch.set_num_threads(1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    prior = BoxPrior.from_config(entry.config["prior"])
    fitters = [Fitter(prior), Fitter(prior, noise=NoiseBounds())]
    passed = np.empty((n, 2))
    for i in range(n):
        epochs = event(i, EPOCHS[1000])
        for j, fitter in enumerate(fitters):
            began = time.process_time()
            fitter(epochs, 60_000.0, torch.empty(0, 5), i)
            passed[i, j] = time.process_time() - began
    torch.set_num_threads(threads)
    white, family = np.median(1000 * passed, axis=0).tolist()
    return white, family


def point_lens_time(n: int) -> float:
    """Milliseconds of processor time of the best point lens alone, by scipy from good starts.

    The median over n events; it gives five numbers, neither a posterior nor K.
    """
    passed = []
    for i in range(n):
        epochs = event(i, EPOCHS[1000])
        t, start = epochs.mjd_tai - 60_000, epochs.mjd_tai[np.argmax(epochs.flux)] - 60_000
        began = time.process_time()
        for u0, t_einstein in itertools.product((0.2, 0.6), (0.3, 1.0, 3.0)):
            least_squares(_point_lens, [start, u0, t_einstein, 1.0, 0.0], args=(t, epochs))
        passed.append(time.process_time() - began)
    return float(np.median(passed)) * 1000


def _point_lens(theta: FloatArray, t: FloatArray, epochs: StarEpochs) -> FloatArray:
    """Residuals in sigma of a point lens with a source flux and a blend."""
    t0, u0, t_einstein, source, blend = theta
    u = np.maximum(np.hypot(u0, (t - t0) / t_einstein), 1e-6)
    magnified = (u * u + 2) / (u * np.sqrt(u * u + 4))
    return np.asarray((source * magnified + blend - epochs.flux) / epochs.sigma)


def measure(*, quick: bool = False) -> list[Figure]:
    """Windows or curves a second, and one time."""
    n, samples = (64, 100) if quick else (512, 10_000)
    entry = zoo.verify(zoo.find("fspl-paper-0.1.0"))
    rates = {name: score(entry, name, n) for name in ("float32", "bfloat16")}
    paper = score_as_in_the_paper(entry)
    figures = [
        _score_figure(precision, bucket, rate, paper)
        for precision, by_bucket in rates.items()
        for bucket, rate in by_bucket.items()
    ]
    label = f"Time for {samples:,} posterior samples of one window"
    events = 1 if quick else 15
    white, family = fit_times(entry, events)
    return [
        *figures,
        Figure("posterior", label, sample(entry, samples), "ms"),
        Figure(
            "fit_835",
            "Time of a fit with K against the noise family, 835 points",
            family,
            "ms",
            "against white noise",
            white,
        ),
        Figure(
            "fit_white_835",
            "Time of a fit with K against white noise, 835 points",
            white,
            "ms",
            "the best point lens alone, scipy from six starts",
            point_lens_time(events),
        ),
        Figure(
            "thin",
            "Windows per second thinned from 1,920 to 1,000 points and normalised",
            prepare(n),
            "windows/s",
        ),
        Figure("simulate", "Gated training curves simulated per second", simulate(n), "curves/s"),
    ]


def _score_figure(precision: str, bucket: int, rate: float, paper: float) -> Figure:
    points = EPOCHS[bucket]
    name = f"score_compact_{points}{'_bf16' if precision == 'bfloat16' else ''}"
    rival = ("the paper's encoder", paper) if bucket == max(EPOCHS) else ()
    label = f"Windows scored per second, {precision}, {points} points"
    return Figure(name, label, rate, "windows/s", *rival)


def _columns(batch: WindowBatch) -> list[torch.Tensor]:
    t = batch.mjd_tai - batch.t_start[:, None]
    return [torch.from_numpy(column) for column in (t, batch.flux, batch.sigma, batch.n)]


if __name__ == "__main__":
    warnings.simplefilter("error")
    show(measure())
