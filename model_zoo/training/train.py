"""Trainer: simulates on the fly, learns encoder, flow and evidence head together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from broker_filter.errors import ConfigError
from broker_filter.inference.device import device_of
from broker_filter.inference.network import Network
from model_zoo.progress import Clock, Progress
from model_zoo.simulate.curves import Curves, Kind, Simulator
from model_zoo.training.config import TrainConfig
from model_zoo.training.history import History
from model_zoo.training.losses import Losses, evidence_losses, relative_nll
from model_zoo.training.start import start_from
from model_zoo.training.validation import Validation

__all__ = [
    "Best",
    "Trainer",
    "choose_precision",
    "draw_batch",
    "network_config",
    "summaries",
]

CHECKPOINT_SECONDS = 180.0
HISTORY_STEPS = 100
WARM_UP_STEPS = 200


def network_config(config: TrainConfig) -> dict[str, Any]:
    """The part of an entry's config.json from which the network is rebuilt."""
    return {
        "encoder": config.encoder,
        "flow": config.flow,
        "evidence": config.evidence,
        "prior": config.make_simulator().prior.to_config(),
    }


class _Done:
    """What has been done; it goes into every checkpoint.

    Its seconds are all that pass from the making of it on, and those before a resume.
    """

    def __init__(self, clock: Clock) -> None:
        self.step = self.curves = 0
        self._clock, self._began = clock, clock()

    @property
    def seconds(self) -> float:
        """Spent so far."""
        return self._clock() - self._began

    def resume(self, step: int, curves: int, seconds: float) -> None:
        """Add what a checkpoint holds."""
        self.step, self.curves = step, curves
        self._began -= seconds


@dataclass(frozen=True, slots=True)
class Best:
    """The weights with the least validation loss so far, and the step after which they were."""

    step: int
    losses: Losses
    weights: dict[str, Tensor]


