"""Trainer: simulates on the fly, learns encoder, flow and evidence head together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, nn
from tqdm import tqdm

from broker_filter.errors import ConfigError
from broker_filter.inference import zoo
from broker_filter.inference.network import Network
from broker_filter.inference.posterior import flow_loss
from model_zoo.simulate.curves import Curves, Simulator
from model_zoo.training.config import TrainConfig

__all__ = [
    "Trainer",
    "choose_precision",
    "draw_batch",
    "lpop_loss",
    "network_config",
    "summaries",
]

LN_K_CLIP = 50.0
CHECKPOINT_SECONDS = 180.0
WARM_UP_STEPS = 200


def network_config(config: TrainConfig) -> dict[str, Any]:
    """The part of an entry's config.json from which the network is rebuilt."""
    return {
        "encoder": config.encoder,
        "flow": config.flow,
        "evidence": config.evidence,
        "prior": config.make_simulator().prior.to_config(),
    }


def lpop_loss(ln_k: Tensor, event: Tensor) -> Tensor:
    """Exponential loss exp((1/2 - m) ln K) with equal weight for both classes.

    Parameters
    ----------
    ln_k : Tensor, shape (B,), float32
    event : Tensor, shape (B,), bool
        m = 1 for events, 0 for noise.

    Notes
    -----
    Jeffrey & Wandelt 2024. Each class is averaged by itself, so that K keeps equal prior odds
    whatever the share of events in a batch; ln K is clipped, beyond which the gradient is zero.
    """
    exponent = torch.where(event, -0.5, 0.5) * ln_k.clamp(-LN_K_CLIP, LN_K_CLIP)
    loss = exponent.exp()
    return 0.5 * (loss[event].mean() + loss[~event].mean())


@dataclass(slots=True)
class _Progress:
    """What has been done; it goes into every checkpoint."""

    step: int = 0
    curves: int = 0
    seconds: float = 0.0


