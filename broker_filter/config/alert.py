"""When an alert is published, and the noise against which certified K holds."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from broker_filter.config.fields import STRICT, BySurvey, File, Pair

__all__ = ["AlertSettings", "NoiseSettings", "RateSettings", "SurveyNoise"]


Rate = Annotated[float, Field(ge=1e-9, le=1e9)]


def _check_order(name: str, bounds: tuple[float, float], least: float, most: float) -> None:
    low, high = bounds
    if not least <= low < high <= most:
        raise ValueError(
            f"{name} needs two numbers from {least:g} to {most:g}, the smaller one first"
        )


def _kind(noise: object) -> str:
    return "white" if isinstance(noise, str) else "family"


class SurveyNoise(BaseModel):
    """Noise that most constant stars of a survey keep to.

    It stands for the noise of stars of which few nights are known; with more, a star's own history
    takes its place.
    """

    model_config = STRICT

    error_scale: Pair = Field(
        default=(0.7, 2.0), description="least and largest factor on the errors, after scaling"
    )
    red_noise: float = Field(
        default=0.6,
        ge=0,
        le=10,
        description="largest standard deviation of correlated noise, in median errors of a source",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_order("error_scale", self.error_scale, 0.01, 100)
        return self


ROMAN_NOISE = SurveyNoise(error_scale=(0.85, 1.25), red_noise=0.05)


class NoiseSettings(BaseModel):
    """Constant stars against which certified K holds: each of them keeps P(K >= k) <= 1/k.

    Of the family are all noises within bounds that come from the nights of a star before the
    window, and from what is usual in its survey. Wider bounds cover more stars, and cost events
    that a wider noise explains as well.
    """

    model_config = STRICT

    usual: SurveyNoise = Field(
        default_factory=SurveyNoise, description="noise of stars without a history"
    )
    surveys: BySurvey[SurveyNoise] = Field(
        default_factory=lambda: {"roman": ROMAN_NOISE},
        description="the same for stars of a survey, by the name that its messages give",
    )
    red_noise_days: Pair = Field(
        default=(0.05, 40.0), description="bounds of the time over which noise is correlated"
    )
    wrong_epochs: int = Field(
        default=2,
        ge=0,
        le=2,
        description="epochs of a source, in all bands that its window joins, that may be off by any"
        " amount",
    )
    wrong_nights: int = Field(
        default=1, ge=0, le=1, description="nights of a source that may be off as a whole"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_order("red_noise_days", self.red_noise_days, 1e-4, 1e5)
        return self


class RateSettings(BaseModel):
    """How often windows of each class alert, relative to each other, for the verdict."""

    model_config = STRICT

    microlensing: Rate = Field(default=1.0, description="events of a single lens")
    anomalous_lens: Rate = Field(
        default=0.1, description="events of a lens with a planet or a companion"
    )
    flare: Rate = Field(default=3.0, description="flares")
    outburst: Rate = Field(default=3.0, description="outbursts, such as dwarf novae")
    variable: Rate = Field(
        default=30.0, description="variable stars: periodic, smooth, trends, dips"
    )
    artefact: Rate = Field(default=10.0, description="wrong epochs and nights, and noise alone")


class AlertSettings(BaseModel):
    """When an alert is published and what it carries."""

    model_config = STRICT

    log10_k: float | None = Field(
        default=None,
        ge=-10,
        le=1e6,
        description="threshold of log10 K; by default 3, or the model card's where the network"
        " decides",
    )
    decide_on: Literal["network", "certified"] | None = Field(
        default=None,
        description="which log10 K must pass the threshold; by default the certified one, but the"
        " network's where none is certified",
    )
    trigger_log10_k: float = Field(
        default=2.0,
        ge=-10,
        le=1e6,
        description="log10 K of the network from which on K is certified, if that decides",
    )
    trigger_matched: float | None = Field(
        default=50.0,
        ge=0,
        le=1e6,
        description="log10 K that the matched filter allows, from which on K is certified whatever"
        " the network says; null: never",
    )
    certified: bool = Field(
        default=True,
        description="whether alerts carry certified K, which takes most of the time of an alert",
    )
    noise: Annotated[
        Annotated[NoiseSettings, Tag("family")] | Annotated[Literal["white"], Tag("white")],
        Discriminator(_kind),
    ] = Field(
        default_factory=NoiseSettings,
        description="noise of constant stars that certified K allows for; white for none but that"
        " of the errors",
    )
    rivals: bool = Field(
        default=True,
        description="whether alerts say what else it could be, and have a verdict; needs certified",
    )
    rates: RateSettings = Field(default_factory=RateSettings, description=str(RateSettings.__doc__))
    known_variables: File | None = Field(
        default=None,
        description="table of known variable stars, CSV or Parquet: label, and id or ra, dec (deg)",
    )
    false_alarms_per_night: float | None = Field(
        default=None,
        ge=1e-9,
        le=1e9,
        description="budget from which the certified threshold follows, in place of log10_k",
    )
    false_discovery_rate: float | None = Field(
        default=None,
        ge=1e-9,
        lt=1,
        description="share of constant stars expected among the events that open, in place of"
        " log10_k",
    )
    stars: int | None = Field(
        default=None,
        ge=1,
        le=10**12,
        description="number of stars in the stream, for the budget or the share",
    )
    bands: int = Field(
        default=1,
        ge=1,
        le=100,
        description="bands in which each of these stars is observed, for the same",
    )
    max_updates: int = Field(default=20, ge=0, le=1000, description="most updates of one event")
    prior_odds: float = Field(
        default=1e-6, gt=0, le=1, description="odds of an event in one window, before any data"
    )
    posterior_samples: int = Field(default=1000, ge=10, le=20_000, description="samples per alert")
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="seed of the posterior samples")

    @property
    def certified_decides(self) -> bool:
        """Whether it is certified K that must pass the threshold."""
        return self.certified if self.decide_on is None else self.decide_on == "certified"

    @model_validator(mode="after")
    def _budget(self) -> Self:
        if self.decide_on == "certified" and not self.certified:
            raise ValueError("decide_on: certified needs certified: true")
        limits = ("false_alarms_per_night", "false_discovery_rate")
        given = [name for name in limits if getattr(self, name) is not None]
        if bool(given) != (self.stars is not None):
            raise ValueError(f"{given[0] if given else limits[0]} and stars go together")
        for name in given:
            if not self.certified_decides:
                raise ValueError(f"{name} needs decide_on: certified")
            if self.log10_k is not None:
                raise ValueError(f"give log10_k or {name}, not both")
        if len(given) > 1:
            raise ValueError(f"give {given[0]} or {given[1]}, not both")
        return self