class Trainer:
    """Trains one entry, with checkpoints from which it can go on.

    Parameters
    ----------
    config : TrainConfig
    folder : Path
        Where the checkpoint and the history of the losses lie.
    device : str
        ``cpu`` or ``cuda``.
    precision : torch.dtype, optional
        Number type of the encoder; measured if left out. Flow, heads and loss are float32.
    clock : callable
        The minutes run from the making of the trainer on.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        *,
        device: str = "cpu",
        precision: torch.dtype | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.clock, self.progress = clock, _Done(clock)
        torch.manual_seed(config.seed)
        self.config, self.device = config, device_of(device)
        self.checkpoint = folder / "checkpoint.pt"
        self.history = History(folder / "history.jsonl")
        folder.mkdir(parents=True, exist_ok=True)
        self.simulator = config.make_simulator()
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.network = Network(network_config(config)).to(self.device)
        self.origin = "new weights"
        if config.start_from is not None:
            self.origin = start_from(self.network, config)
        self.optimizers = _optimizers(self.network, config)
        self.best: Best | None = None
        self.final: Losses | None = None  # of the weights to be filed, on the validation set
        self.save_seconds = 0.0  # the longest that a checkpoint took
        self.precision = precision or choose_precision(self.network.encoder, self.device)

    @cached_property
    def validation(self) -> Validation:
        """The frozen curves by which weights are chosen."""
        return Validation(self.simulator, self.config.training.validation)

    @property
    def seconds_left(self) -> float:
        """What the training leaves of ``config.minutes`` for the polish."""
        return max(60 * self.config.minutes - self.progress.seconds, 0.0)

    def run(self, *, quiet: bool = False) -> None:
        """Train until the time is spent, counting that before a resume; take the best weights.

        Of ``config.minutes`` the share of the polish is left over. There is always one step.
        """
        limit = 60 * self.config.minutes * (1 - self.config.polish.time_share)
        if self.progress.seconds < limit or not self.progress.step:
            with _Report(self.config.model_id, limit, self.clock, quiet=quiet) as report:
                self._train(limit, report)
            self.save()
        if self.best is not None:
            self.network.load_state_dict(self.best.weights)
            self.final = self.best.losses

    def _train(self, limit: float, report: _Report) -> None:
        training, last_save, since = self.config.training, self.clock(), _Mean()
        self.history.begin(self.progress.step)
        # The last validation takes as long as the one before, and so does the last checkpoint.
        last = self._validate(report)
        while self.progress.seconds + last + self.save_seconds < limit or not self.progress.step:
            since.add(self._step(self.progress.seconds / limit if limit else 1.0))
            report.step(self.progress, since.losses)
            if self.progress.step % HISTORY_STEPS == 0:
                self._note(_columns("", since.losses))
                since = _Mean()
            if self.progress.step % training.validate_every == 0:
                last = self._validate(report)
            if self.clock() - last_save > CHECKPOINT_SECONDS:
                self.save()
                last_save = self.clock()
        if self.progress.step % training.validate_every:
            self._validate(report)

    def save(self) -> None:
        """Write the checkpoint; an interrupt leaves the former one whole."""
        best, began = self.best, self.clock()
        state = {
            "config": self.config.model_dump(mode="json"),
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "generator": self.generator.get_state(),
            "progress": [self.progress.step, self.progress.curves, self.progress.seconds],
            "best": best and [best.step, *astuple(best.losses), best.weights],
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)
        self.save_seconds = max(self.save_seconds, self.clock() - began)

    def resume(self) -> None:
        """Go on from the checkpoint.

        Raises
        ------
        ConfigError
            If there is none, or if it is damaged or belongs to another network.
        """
        if not self.checkpoint.exists():
            raise ConfigError(f"{self.checkpoint}: no checkpoint to resume from")
        if not is_zipfile(self.checkpoint):  # what torch.save writes is one
            raise ConfigError(f"{self.checkpoint}: damaged; delete it and train anew")
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        try:
            self.network.load_state_dict(state["network"])
        except RuntimeError as error:
            raise ConfigError(f"{self.checkpoint}: made by another network: {error}") from error
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.generator.set_state(state["generator"].cpu())
        self.progress.resume(*state["progress"])
        if best := state.get("best"):
            step, *losses, weights = best
            self.best = Best(step, Losses(*losses), weights)

    def autocast(self) -> torch.autocast:
        """The context in which the encoder runs."""
        return torch.autocast(self.device.type, self.precision, self.precision != torch.float32)

    def encode(self, curves: Curves) -> Tensor:
        """Summaries of sorted curves, on the trainer's device and in its precision."""
        with self.autocast():
            return summaries(self.network.encoder, curves.to(self.device))

    def _step(self, done: float) -> Losses:
        training, rate = self.config.training, self._rate(done)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * rate
        curves, kind = draw_batch(self.simulator, training.batch, training.shares, self.generator)
        s, event = self.encode(curves), kind == Kind.EVENT
        nll = relative_nll(self.network.estimator, curves.theta[event], s[event])
        evidence, lookalikes = evidence_losses(self.network, s, kind)
        loss = nll + training.evidence_weight * (evidence + lookalikes)
        self.network.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        if bool(torch.isfinite(loss)):
            for optimizer in self.optimizers:
                optimizer.step()
        self.progress.step += 1
        self.progress.curves += training.batch
        return Losses(*(float(part.detach()) for part in (nll, evidence, lookalikes)))

    def _validate(self, report: _Report) -> float:
        """Losses on the frozen curves; keeps the best weights. The seconds that it took."""
        curves = self.validation  # drawn the first time only
        began = self.clock()
        losses = curves.losses(self.network, curves.summaries(self.encode))
        weight = self.config.training.evidence_weight
        if self.best is None or losses.total(weight) < self.best.losses.total(weight):
            self.best = Best(self.progress.step, losses, self._copied_weights())
        self._note(_columns("validation_", losses))
        report.validation(self.progress, losses)
        return self.clock() - began

    def note_polish(self, before: Losses, after: Losses) -> None:
        """Keep the polished weights as the best, with their validation losses, in all files."""
        self._note(_columns("unpolished_", before))
        self._note(_columns("polished_", after))
        best_step = self.progress.step if self.best is None else self.best.step
        self.best, self.final = Best(best_step, after, self._copied_weights()), after
        self.save()

    def _copied_weights(self) -> dict[str, Tensor]:
        return {name: w.clone() for name, w in self.network.state_dict().items()}

    def _note(self, row: Mapping[str, float]) -> None:
        done = self.progress
        where = {"step": done.step, "curves": done.curves, "seconds": round(done.seconds, 1)}
        self.history.add({**where, **row})

    def _rate(self, done: float) -> float:
        """Warm-up, flat, then a cosine down to 1 % over the last share of the time."""
        warm = min(1.0, (self.progress.step + 1) / WARM_UP_STEPS)
        share = self.config.training.decay_share
        falling = max(0.0, done - (1 - share)) / share if share else 0.0
        return warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(falling, 1.0))))


