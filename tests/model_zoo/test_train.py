"""The trainer: its loss, its checkpoints, its configuration, and the entry that it files."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from broker_filter.errors import ConfigError
from broker_filter.inference import zoo
from broker_filter.inference.evidence import lpop
from broker_filter.inference.network import Network
from broker_filter.inference.posterior import flow_loss
from model_zoo import cli
from model_zoo.evaluate import suite
from model_zoo.evaluate.sets import Sizes
from model_zoo.progress import Clock
from model_zoo.simulate.curves import Kind
from model_zoo.training import polish as polishing
from model_zoo.training.config import TrainConfig, load_config
from model_zoo.training.history import History, summary_of
from model_zoo.training.losses import (
    LINEAR_FROM,
    Losses,
    evidence_losses,
    lpop_loss,
    relative_nll,
)
from model_zoo.training.polish import encoded, polish
from model_zoo.training.train import Trainer, choose_precision, draw_batch, network_config
from model_zoo.training.validation import Validation
from tests import pretended

CONFIGS = sorted((Path(zoo.__file__).parents[2] / "model_zoo" / "configs").glob("*.yaml"))
TINY: dict[str, Any] = {
    "model_id": "fspl-tiny-0.0.1",
    "summary": "for tests",
    "minutes": 0.01,
    "max_points": 256,
    "buckets": [128, 256],
    "encoder": {"name": "compact", "width": 16, "layers": 1, "heads": 2, "feed_forward": 32},
    "flow": {"transforms": 1, "hidden": [32], "bins": 4},
    "evidence": {"hidden": 16},
    "simulator": {"baseline_error": [0.001, 0.001], "stream_share": 0.4},
    "training": {"batch": 32, "validation": 32, "validate_every": 5},
}


def make_trainer(folder: Path, clock: Clock = time.monotonic, **changes: Any) -> Trainer:
    config = TrainConfig(**{**TINY, **changes})
    return Trainer(config, folder, precision=torch.float32, clock=clock)


@dataclass
class FakeClock:
    """Time that passes only in what was given a length."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def lengthen(self, function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """The same function, which takes so many seconds."""

        def slow(*args: Any, **keys: Any) -> Any:
            self.now += seconds
            return function(*args, **keys)

        return slow


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A step takes one second, a validation 4, a checkpoint 2, a batch or step of the polish 1.

    Steps, losses and batches cost nothing besides, as they change nothing.
    """
    clock = FakeClock()

    def step(trainer: Trainer, _: float) -> Losses:
        trainer.progress.step += 1
        trainer.progress.curves += trainer.config.training.batch
        return Losses(1.0, 1.0)

    batch = draw_batch(TrainConfig(**TINY).make_simulator(), 32, (0.5, 0.0), torch.Generator())
    for owner, name, seconds, function in (
        (Trainer, "_step", 1.0, step),
        (Validation, "losses", 4.0, lambda *_: Losses(1.0, 1.0)),
        (torch, "save", 2.0, torch.save),
        (polishing, "draw_batch", 1.0, lambda *_: batch),
        (polishing, "relative_nll", 1.0, relative_nll),
        (polishing, "lpop_loss", 1.0, lpop_loss),
    ):
        monkeypatch.setattr(owner, name, clock.lengthen(function, seconds))
    return clock


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.network.parameters()]


def validated(trainer: Trainer) -> Losses:
    network = trainer.network.eval()
    return trainer.validation.losses(network, trainer.validation.summaries(trainer.encode))


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_loss_by_hand() -> None:
    ln_k = torch.tensor([2.0, -2.0, 4.0, 0.0])
    event = torch.tensor([True, True, False, False])
    expected = 0.5 * ((math.exp(-1) + math.exp(1)) / 2 + (math.exp(2) + 1) / 2)
    assert lpop_loss(ln_k, event).item() == pytest.approx(expected, rel=1e-6)


