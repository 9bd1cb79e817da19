"""The file behind ``--inject``: which share of the stars, and priors of the events."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from broker_filter.config import Packets
from broker_filter.config.file import load_file
from broker_filter.decode.surveys.registry import check_cuts
from broker_filter.inference.magnification import RHO_MAX

__all__ = ["QUARTER", "InjectionConfig", "Range", "read_config"]

QUARTER: Final = 4
"""Windows are anchored to a grid of so many steps a window; each step is one test of a star."""

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Range(BaseModel):
    """A prior that is flat, or flat in the logarithm, between two values."""

    model_config = _STRICT

    low: float
    high: float
    log: bool = Field(default=False, description="flat in the logarithm")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.low <= self.high or not math.isfinite(self.high - self.low):
            raise ValueError(f"low ({self.low:g}) must not exceed high ({self.high:g})")
        if self.log and self.low <= 0:
            raise ValueError(f"low ({self.low:g}) must be larger than 0 for a logarithm")
        return self

    def draw(self, rng: np.random.Generator) -> float:
        """Draw one value."""
        if self.log:
            return float(np.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))


class InjectionConfig(BaseModel):
    """What to inject: the file behind ``--inject``."""

    model_config = _STRICT

    share: float = Field(gt=0, le=1, description="of the stars")
    seed: int = Field(default=1, ge=0)
    t0: Range | None = Field(
        default=None,
        description="MJD TAI; by default the span of each light curve; needed for all else",
    )
    u0: Range = Range(low=0.0, high=1.0)
    tE: Range = Range(low=0.1, high=20.0, log=True)  # noqa: N815  the field's own name for it
    rho: Range = Range(low=0.001, high=1.0, log=True)
    f_s: Range = Range(low=0.1, high=1.0)
    detectable_snr: float = Field(default=12.0, gt=0)
    window_days: float = Field(default=20.0, gt=0, description="of the model that is tested")
    packets: Packets = Field(
        default=Packets(), description="how survey packets are read: the filter's input.packets"
    )

    @model_validator(mode="after")
    def _physical(self) -> Self:
        if self.u0.low < 0 or self.tE.low <= 0:
            raise ValueError("u0 must not be below 0, and tE must be larger than 0")
        if not 0 < self.rho.low <= self.rho.high <= RHO_MAX:
            raise ValueError(f"rho must lie between 0 and {RHO_MAX:g}")
        if not 0 < self.f_s.low <= self.f_s.high <= 1:
            raise ValueError("f_s must lie between 0 and 1")
        return self


def read_config(path: Path) -> InjectionConfig:
    """Read the file behind ``--inject``.

    Raises
    ------
    ConfigError
        It cannot be read, or a key is wrong: one line a problem; or no survey has a cut that is to
        be ignored.
    """
    config = load_file(path, InjectionConfig)
    check_cuts(config.packets, f"{path}: packets")
    return config