def choose_precision(encoder: nn.Module, device: torch.device) -> torch.dtype:
    """The number type in which a training step of the encoder is faster on this processor."""
    x = torch.zeros(128, 1000, 3, device=device)
    x[..., 0], x[..., 1], x[..., 2] = torch.linspace(-1, 1, 1000, device=device), 1.0, 0.01

    def seconds(dtype: torch.dtype) -> float:
        def step() -> None:
            with torch.autocast(device.type, dtype, dtype != torch.float32):
                encoder(x).sum().backward()

        return _best_time(step)

    best = min((torch.bfloat16, torch.float32), key=seconds)
    encoder.zero_grad(set_to_none=True)
    return best


def _best_time(step: Callable[[], None], repeats: int = 4) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times)


def _columns(stage: str, losses: Losses) -> dict[str, float]:
    """The losses as a line of the history has them."""
    return {stage + name: value for name, value in asdict(losses).items()}


def draw_batch(
    simulator: Simulator, batch: int, shares: tuple[float, float], generator: torch.Generator
) -> tuple[Curves, Tensor]:
    """Curves in order of their number of epochs, and the `Kind` of each.

    ``shares`` are those of events and of look-alikes; the rest are constant stars.
    """
    n_events, n_variables = (round(batch * share) for share in shares)
    n_events = min(max(n_events, 1), batch - 1)
    parts = [simulator.events(n_events, generator)]
    if n_variables:
        parts.append(simulator.lookalikes(n_variables, generator))
    parts.append(simulator.noise(batch - n_events - n_variables, generator))
    kinds = (Kind.EVENT, Kind.LOOKALIKE, Kind.NOISE) if n_variables else (Kind.EVENT, Kind.NOISE)
    kind = torch.cat(
        [torch.full((len(p),), k, device=p.x.device) for p, k in zip(parts, kinds, strict=True)]
    )
    joined = Curves.join(parts)
    order = (joined.x[..., 2] > 0).sum(1).argsort()
    return joined[order], kind[order]


def summaries(encoder: nn.Module, curves: Curves) -> Tensor:
    """Summaries of sorted curves; the shorter half is spared the padding of the longer."""
    half = len(curves) // 2
    longest = max(int((curves.x[half - 1, :, 2] > 0).sum()), 1)
    star = curves.star_noise
    return torch.cat(
        [
            encoder(curves.x[:half, :longest], curves.baseline_error[:half], star[:half]),
            encoder(curves.x[half:], curves.baseline_error[half:], star[half:]),
        ]
    )


def _optimizers(network: Network, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the transformer's layers, AdamW for the rest."""
    matrices = [p for p in network.encoder.layers.parameters() if p.ndim == 2]  # type: ignore[union-attr]
    chosen = {id(p) for p in matrices}
    rest = [p for p in network.parameters() if id(p) not in chosen]
    training = config.training
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=training.muon_lr, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=training.adamw_lr, weight_decay=0.01),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return optimizers


class _Mean:
    """Mean losses of the steps that were added."""

    def __init__(self) -> None:
        self._steps: list[Losses] = []

    def add(self, losses: Losses) -> None:
        self._steps.append(losses)

    @property
    def losses(self) -> Losses:
        columns = zip(*map(astuple, self._steps), strict=True)
        return Losses(*(sum(column) / len(self._steps) for column in columns))


class _Report:
    """What a person sees of a training, whose total are its seconds."""

    def __init__(self, name: str, limit: float, clock: Clock, *, quiet: bool) -> None:
        self._shown = Progress(name, limit, "s", quiet=quiet, clock=clock)
        self._best = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.__exit__()

    def step(self, done: _Done, losses: Losses) -> None:
        counted = f"step {done.step:,}, {done.curves / 1e6:.2f} M curves"
        self._shown.update(done.seconds, f"{losses}{self._best}, {counted}")

    def validation(self, done: _Done, losses: Losses) -> None:
        self._best = f" (validation {losses})"
        self._shown.say(f"step {done.step:,}: validation {losses}", done.seconds)