def test_loss_is_a_line_far_on_the_wrong_side_so_that_it_neither_explodes_nor_stops() -> None:
    ln_k = torch.tensor([-500.0, 1.0], requires_grad=True)
    loss = lpop_loss(ln_k, torch.tensor([True, False]))
    loss.backward()
    top = math.exp(LINEAR_FROM / 2)
    line = top * (1 + 250 - LINEAR_FROM / 2)
    assert loss.item() == pytest.approx(0.5 * (line + math.exp(0.5)), rel=1e-5)
    assert ln_k.grad is not None
    assert ln_k.grad[0].item() == pytest.approx(-top / 4, rel=1e-5)


@pytest.mark.parametrize("copies", [1, 3])
def test_loss_is_least_at_the_true_bayes_factor(copies: int) -> None:
    """Two states: seen in 8 and 2 of 10 events, in 3 and 7 of 10 constant stars.

    More events in a batch must not change K.
    """
    state = torch.tensor(([0] * 8 + [1] * 2) * copies + [0] * 3 + [1] * 7)
    event = torch.arange(len(state)) < 10 * copies
    z = torch.full((2,), 0.1, requires_grad=True)
    optimizer = torch.optim.LBFGS([z], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = lpop_loss(lpop(z)[state], event)
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    ln_k = lpop(z).tolist()
    assert ln_k == pytest.approx([math.log(0.8 / 0.3), math.log(0.2 / 0.7)], abs=2e-3)


def test_training_lowers_both_losses(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, training={"batch": 32, "adamw_lr": 0.01})
    steps = [trainer._step(0.0) for _ in range(120)]
    losses = torch.tensor([(loss.nll, loss.evidence) for loss in steps])
    first, last = losses[:20].mean(0), losses[-20:].mean(0)
    assert last[0] < first[0] - 1
    assert last[1] < first[1] - 0.1
    assert torch.isfinite(losses).all()
    assert (trainer.progress.step, trainer.progress.curves) == (120, 120 * 32)


def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    for _ in range(3):
        trainer._step(0.0)
    trainer.save()
    saved = weights(trainer)
    for _ in range(2):
        trainer._step(0.5)
    resumed = make_trainer(tmp_path, seed=2)
    resumed.resume()
    assert same(weights(resumed), saved)
    assert (resumed.progress.step, resumed.progress.curves) == (3, 96)
    for _ in range(2):
        resumed._step(0.5)
    assert same(weights(resumed), weights(trainer))


def test_time_spent_before_a_resume_counts(tmp_path: Path, clock: FakeClock) -> None:
    trainer = make_trainer(tmp_path, clock, minutes=1)
    trainer.run(quiet=True)
    assert trainer.progress.step > 0
    clock.now += 1000  # no process runs
    again = make_trainer(tmp_path, clock, minutes=1)
    again.resume()
    assert again.progress.seconds == pytest.approx(trainer.progress.seconds - 1000, abs=6)
    again.run(quiet=True)
    assert again.progress.step == trainer.progress.step
    longer = make_trainer(tmp_path, clock, minutes=2)
    longer.resume()
    longer.run(quiet=True)
    assert longer.progress.step > trainer.progress.step
    assert longer.progress.seconds <= 1.1 * 120


@pytest.mark.parametrize("minutes", [3, 10])
def test_a_training_ends_within_its_minutes_and_a_tenth(
    tmp_path: Path, clock: FakeClock, minutes: float
) -> None:
    """With the polish, all validations and all checkpoints; and it makes use of its time."""
    sizes = {"curves": 1_000_000, "epochs": 1000, "batch": 8, "flow_epochs": 1000, "share": 0.4}
    training = {**TINY["training"], "validate_every": 100}
    trainer = make_trainer(tmp_path, clock, minutes=minutes, polish=sizes, training=training)
    trainer.run(quiet=True)
    assert 0.5 * 60 * minutes < clock.now <= 0.6 * 60 * minutes + 6
    fitted = polish(trainer, seconds=trainer.seconds_left, quiet=True)
    assert fitted is not None
    assert fitted.steps > 1
    assert 0.9 * 60 * minutes < clock.now <= 1.1 * 60 * minutes


def test_an_interrupted_polish_counts_in_the_minutes_of_its_run(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"curves": 1_000_000, "epochs": 1000, "batch": 8, "share": 0.5}
    trainer = make_trainer(tmp_path, clock, minutes=10, polish=sizes)
    trainer.run(quiet=True)
    with monkeypatch.context() as patched:
        patched.setattr(polishing, "_fit_head", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            polish(trainer, seconds=trainer.seconds_left, quiet=True)
    interrupted = clock.now
    resumed = make_trainer(tmp_path, clock, minutes=10, polish=sizes)
    resumed.resume()
    resumed.run(quiet=True)
    assert resumed.progress.step == trainer.progress.step
    assert polish(resumed, seconds=resumed.seconds_left, quiet=True)
    assert interrupted < clock.now <= 660


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_run_that_was_polished_is_not_polished_again(tmp_path: Path, clock: FakeClock) -> None:
    sizes = {"curves": 1000, "epochs": 1000, "batch": 8, "share": 0.5}
    trainer = make_trainer(tmp_path, clock, minutes=10, polish=sizes)
    trainer.run(quiet=True)
    polish(trainer, seconds=trainer.seconds_left, quiet=True)
    resumed = make_trainer(tmp_path, clock, minutes=clock.now / 60 - 0.1, polish=sizes)
    resumed.resume()
    resumed.run(quiet=True)
    assert resumed.seconds_left == 0
    assert resumed.final == trainer.final
    assert same(weights(resumed), weights(trainer))


def test_lines_of_progress_come_every_half_minute_where_there_is_no_terminal(
    tmp_path: Path, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"curves": 1_000_000, "epochs": 1000, "batch": 8, "flow_epochs": 1000, "share": 0.5}
    training = {**TINY["training"], "validate_every": 1000}
    trainer = make_trainer(tmp_path, clock, minutes=12, polish=sizes, training=training)
    trainer.run()
    lines = capsys.readouterr().err.splitlines()
    assert 10 <= len(lines) <= 14
    assert re.fullmatch(r"fspl-tiny-0.0.1: \d+ of 360 s: .*step \d+, .* M curves", lines[3])
    polish(trainer, seconds=trainer.seconds_left)
    lines = capsys.readouterr().err.splitlines()
    assert 8 <= len(lines) <= 12
    assert {line.split(":")[0] for line in lines} == {"summaries", "flow", "evidence head"}
    trainer.run(quiet=True)
    assert capsys.readouterr().err == ""


def test_polishing_moves_the_head_alone_and_tells_classes_apart(tmp_path: Path) -> None:
    sizes = {"curves": 600, "epochs": 40, "batch": 200, "rate": 0.01}
    encoder = {**TINY["encoder"], "scan": True}  # whose features tell events apart, untrained
    trainer = make_trainer(tmp_path, polish=sizes, encoder=encoder)
    before = [p.detach().clone() for p in trainer.network.estimator.parameters()]
    data = encoded(trainer, 600, quiet=True)
    event = data.kind == Kind.EVENT
    assert int(event.sum()) == pytest.approx(300, abs=20)

    def right() -> float:
        return float(((trainer.network.evidence(data.s) > 0) == event).float().mean())

    untrained = right()
    assert polish(trainer, quiet=True)
    assert right() > max(untrained, 0.9)
    assert same(before, list(trainer.network.estimator.parameters()))


def test_the_flow_is_polished_where_that_is_asked_for(tmp_path: Path) -> None:
    sizes = {"curves": 600, "epochs": 1, "flow_epochs": 60, "flow_batch": 100, "flow_rate": 0.01}
    encoder = {**TINY["encoder"], "scan": True}
    trainer = make_trainer(tmp_path, polish=sizes, encoder=encoder)
    encoder_before = [p.detach().clone() for p in trainer.network.encoder.parameters()]
    before = validated(trainer)
    assert polish(trainer, quiet=True)
    assert validated(trainer).nll < before.nll - 0.3
    assert trainer.final == validated(trainer)
    assert same(encoder_before, list(trainer.network.encoder.parameters()))


VARIABLE: dict[str, Any] = {
    "simulator": {**TINY["simulator"], "noise": "sky-1", "lookalikes": "sky-1"},
    "encoder": {**TINY["encoder"], "scan": True, "star_noise": True},
    "evidence": {"hidden": 16, "lookalikes": True},
    "training": {**TINY["training"], "event_share": 0.4, "lookalike_share": 0.3},
}


def test_a_second_head_learns_to_tell_lenses_from_variable_stars(tmp_path: Path) -> None:
    training = {**VARIABLE["training"], "batch": 48, "adamw_lr": 0.01}
    sizes = {"curves": 300, "epochs": 2, "batch": 100}
    config = {**VARIABLE, "training": training}
    trainer = make_trainer(tmp_path, **config, polish=sizes)
    steps = [trainer._step(0.0) for _ in range(60)]
    first, last = (sum(loss.lookalikes for loss in part) / 15 for part in (steps[:15], steps[-15:]))
    assert last < first - 0.05
    before = validated(trainer)
    assert polish(trainer, quiet=True)
    assert trainer.final is not None
    assert trainer.final.lookalikes <= before.lookalikes
    trainer.save()
    resumed = make_trainer(tmp_path, **config)
    resumed.resume()
    assert same(weights(resumed), weights(trainer))
    assert resumed.best is not None
    assert resumed.best.losses == trainer.final


def test_a_head_that_knows_white_noise_is_not_taken_for_other_noise(
    ancestor: Network, tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path, **VARIABLE, start_from="fspl-ancestor-0.0.1", seed=5)
    fresh = make_trainer(tmp_path, **VARIABLE, seed=5)
    heads = [list(t.network.evidence.parameters()) for t in (trainer, fresh)]
    assert same(*heads)
    assert torch.equal(trainer.network.encoder.summary, ancestor.encoder.summary)
    assert trainer.origin.endswith("the evidence head is new, as its noise is")


def test_a_polish_that_does_harm_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"curves": 100, "epochs": 1, "batch": 50, "flow_epochs": 1, "flow_batch": 50}
    trainer = make_trainer(tmp_path, polish=sizes)

    def harm(network: torch.nn.Module, *_: object, **__: object) -> None:
        for parameter in network.parameters():
            parameter.data.fill_(torch.nan)

    monkeypatch.setattr("model_zoo.training.polish.fit", harm)
    before = weights(trainer)
    polish(trainer, quiet=True)
    assert same(weights(trainer), before)


def test_a_polish_without_time_takes_fewer_curves_and_still_ends(tmp_path: Path) -> None:
    sizes = {"curves": 1_000_000, "epochs": 1000, "batch": 32, "flow_epochs": 1000}
    trainer = make_trainer(tmp_path, polish=sizes)
    assert len(encoded(trainer, 1_000_000, seconds=0.0, quiet=True).s) == 32
    fitted = polish(trainer, seconds=0.0, quiet=True)
    assert fitted is not None
    assert fitted.steps == 1


def test_without_curves_nothing_is_polished(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    before = weights(trainer)
    assert polish(trainer, quiet=True) is None
    assert same(weights(trainer), before)


def test_what_is_trained_is_the_best_by_validation_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses fall until step 10 and rise after it."""
    trainer = make_trainer(tmp_path)
    seen: dict[int, list[torch.Tensor]] = {}

    def losses(*_: object) -> Losses:
        step = trainer.progress.step
        seen[step] = weights(trainer)
        return Losses(abs(step - 10.0), 1.0)

    monkeypatch.setattr(Validation, "losses", losses)
    monkeypatch.setattr(Trainer, "_rate", lambda *_: 1.0)
    trainer.config = trainer.config.model_copy(update={"minutes": 10.0})
    stop_after(trainer, 17, monkeypatch)
    trainer.run(quiet=True)
    assert trainer.best is not None
    assert trainer.best.step == 10
    assert same(weights(trainer), seen[10])
    assert not same(seen[10], seen[17])
    resumed = make_trainer(tmp_path)
    resumed.resume()
    assert same(weights(resumed), seen[17])
    assert resumed.best is not None
    assert (resumed.best.step, resumed.best.losses) == (10, Losses(0.0, 1.0))


def stop_after(trainer: Trainer, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of a run be over once that many steps are made."""
    make = trainer._step

    def counted(done: float) -> Losses:
        losses = make(done)
        if trainer.progress.step == step:
            trainer.progress.resume(step, trainer.progress.curves, 60 * trainer.config.minutes)
        return losses

    monkeypatch.setattr(trainer, "_step", counted)


def test_the_history_has_both_losses_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_zoo.training.train.HISTORY_STEPS", 4)
    trainer = make_trainer(tmp_path, minutes=10.0)
    stop_after(trainer, 12, monkeypatch)
    trainer.run(quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "nll" in row] == [4, 8, 12]
    assert [row["step"] for row in rows if "validation_nll" in row] == [0, 5, 10, 12]
    assert all(row["curves"] == 32 * row["step"] for row in rows)
    last = make_trainer(tmp_path)
    last.resume()  # the weights of the last step, not the best
    assert rows[-1]["validation_nll"] == pytest.approx(validated(last).nll, abs=1e-5)


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    for step in (0, 5, 10):
        history.add({"step": step, "validation_nll": 1.0, "validation_evidence": 1.0})
    with history.path.open("a") as file:
        file.write('{"step": 15, "valid')  # an interrupt
    history.begin(5)
    assert [row["step"] for row in history.rows()] == [0, 5]
    history.begin(0)
    assert history.rows() == []


def test_a_long_history_is_thinned_for_the_card_and_keeps_its_last_point() -> None:
    rows: list[dict[str, float]] = []
    for step in range(100, 50_001, 100):
        rows.append({"step": step, "nll": -step, "evidence": 1.0})
        if step % 500 == 0:
            rows.append({"step": step, "validation_nll": -step, "validation_evidence": 0.5})
    summary = summary_of(rows)
    assert len(summary["training"]["step"]) <= 60
    assert len(summary["validation"]["step"]) <= 60
    assert summary["training"]["step"][-1] == summary["validation"]["step"][-1] == 50_000
    assert summary["validation"]["nll"][-1] == -50_000
    # Nine steps of a hundred end at 50,000: their mean.
    assert summary["training"]["nll"][-1] == pytest.approx(-49_600)


def test_validation_curves_are_the_same_every_time() -> None:
    simulator = TrainConfig(**TINY).make_simulator()
    first, again = (Validation(simulator, 40).summaries(lambda c: c.x[:, 0]) for _ in range(2))
    assert first.shape == (80, 3)
    assert torch.equal(first, again)


@pytest.mark.parametrize("coordinates", ["logit", "probit"])
def test_relative_loss_is_small_for_a_flow_that_repeats_the_prior(
    tmp_path: Path, coordinates: str
) -> None:
    """An untrained flow in probit coordinates is close to the prior, one in logit is not."""
    roman = {**TINY["simulator"], "prior": "roman-1", "gate": None}
    flow = {**TINY["flow"], "coordinates": coordinates}
    network = make_trainer(tmp_path, simulator=roman, flow=flow).network
    for parameter in network.estimator.net.parameters():
        parameter.data.zero_()
    theta = network.estimator.prior.sample(4000, torch.Generator().manual_seed(3))
    s = torch.zeros(len(theta), network.encoder.summary_width)
    nll = float(relative_nll(network.estimator, theta, s).detach())
    assert (abs(nll) < 0.05) == (coordinates == "probit")


def test_an_interrupted_save_leaves_the_former_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path)
    trainer._step(0.0)
    trainer.save()
    saved = weights(trainer)
    trainer._step(0.0)

    def write_some(_: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", write_some)
        with pytest.raises(KeyboardInterrupt):
            trainer.save()
    resumed = make_trainer(tmp_path)
    resumed.resume()
    assert same(weights(resumed), saved)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    make_trainer(tmp_path).save()
    other = make_trainer(tmp_path, encoder={**TINY["encoder"], "width": 32})
    with pytest.raises(ConfigError, match=r"checkpoint\.pt: made by another network"):
        other.resume()


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint"):
        make_trainer(tmp_path).resume()


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.checkpoint.write_bytes(b"half a checkpoint")
    with pytest.raises(ConfigError, match=r"checkpoint\.pt: damaged"):
        trainer.resume()


def test_a_step_that_is_not_finite_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path)
    before = weights(trainer)
    monkeypatch.setattr(
        "model_zoo.training.losses.lpop_loss", lambda ln_k, _: ln_k.sum() * torch.nan
    )
    trainer._step(0.0)
    assert same(weights(trainer), before)


def test_the_learning_rate_warms_up_stays_and_falls(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    assert trainer._rate(0.0) < 0.01
    trainer.progress.step = 10_000
    rates = [trainer._rate(done) for done in (0.0, 0.6, 0.8, 1.0, 1.5)]
    assert rates == pytest.approx([1, 1, 0.505, 0.01, 0.01])


def test_the_number_type_is_one_of_two_and_leaves_no_gradient(tmp_path: Path) -> None:
    encoder = make_trainer(tmp_path).network.encoder
    assert choose_precision(encoder, torch.device("cpu")) in {torch.float32, torch.bfloat16}
    assert all(p.grad is None for p in encoder.parameters())


def write(path: Path, content: object) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": "blue"}, "colour"),
        ({"training": {"btach": 32}}, r"training\.btach"),
        ({"training": {"batch": 1}}, r"training\.batch"),
        ({"simulator": {"gaet": "paper-1"}}, r"simulator\.gaet"),
        ({"simulator": {"gate": "paper-9"}}, r"simulator: 'paper-9' is not one of \['paper-1'"),
        ({"simulator": {"baseline_error": [0.01, 0.001]}}, "0 < low <= high"),
        ({"training": {"lookalike_share": 0.2}}, "lookalike_share needs simulator.lookalikes"),
        ({"evidence": {"lookalikes": True}}, "evidence.lookalikes needs training.lookalike_share"),
        ({"training": {"event_share": 0.8, "lookalike_share": 0.3}}, "no constant star in a batch"),
        ({"polish": {"curves": 7}}, r"polish\.curves = 7: .*0, or at least 100"),
        ({"model_id": "Tiny"}, "model_id"),
        ({"minutes": "long"}, "minutes"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "tiny.yaml", TINY | change)
    with pytest.raises(ConfigError, match=rf"tiny\.yaml:.*{words}"):
        load_config(path)


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "model_id: 3", "[" * 100_000])
def test_what_is_no_configuration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "tiny.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"tiny\.yaml:"):
        load_config(tmp_path / "tiny.yaml")


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_in_the_zoo_makes_a_network(path: Path) -> None:
    config = load_config(path)
    assert config.model_id == path.stem
    Network(network_config(config))


