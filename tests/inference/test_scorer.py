"""A window's K and samples do not depend on what is evaluated beside it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from broker_filter.errors import ModelError
from broker_filter.inference import scan, zoo
from broker_filter.inference.buckets import by_bucket
from broker_filter.inference.evidence import LN_10
from broker_filter.inference.network_input import network_input
from broker_filter.inference.scorer import Scorer
from broker_filter.types import WindowBatch
from tests import pretended

CHUNK = 16
DAYS = 20.0
LENGTHS = [1, 5, 100, 128, 129, 256, 400, 512, 800, 1000, 1001, 1500, 2000, 2001, 4096]


def make_batch(lengths: list[int], seed: int = 0) -> WindowBatch:
    """Windows with a bump each, so that their K differ; padding is rubbish on purpose."""
    rng = np.random.default_rng(seed)
    n, width = np.array(lengths), max(lengths)
    t = np.sort(rng.uniform(0, DAYS, (len(n), width)), 1)
    inside = np.arange(width) < n[:, None]
    # The epochs of a short window spread over all of it.
    t = np.where(inside, t * (DAYS / t[np.arange(len(n)), n - 1])[:, None] * 0.99, np.inf)
    sigma = rng.uniform(0.002, 0.01, t.shape)
    bump = rng.uniform(0, 0.1, (len(n), 1)) * np.exp(-0.5 * (t - rng.uniform(5, 15)) ** 2)
    flux = 1 + bump + sigma * rng.standard_normal(t.shape)
    t_start = 60_000 + 5 * rng.integers(0, 100, len(n))
    return WindowBatch(
        slot=np.arange(len(n)),
        star=list(range(len(n))),
        survey=["test"] * len(n),
        band=["r"] * len(n),
        coordinates=[None] * len(n),
        t_start=t_start.astype(float),
        mjd_tai=t + t_start[:, None],
        flux=np.where(inside, flux, -7).astype(np.float32),
        sigma=np.where(inside, sigma, 0).astype(np.float32),
        n=n,
        baseline=np.ones(len(n)),
        baseline_err=np.full(len(n), 0.001),
        baseline_error=np.full(len(n), 0.001),
        relative=np.zeros(len(n), bool),
        source=np.zeros(t.shape, np.int16),
        sources=[(("r", "camera"),)] * len(n),
        source_level=np.ones((len(n), 1)),
        source_error=np.full((len(n), 1), 0.001),
        source_history=np.zeros((len(n), 1, 6)),
    )


def take(batch: WindowBatch, rows: list[int], width: int | None = None) -> WindowBatch:
    """Some rows of a batch, cut to the longest of them as a store would."""
    width = width or int(batch.n[rows].max())

    def column(value: Any) -> Any:
        if isinstance(value, list):
            return [value[row] for row in rows]
        return value[rows] if value.ndim == 1 else value[rows, :width]

    return WindowBatch(**{f.name: column(getattr(batch, f.name)) for f in fields(batch)})


@pytest.fixture(scope="module")
def filed() -> zoo.Entry:
    return zoo.verify(zoo.find("fspl-paper-0.1.0"))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def scorer(request: pytest.FixtureRequest, filed: zoo.Entry) -> Scorer:
    return Scorer(filed, precision=request.param, chunk=CHUNK)


def test_k_is_that_of_the_network_for_the_windows_input(filed: zoo.Entry) -> None:
    batch = make_batch([90, 700])
    network, scored = zoo.load(filed), Scorer(filed, chunk=CHUNK).score(batch)
    for row, length in ((0, 128), (1, 1000)):
        one = take(batch, [row])
        columns = (one.mjd_tai - one.t_start[:, None], one.flux, one.sigma, one.n)
        x = network_input(*map(torch.from_numpy, columns), days=DAYS, length=length)
        with torch.no_grad():
            ln_k, s = network(x, torch.tensor([0.001]))
        assert scored.log10_k[row] == pytest.approx(ln_k.item() / LN_10, rel=1e-4, abs=1e-5)
        torch.testing.assert_close(scored.summary[row], s[0], rtol=1e-4, atol=1e-5)


def test_k_does_not_depend_on_batch_mates_order_or_fill(scorer: Scorer) -> None:
    # Two and a half chunks of the longest bucket, and some of every other one.
    batch = make_batch(LENGTHS + [900] * (2 * CHUNK + CHUNK // 2), seed=1)
    together = scorer.score(batch)
    assert len(np.unique(together.log10_k)) == len(batch)
    order = np.random.default_rng(2).permutation(len(batch)).tolist()
    shuffled = scorer.score(take(batch, order))
    np.testing.assert_array_equal(shuffled.log10_k, together.log10_k[order])
    assert torch.equal(shuffled.summary, together.summary[order])
    for row in range(len(LENGTHS)):
        alone = scorer.score(take(batch, [row]))
        assert alone.log10_k[0] == together.log10_k[row]
        assert torch.equal(alone.summary[0], together.summary[row])


def test_a_survey_with_an_entry_of_its_own_has_its_k_and_its_samples(filed: zoo.Entry) -> None:
    other = zoo.verify(zoo.find("fspl-roman-1.1.0"))
    both = Scorer(filed, chunk=CHUNK, surveys={"lsst": other})
    batch = make_batch([90, 700, 300, 128])
    batch.survey[1::2] = ["LSST", "lsst"]
    scored = both.score(batch)
    for entry, rows in ((filed, [0, 2]), (other, [1, 3])):
        alone = Scorer(entry, chunk=CHUNK)
        expected = alone.score(take(batch, rows))
        np.testing.assert_array_equal(scored.log10_k[rows], expected.log10_k)
        for i, row in enumerate(rows):
            samples = alone.posterior(expected, i, 20, seed=3)
            np.testing.assert_array_equal(both.posterior(scored, row, 20, seed=3), samples)
            assert both.log10_k_lookalikes(scored, row) == alone.log10_k_lookalikes(expected, i)


def test_the_width_of_the_padding_changes_nothing(scorer: Scorer) -> None:
    batch = make_batch(LENGTHS, seed=3)
    rows = [0, 3, 8]
    narrow, wide = (scorer.score(take(batch, rows, width)) for width in (800, 4096))
    np.testing.assert_array_equal(narrow.log10_k, wide.log10_k)


def test_long_windows_are_thinned_and_all_is_finite(scorer: Scorer) -> None:
    scored = scorer.score(make_batch([1001, 2500, 4096]))
    assert np.isfinite(scored.log10_k).all()
    assert torch.isfinite(scored.summary).all()


def test_an_empty_batch_gives_nothing(scorer: Scorer) -> None:
    empty = take(make_batch([3]), [], width=3)
    assert scorer.score(empty).log10_k.shape == (0,)


def test_samples_depend_on_window_and_seed_alone(scorer: Scorer) -> None:
    batch = make_batch(LENGTHS, seed=4)
    together, row = scorer.score(batch), LENGTHS.index(800)
    alone = scorer.score(take(batch, [row]))
    other = scorer.posterior(together, 0, 50, 7)
    samples = scorer.posterior(together, row, 50, 7)
    np.testing.assert_array_equal(scorer.posterior(alone, 0, 50, 7), samples)
    assert (samples != other).any()
    assert (scorer.posterior(together, row, 50, 8) != samples).any()


def test_samples_lie_inside_the_prior(scorer: Scorer, filed: zoo.Entry) -> None:
    scored = scorer.score(make_batch([1, 600, 3000]))
    samples = np.concatenate([scorer.posterior(scored, row, 2000, row) for row in range(3)])
    prior = filed.config["prior"]
    assert samples.shape == (6000, 5)
    assert samples.dtype == np.float32
    assert (samples >= np.float32(prior["low"])).all()
    assert (samples <= np.float32(prior["high"])).all()


def test_every_call_of_the_network_has_the_shape_that_was_warmed_up(filed: zoo.Entry) -> None:
    scorer = Scorer(filed, chunk=CHUNK)
    seen: list[tuple[int, ...]] = []
    network = scorer._models[0].network
    network.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    scorer.warm_up()
    warmed = set(seen)
    seen.clear()
    scorer.score(make_batch(LENGTHS + [900] * 40))
    assert set(seen) == warmed
    assert warmed == {(CHUNK, bucket, 3) for bucket in filed.config["window"]["buckets"]}


def test_the_first_alert_does_not_wait_for_the_loops_of_its_rivals(
    filed: zoo.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []
    monkeypatch.setattr("broker_filter.inference.scorer.compare", lambda *a: compared.append(a))
    Scorer(filed, chunk=CHUNK).warm_up()
    assert len(compared) == 1


def test_the_thread_that_scores_has_the_threads_and_the_one_that_made_the_scorer_has_one(
    filed: zoo.Entry,
) -> None:
    def in_a_thread(action: Callable[[], object]) -> int:
        def run() -> int:
            action()
            return torch.get_num_threads()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(run).result()

    scorers: list[Scorer] = []
    assert in_a_thread(lambda: scorers.append(Scorer(filed, chunk=CHUNK, threads=3))) == 1
    assert in_a_thread(scorers[0].warm_up) == 3


def test_samples_and_fits_take_one_thread_and_give_the_others_back(
    filed: zoo.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, batch, used = Scorer(filed, chunk=CHUNK, threads=3), make_batch(LENGTHS), []

    def note(*_: object, **__: object) -> tuple[torch.Tensor, None]:
        used.append(torch.get_num_threads())
        return torch.zeros(1, 2, 5), None

    def work() -> int:
        scorer.warm_up()
        scored = scorer.score(batch)
        (model,) = scorer._models
        monkeypatch.setattr(scorer, "_models", [replace(model, sampler=note, fitter=note)])
        scorer.fit(batch.epochs(0), 0.0, scored, 0, 1)
        return torch.get_num_threads()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == 3
    assert used == [1, 1]


def test_chunks_cover_every_window_once_in_its_bucket() -> None:
    batch, buckets = make_batch(LENGTHS * 3), (128, 256, 512, 1000)
    pieces = list(by_bucket(batch, buckets, CHUNK))
    assert sorted(np.concatenate([rows for _, rows in pieces])) == list(range(len(batch)))
    for bucket, rows in pieces:
        assert len(rows) <= CHUNK
        shorter = [b for b in buckets if b < bucket]
        assert (np.minimum(batch.n[rows], buckets[-1]) <= bucket).all()
        assert not shorter or (batch.n[rows] > shorter[-1]).all()


def test_chosen_windows_have_the_k_that_they_have_among_all(scorer: Scorer) -> None:
    batch = make_batch(LENGTHS, seed=5)
    whole = scorer.score(batch)
    first = np.arange(len(batch)) % 3 == 0
    scored = scorer.score(batch, first)
    assert np.isnan(scored.log10_k[~first]).all()
    np.testing.assert_array_equal(scored.log10_k[first], whole.log10_k[first])
    scorer.add(scored, batch, ~first)
    np.testing.assert_array_equal(scored.log10_k, whole.log10_k)
    assert torch.equal(scored.summary, whole.summary)


def test_the_scan_settles_constant_stars_and_leaves_events(filed: zoo.Entry) -> None:
    batch = make_batch([800] * 40, seed=6)
    noise = np.random.default_rng(1).standard_normal((20, 800))
    batch.flux[:20] = 1 + batch.sigma[:20] * noise
    scorer = Scorer(filed, chunk=CHUNK)
    settled = scorer.ceiling(batch, 3.0) < 3.0
    assert settled[:20].sum() >= 15
    assert not settled[scorer.score(batch).log10_k >= 3.0].any()
    assert (scorer.ceiling(batch, -10.0) >= -10.0).all()


def test_settled_on_the_device_is_as_settled_by_the_loop(filed: zoo.Entry) -> None:
    batch = make_batch([90, 300, 800] * 20, seed=6)
    noise = np.random.default_rng(1).standard_normal(batch.flux.shape)
    batch.flux[:] = 1 + batch.sigma * (noise + 0.3)
    scorer = Scorer(filed, chunk=CHUNK)
    found = scorer._significances(batch)
    expected = scan.significance(batch, DAYS)
    np.testing.assert_allclose(found.max(1), expected, rtol=1e-4, atol=1e-3)
    settled = scan.ceiling_of(found) < 1.0
    assert 0 < settled.sum() < len(batch)
    np.testing.assert_array_equal(scorer.ceiling(batch, 1.0) < 1.0, settled)


def test_the_next_call_is_under_way_before_results_are_waited_for(filed: zoo.Entry) -> None:
    batch, scorer = make_batch([100] * 21 + [400] * 5), Scorer(filed, chunk=CHUNK)
    buckets, calls = (128, 512), []

    def call(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor]:
        calls.append(x.shape[:2])
        return (x[:, 0, 1],)

    found = scorer._each_chunk(call, batch, buckets)
    taken = [next(found)]
    assert calls == [(CHUNK, 128)] * 2
    taken += found
    assert calls == [(CHUNK, 128), (CHUNK, 128), (CHUNK, 512)]
    rows = [rows for _, rows in by_bucket(batch, buckets, CHUNK)]
    for own, (mine, (first,)) in zip(rows, taken, strict=True):
        assert mine.tolist() == own.tolist()
        np.testing.assert_array_equal(first, batch.flux[own, 0])


def test_a_device_with_too_little_memory_takes_fewer_windows_a_call(
    filed: zoo.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch([100] * 21 + [400] * 5)
    expected = Scorer(filed, chunk=CHUNK).score(batch)
    scorer, calls = Scorer(filed, chunk=CHUNK), []
    evaluate = scorer._evaluate

    def with_little_memory(model: Any, x: torch.Tensor, *others: Any, **noise: Any) -> Any:
        calls.append(len(x))
        if len(x) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return evaluate(model, x, *others, **noise)

    monkeypatch.setattr(scorer, "_evaluate", with_little_memory)
    found = scorer.score(batch)
    np.testing.assert_allclose(found.log10_k, expected.log10_k, atol=1e-4)
    assert torch.allclose(found.summary, expected.summary, atol=1e-4)
    assert scorer.chunk == 4
    assert calls[:3] == [16, 8, 4]
    assert set(calls[3:]) == {4}
    scorer.chunk = 16
    scorer.warm_up()
    assert scorer.chunk == 4


def test_a_device_without_memory_for_one_window_is_an_error(
    filed: zoo.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = Scorer(filed, chunk=2)

    def without_memory(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(scorer, "_evaluate", without_memory)
    with pytest.raises(torch.OutOfMemoryError):
        scorer.score(make_batch([100] * 3))


@pytest.mark.parametrize("model_id", ["fspl-paper-0.1.0", "fspl-roman-2.0.0"])
def test_windows_go_to_a_gpu_and_what_it_finds_comes_back(model_id: str) -> None:
    """Of a network with logit coordinates, and of one with probit ones and two heads."""
    entry, batch = zoo.verify(zoo.find(model_id)), make_batch(LENGTHS)
    cpu = Scorer(entry, chunk=CHUNK)
    expected = cpu.score(batch)
    with pretended.gpu():
        scorer = Scorer(entry, device="cuda", chunk=CHUNK)
        scorer.warm_up()
        scored = scorer.score(batch)
        assert scored.summary.device.type == "cuda"
        ceiling = scorer.ceiling(batch, 3.0)
        samples = scorer.posterior(scored, 3, 300, seed=5)
        lookalikes = scorer.log10_k_lookalikes(scored, 3)
    np.testing.assert_allclose(scored.log10_k, expected.log10_k, rtol=1e-4)
    own = scan.ceiling_of(cpu._significances(batch))
    np.testing.assert_allclose(ceiling, own, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(samples, cpu.posterior(expected, 3, 300, seed=5), atol=1e-3)
    assert lookalikes == cpu.log10_k_lookalikes(expected, 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_gpu_that_is_missing_is_an_error(filed: zoo.Entry) -> None:
    with pytest.raises(ModelError, match=r"model\.device"):
        Scorer(filed, device="cuda")


def test_float32_on_a_gpu_is_float32(filed: zoo.Entry) -> None:
    """Ten bits, as cuDNN has them by itself, are too few for the matched filter."""
    with pretended.gpu():
        assert torch.backends.cudnn.allow_tf32
        Scorer(filed, device="cuda")
        assert not torch.backends.cudnn.allow_tf32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_has_the_k_of_the_cpu(filed: zoo.Entry) -> None:
    batch = make_batch(LENGTHS)
    cpu, gpu = (Scorer(filed, device=device, chunk=CHUNK) for device in ("cpu", "cuda"))
    gpu.warm_up()
    scored = gpu.score(batch)
    np.testing.assert_allclose(scored.log10_k, cpu.score(batch).log10_k, atol=0.01)
    np.testing.assert_array_equal(gpu.score(batch).log10_k, scored.log10_k)
    np.testing.assert_allclose(gpu.ceiling(batch, 3.0), cpu.ceiling(batch, 3.0), rtol=1e-3)
