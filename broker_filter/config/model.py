"""The networks, what runs them, and how windows are gathered for them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from broker_filter.config.fields import STRICT, BySurvey, File

__all__ = ["Batch", "Model"]


class Model(BaseModel):
    """The networks, and what runs them."""

    model_config = STRICT

    id: str = Field(
        default="fspl-roman-1.0.0",
        pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$",
        description="entry of the model zoo",
    )
    path: File | None = Field(
        default=None, description="folder of an entry, instead of the zoo's by id"
    )
    surveys: BySurvey[str] = Field(
        default={},
        description="survey to entry of the model zoo, for those that have their own; their"
        " windows are as long as those of the main one",
    )
    device: Literal["cpu", "cuda"] = Field(
        default="cpu", description="a cuda that is missing stops the start"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="number type of the evidence network"
    )
    cascade: bool = Field(
        default=True,
        description="whether the matched filter alone settles windows that cannot reach the"
        " threshold; the network then looks at the few others",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="CPU threads, of which up to three fit and judge stars; by default one per"
        " core",
    )


class Batch(BaseModel):
    """How windows are gathered for the network."""

    model_config = STRICT

    flush_windows: int = Field(
        default=2048,
        ge=1,
        le=1 << 20,
        description="windows that make a batch go at once; fewer while a batch takes seconds",
    )
    max_wait_s: float = Field(default=0.5, ge=0, le=60, description="longest wait of a due window")
    queue_depth: int = Field(
        default=4, ge=1, le=1000, description="batches that may wait for the network"
    )
    chunk: int | None = Field(
        default=None,
        ge=1,
        le=1 << 16,
        description="windows per call of the network, which takes as long for fewer; by default 16,"
        " and 1024 on a GPU; 64 is a third faster where a processor sees every window",
    )