def test_the_command_trains_and_files_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (cli, suite):
        monkeypatch.setattr(module, "QUICK", Sizes(60, 60, 250, 1, 10, 20, 30))
    config, entry = write(tmp_path / "tiny.yaml", TINY), tmp_path / "fspl-tiny-0.0.1"
    options = ["--quick", "--quiet", "--precision", "float32"]
    where = ["--run-folder", str(tmp_path / "run"), "--entry", str(entry)]
    assert cli.main(["train", str(config), *where, *options, "--seed", "5"]) == 0
    figures = json.loads(capsys.readouterr().out)
    filed = zoo.verify(entry)
    zoo.load(filed)
    assert filed.card.evaluation == figures
    assert filed.card.training["config"]["seed"] == 5
    assert filed.card.training["curves"] == 32 * filed.card.training["steps"] > 0
    window = {"days": 20.0, "max_points": 256, "buckets": [128, 256], "joins_bands": False}
    assert filed.config["window"] == window
    assert filed.threshold >= 2
    assert cli.main(["train", str(config), *where, *options, "--resume"]) == 0
    report = tmp_path / "run" / "report"
    parts = ["--parts", "cascade", "--update-card", "--out", str(report)]
    assert cli.main(["evaluate", str(entry), "--quick", "--quiet", *parts]) == 0
    assert zoo.verify(entry).card.evaluation["n_tail"] == 250
    held = json.loads((report / "results.json").read_text())
    assert {"training", "detection", "calibration", "posteriors", "cascade"} <= set(held)


