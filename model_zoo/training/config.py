"""What a training configuration may say: one strict tree, read from YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from broker_filter.config.file import load_file
from broker_filter.errors import ConfigError
from model_zoo.simulate.curves import Simulator
from model_zoo.simulate.lookalikes import LOOKALIKES
from model_zoo.simulate.noise import NOISES
from model_zoo.simulate.pattern import PatternConfig
from model_zoo.simulate.prior import (
    BLENDED_GATE,
    GROUND_PRIOR,
    PAPER_GATE,
    PAPER_PRIOR,
    ROMAN_PRIOR,
    SPARSE_PRIOR,
)
from model_zoo.simulate.visits import VISITS

__all__ = ["PolishConfig", "SimulatorConfig", "TrainConfig", "TrainingConfig", "load_config"]

PRIORS = {prior.name: prior for prior in (PAPER_PRIOR, ROMAN_PRIOR, SPARSE_PRIOR, GROUND_PRIOR)}
LEAST_POLISHED = 100
GATES = {gate.name: gate for gate in (PAPER_GATE, BLENDED_GATE)}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SimulatorConfig(_Strict):
    """Which prior, gate and observing patterns the training curves come from."""

    prior: str = PAPER_PRIOR.name
    gate: str | None = PAPER_GATE.name
    baseline_error: tuple[float, float] = Field(
        (0.0, 0.0), description="range of the 1-sigma relative baseline error, log-uniform"
    )
    stream_share: float = Field(0.0, ge=0, le=1, description="share of patterns as streams see")
    stream_sigma: tuple[float, float] = Field(
        (0.0005, 0.1), description="range of the relative error in those patterns"
    )
    minutes: float | None = Field(
        None,
        gt=0,
        description="between exposures; 15 in 20 days if left out",
    )
    season_share: float = Field(0.0, ge=0, le=1, description="of those with a season's edge")
    ground_share: float = Field(0.0, ge=0, le=1, description="of those as the ground sees stars")
    visits: str | None = Field(None, description="visits of a survey of many fields, in bands")
    noise: str | None = Field(None, description="noise of stars; white if left out")
    lookalikes: str | None = Field(None, description="variable stars for a second head")

    @field_validator("baseline_error", "stream_sigma")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        low, high = value
        if low == high == 0 or 0 < low <= high:
            return value
        raise ValueError("a range needs 0 < low <= high, or [0, 0]")


class TrainingConfig(_Strict):
    """How the optimiser goes about it."""

    batch: int = Field(256, ge=8, description="curves a step")
    event_share: float = Field(0.75, gt=0, lt=1, description="share of events in a batch")
    lookalike_share: float = Field(0.0, ge=0, lt=1, description="share of look-alikes in a batch")
    evidence_weight: float = Field(0.5, ge=0, description="weight of the evidence loss")
    muon_lr: float = Field(0.02, gt=0, description="for the matrices of the transformer")
    adamw_lr: float = Field(0.001, gt=0, description="for everything else")
    decay_share: float = Field(0.4, ge=0, le=1, description="last share, with falling rates")
    validation: int = Field(2048, ge=1, description="events, and constant stars, that decide")
    validate_every: int = Field(500, ge=1, description="steps from one validation to the next")

    @property
    def shares(self) -> tuple[float, float]:
        """Of events and of look-alikes in a batch."""
        return self.event_share, self.lookalike_share

    @model_validator(mode="after")
    def _room_for_noise(self) -> Self:
        if round(self.batch * self.event_share) + round(self.batch * self.lookalike_share) < (
            self.batch
        ):
            return self
        raise ValueError("event_share and lookalike_share leave no constant star in a batch")


class PolishConfig(_Strict):
    """How evidence head and flow are trained at the end, with the encoder frozen."""

    curves: int = Field(0, ge=0, description="curves, each encoded once; 0 leaves the stage out")
    epochs: float = Field(30, gt=0, description="times that each is seen")
    batch: int = Field(8192, ge=8, description="curves a step")
    rate: float = Field(0.003, gt=0, description="highest learning rate")
    flow_epochs: float = Field(0, ge=0, description="the same for the flow; 0 leaves it as it is")
    flow_batch: int = Field(512, ge=8, description="events a step of the flow")
    flow_rate: float = Field(0.0005, gt=0, description="highest learning rate of the flow")
    share: float = Field(0.1, gt=0, lt=1, description="of the training time, kept for it")

    @field_validator("curves")
    @classmethod
    def _enough(cls, value: int) -> int:
        if 0 < value < LEAST_POLISHED:
            raise ValueError(f"must be 0, or at least {LEAST_POLISHED} to hold events and noise")
        return value

    @property
    def time_share(self) -> float:
        """Of the training time, that the stage may take."""
        return self.share if self.curves else 0.0


class TrainConfig(_Strict):
    """Everything that ``model-zoo train`` needs to know."""

    model_id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*-\d+\.\d+\.\d+$")
    summary: str
    seed: int = 1
    start_from: str | None = Field(None, description="entry that the training starts from")
    minutes: float = Field(60, ge=0)
    window_days: float = Field(20, gt=0)
    joins_bands: bool = Field(False, description="whether a window holds all bands of its star")
    max_points: int = Field(1000, ge=16)
    buckets: tuple[int, ...] = (128, 256, 512, 1000)
    encoder: dict[str, Any]
    flow: dict[str, Any] = {}
    evidence: dict[str, Any] = {}
    simulator: SimulatorConfig = SimulatorConfig()
    training: TrainingConfig = TrainingConfig()
    polish: PolishConfig = PolishConfig()

    @model_validator(mode="after")
    def _lookalikes_for_a_second_head(self) -> Self:
        """Without any the loss of that head would be no number, and nothing would be learned."""
        drawn, share = self.simulator.lookalikes, self.training.lookalike_share
        if share and drawn is None:
            raise ValueError("training.lookalike_share needs simulator.lookalikes")
        if self.evidence.get("lookalikes") and not share:
            raise ValueError("evidence.lookalikes needs training.lookalike_share above 0")
        return self

    def make_simulator(self, *, stream_share: float | None = None) -> Simulator:
        """The simulator of the training curves, or of a test set with other patterns."""
        chosen = self.simulator
        share = chosen.stream_share if stream_share is None else stream_share
        return Simulator(
            prior=PRIORS[chosen.prior],
            gate=None if chosen.gate is None else GATES[chosen.gate],
            pattern=PatternConfig(
                self.window_days,
                share,
                chosen.stream_sigma,
                chosen.minutes,
                chosen.season_share,
                chosen.ground_share,
                None if chosen.visits is None else VISITS[chosen.visits],
            ),
            baseline_error=chosen.baseline_error,
            length=self.max_points,
            noise_model=None if chosen.noise is None else NOISES[chosen.noise],
            variables=None if chosen.lookalikes is None else LOOKALIKES[chosen.lookalikes],
        )


def load_config(path: Path) -> TrainConfig:
    """Read and check a training configuration.

    Raises
    ------
    ConfigError
        Naming the file and each key that is wrong, with what is allowed.
    """
    config = load_file(path, TrainConfig)
    chosen = config.simulator
    for name, known in (
        (chosen.prior, PRIORS),
        (chosen.gate, GATES),
        (chosen.visits, VISITS),
        (chosen.noise, NOISES),
        (chosen.lookalikes, LOOKALIKES),
    ):
        if name is not None and name not in known:
            raise ConfigError(f"{path}: simulator: {name!r} is not one of {sorted(known)}")
    return config
