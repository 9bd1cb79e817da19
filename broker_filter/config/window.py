"""The light curve that is kept per star and band, and when it is evaluated."""

from __future__ import annotations

from pydantic import BaseModel, Field

from broker_filter.config.fields import STRICT

__all__ = ["ScheduleSettings", "Window"]


class Window(BaseModel):
    """The light curve that is kept per star and band."""

    model_config = STRICT

    max_points: int = Field(
        default=4096,
        ge=64,
        le=1 << 16,
        description="points that a window can hold; where more epochs come, neighbours of one"
        " source are merged, never the newest. The network reads at most as many as its card says,"
        " binned from these",
    )
    max_stars: int | None = Field(
        default=5_000_000,
        ge=100,
        description="windows that one partition can hold, one for each band of a star; of more, the"
        " one in eight without a new epoch for longest are dropped. null: no bound",
    )


class ScheduleSettings(BaseModel):
    """When a window is evaluated, by event time."""

    model_config = STRICT

    every_days: float = Field(
        default=0.25,
        ge=0,
        le=20,
        description="days between evaluations of a star that shows nothing new; 0 evaluates at"
        " every epoch",
    )
    rise: float | None = Field(
        default=9.0,
        gt=0,
        description="a window is evaluated at once where its new epochs can have raised S^2, the"
        " square of an event's significance, by so much; null: never",
    )
    min_points: int = Field(default=10, ge=1, le=1000, description="points that a window needs")