def test_the_card_tells_how_the_losses_fell_and_the_report_draws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cli, suite):
        monkeypatch.setattr(module, "QUICK", Sizes(60, 60, 250, 1, 10, 20, 30))
    config, entry = write(tmp_path / "tiny.yaml", TINY), tmp_path / "fspl-tiny-0.0.1"
    options = ["--quick", "--quiet", "--precision", "float32", "--minutes", "0.05"]
    where = ["--run-folder", str(tmp_path / "run"), "--entry", str(entry)]
    assert cli.main(["train", str(config), *where, *options]) == 0
    training = zoo.verify(entry).card.training
    validation = training["history"]["validation"]
    assert validation["step"][0] == 0
    best = validation["step"].index(training["validation"]["best_step"])
    assert validation["nll"][best] == training["validation"]["nll"]
    report = tmp_path / "report"
    parts = ["--parts", "calibration", "--out", str(report)]
    assert cli.main(["evaluate", str(entry), "--quick", "--quiet", *parts]) == 0
    assert (report / "training.png").stat().st_size > 5_000
    assert "![training](training.png)" in (report / "report.md").read_text()


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", str(tmp_path / "none.yaml")]) == 2
    assert capsys.readouterr().err.startswith("model-zoo: ")


@pytest.fixture
def ancestor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Network:
    """A network that stands for the zoo's entry ``fspl-ancestor-0.0.1``."""
    network = make_trainer(tmp_path / "ancestor").network.eval()
    monkeypatch.setattr(zoo, "find", lambda name: tmp_path / name)
    white = SimpleNamespace(card=SimpleNamespace(training={}))
    monkeypatch.setattr(zoo, "verify", lambda _: white)
    monkeypatch.setattr(zoo, "load", lambda _: network)
    return network


