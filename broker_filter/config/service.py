"""The running filter: its snapshots, dead letters, metrics and logs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from broker_filter.config.fields import STRICT

__all__ = ["DeadLetters", "Log", "MetricsSettings", "Snapshot"]


class Snapshot(BaseModel):
    """Where windows and events are saved, so that they outlive the process."""

    model_config = STRICT

    url: str | None = Field(
        default=None,
        description="folder or fsspec URL; without one, a start replays two windows of the topic",
    )
    interval_s: float = Field(
        default=300.0, ge=1, le=86_400, description="time between two snapshots of a partition"
    )


class DeadLetters(BaseModel):
    """How much of a stream may be unusable before the consumer stops."""

    model_config = STRICT

    max_ratio: float = Field(default=0.01, gt=0, le=1, description="share of unusable messages")
    max_consecutive: int = Field(default=1000, ge=1, description="unusable messages in a row")


class MetricsSettings(BaseModel):
    """The HTTP server with /metrics, /healthz and /readyz."""

    model_config = STRICT

    enabled: bool = Field(default=True, description="serve metrics and health")
    host: str = Field(
        default="127.0.0.1", description="address to listen on; 0.0.0.0 opens it to others"
    )
    port: int = Field(default=9464, ge=0, le=65_535, description="TCP port; 0 takes a free one")


class Log(BaseModel):
    """What is logged, to stderr."""

    model_config = STRICT

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level"
    )
    format: Literal["json", "text"] = Field(
        default="json", description="one JSON object a line, or text"
    )