class Trainer:
    """Trains one entry, with checkpoints from which it can go on.

    Parameters
    ----------
    config : TrainConfig
    folder : Path
        Where the checkpoint lies.
    device : str
        ``cpu`` or ``cuda``.
    precision : torch.dtype, optional
        Number type of the encoder; measured if left out. Flow, heads and loss are float32.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        *,
        device: str = "cpu",
        precision: torch.dtype | None = None,
    ) -> None:
        torch.manual_seed(config.seed)
        self.config, self.device = config, torch.device(device)
        self.checkpoint = folder / "checkpoint.pt"
        folder.mkdir(parents=True, exist_ok=True)
        self.simulator = config.make_simulator()
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.network = Network(network_config(config)).to(self.device)
        if config.start_from is not None:
            _start_from(self.network, config.start_from)
        self.optimizers = _optimizers(self.network, config)
        self.progress = _Progress()
        self.precision = precision or choose_precision(self.network.encoder, self.device)

    def run(self, *, quiet: bool = False) -> None:
        """Train until ``config.minutes`` have been spent, counting those before a resume."""
        limit, last_save = 60 * self.config.minutes, time.monotonic()
        bar = tqdm(total=round(limit), unit="s", disable=quiet, desc=self.config.model_id)
        bar.update(round(min(self.progress.seconds, limit)))
        losses = _Running()
        while self.progress.seconds < limit:
            began = time.monotonic()
            losses.add(*self._step(self.progress.seconds / limit))
            now = time.monotonic()
            self.progress.seconds += now - began
            bar.update(round(self.progress.seconds) - bar.n)
            bar.set_postfix_str(f"{losses}, {self.progress.curves / 1e6:.2f} M curves")
            if now - last_save > CHECKPOINT_SECONDS:
                self.save()
                last_save = now
        bar.close()
        self.save()

    def save(self) -> None:
        """Write the checkpoint; an interrupt leaves the former one whole."""
        state = {
            "config": self.config.model_dump(mode="json"),
            "network": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "generator": self.generator.get_state(),
            "progress": [self.progress.step, self.progress.curves, self.progress.seconds],
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)

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
        self.progress = _Progress(*state["progress"])

    def autocast(self) -> torch.autocast:
        """The context in which the encoder runs."""
        return torch.autocast(self.device.type, self.precision, self.precision != torch.float32)

    def _step(self, done: float) -> tuple[float, float]:
        training, rate = self.config.training, self._rate(done)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * rate
        curves, event = draw_batch(
            self.simulator, training.batch, training.event_share, self.generator
        )
        with self.autocast():
            s = summaries(self.network.encoder, curves)
        ln_k, theta = self.network.evidence(s), curves.theta
        nll = flow_loss(self.network.estimator, theta[event], s[event]).mean()
        evidence = lpop_loss(ln_k, event)
        loss = nll + training.evidence_weight * evidence
        self.network.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        if bool(torch.isfinite(loss)):
            for optimizer in self.optimizers:
                optimizer.step()
        self.progress.step += 1
        self.progress.curves += training.batch
        return float(nll.detach()), float(evidence.detach())

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


def draw_batch(
    simulator: Simulator, batch: int, event_share: float, generator: torch.Generator
) -> tuple[Curves, Tensor]:
    """Curves in order of their number of epochs, and which of them are events."""
    n_events = min(max(round(batch * event_share), 1), batch - 1)
    events = simulator.events(n_events, generator)
    noise = simulator.noise(batch - n_events, generator)
    event = torch.arange(batch, device=generator.device) < n_events
    both = Curves.join([events, noise])
    order = (both.x[..., 2] > 0).sum(1).argsort()
    return both[order], event[order]


def summaries(encoder: nn.Module, curves: Curves) -> Tensor:
    """Summaries of sorted curves; the shorter half is spared the padding of the longer."""
    half = len(curves) // 2
    longest = max(int((curves.x[half - 1, :, 2] > 0).sum()), 1)
    return torch.cat(
        [
            encoder(curves.x[:half, :longest], curves.baseline_error[:half]),
            encoder(curves.x[half:], curves.baseline_error[half:]),
        ]
    )


def _start_from(network: Network, name: str) -> None:
    """Take encoder, evidence head and flow from an entry of the zoo.

    Weights of inputs that the entry did not have start at zero. The flow of another prior is off
    at first, since it knows the parameters by their place in the box, and learns faster all the
    same than one that knows nothing.
    """
    trained = zoo.load(zoo.verify(zoo.find(name)))
    taken = network.state_dict()
    for key, value in trained.state_dict().items():
        if not key.endswith(".mask"):
            try:
                taken[key] = _widened(value, taken[key].shape)
            except (KeyError, ValueError) as error:
                raise ConfigError(f"start_from: {name}: {key} does not fit: {error}") from error
    network.load_state_dict(taken)


def _widened(value: Tensor, shape: torch.Size) -> Tensor:
    """Weights with zeros for inputs that come last and are new."""
    missing = shape[-1] - value.shape[-1] if value.ndim and value.ndim == len(shape) else 0
    if value.shape[:-1] != shape[:-1] or missing < 0 or (value.ndim < 2 and missing):
        raise ValueError(f"{tuple(value.shape)} for {tuple(shape)}")
    return nn.functional.pad(value, (0, missing)) if missing else value


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


class _Running:
    """Losses averaged over about the last hundred steps, for the progress bar."""

    def __init__(self) -> None:
        self.nll = self.evidence = 0.0
        self.steps = 0

    def add(self, nll: float, evidence: float) -> None:
        self.steps += 1
        share = max(0.01, 1 / self.steps)
        self.nll += share * (nll - self.nll)
        self.evidence += share * (evidence - self.evidence)

    def __str__(self) -> str:
        return f"nll {self.nll:.3f}, evidence {self.evidence:.4f}"