def test_a_start_from_an_entry_says_what_it_says_though_inputs_were_added(
    ancestor: Network, tmp_path: Path
) -> None:
    encoder = {**TINY["encoder"], "scan": True}
    trainer = make_trainer(tmp_path, encoder=encoder, start_from="fspl-ancestor-0.0.1", seed=5)
    network = trainer.network.eval()
    curves = trainer.simulator.events(4, torch.Generator().manual_seed(1))
    with torch.no_grad():
        (ln_k, s), (old_ln_k, old_s) = network(curves.x), ancestor(curves.x)
        loss = flow_loss(network.estimator, curves.theta, s)
        old_loss = flow_loss(ancestor.estimator, curves.theta, old_s)
    torch.testing.assert_close(ln_k, old_ln_k)
    torch.testing.assert_close(loss, old_loss)


def test_under_another_prior_the_flow_starts_from_the_same_weights(
    ancestor: Network, tmp_path: Path
) -> None:
    roman = {**TINY["simulator"], "prior": "roman-1", "gate": None}
    network = make_trainer(
        tmp_path, simulator=roman, start_from="fspl-ancestor-0.0.1", seed=5
    ).network
    flow, old_flow = (dict(n.estimator.net.named_parameters()) for n in (network, ancestor))
    assert all(torch.equal(flow[name], old_flow[name]) for name in flow)
    assert network.estimator.prior != ancestor.estimator.prior
    theta = network.estimator.prior.sample(50, torch.Generator().manual_seed(2))
    s = torch.zeros(50, network.encoder.summary_width)
    assert torch.isfinite(flow_loss(network.estimator, theta, s)).all()


@pytest.mark.usefixtures("ancestor")
def test_a_start_from_another_architecture_is_refused(tmp_path: Path) -> None:
    encoder = {**TINY["encoder"], "width": 8}
    with pytest.raises(ConfigError, match=r"start_from: fspl-ancestor-0.0.1: .* does not fit"):
        make_trainer(tmp_path, encoder=encoder, start_from="fspl-ancestor-0.0.1")


@pytest.mark.usefixtures("ancestor")
@pytest.mark.parametrize(
    ("flow", "why"),
    [
        ({"coordinates": "probit"}, "its coordinates are probit and were logit"),
        ({"hidden": [48]}, "outputs and had"),
    ],
)
def test_a_flow_that_cannot_be_taken_starts_anew_and_that_is_said(
    ancestor: Network, tmp_path: Path, flow: dict[str, Any], why: str
) -> None:
    flow = {**TINY["flow"], **flow}
    trainer = make_trainer(tmp_path, flow=flow, start_from="fspl-ancestor-0.0.1", seed=5)
    fresh = make_trainer(tmp_path, flow=flow, seed=5)
    ours, new = (dict(t.network.estimator.net.named_parameters()) for t in (trainer, fresh))
    assert all(torch.equal(ours[name], new[name]) for name in new)
    encoder, old = trainer.network.encoder, ancestor.encoder
    assert same(list(encoder.parameters()), list(old.parameters()))
    assert same(list(trainer.network.evidence.parameters()), list(ancestor.evidence.parameters()))
    assert "fspl-ancestor-0.0.1; the flow is new, as " in trainer.origin
    assert why in trainer.origin


@pytest.mark.parametrize("coordinates", ["logit", "probit"])
def test_a_gpu_has_the_losses_of_the_processor(tmp_path: Path, coordinates: str) -> None:
    config = TrainConfig(**{**TINY, "flow": {**TINY["flow"], "coordinates": coordinates}})

    def losses(device: str) -> tuple[float, ...]:
        """Of a batch, and of the frozen curves."""
        trainer = Trainer(config, tmp_path / device, device=device, precision=torch.float32)
        network, training = trainer.network, config.training
        curves, kind = draw_batch(
            trainer.simulator, training.batch, training.shares, trainer.generator
        )
        with torch.no_grad():
            s, event = trainer.encode(curves), kind == Kind.EVENT
            nll = relative_nll(network.estimator, curves.theta[event], s[event])
            evidence, lookalikes = evidence_losses(network, s, kind)
            frozen = trainer.validation
            validated = frozen.losses(network, frozen.summaries(trainer.encode))
        return float(nll), float(evidence), float(lookalikes), *astuple(validated)

    expected = losses("cpu")
    with pretended.gpu():
        found = losses("cuda")
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_curves_of_every_configuration_can_be_drawn_on_a_gpu(path: Path) -> None:
    config = load_config(path)
    simulator, shares = config.make_simulator(), config.training.shares
    expected, _ = draw_batch(simulator, 16, shares, torch.Generator().manual_seed(3))
    with pretended.gpu():
        curves, kind = draw_batch(simulator, 16, shares, torch.Generator("cuda").manual_seed(3))
        assert {curves.x.device.type, curves.theta.device.type, kind.device.type} == {"cuda"}
        found = curves.x.cpu()
    torch.testing.assert_close(found, expected.x, rtol=1e-4, atol=1e-4)
