"""What a message may hold, and how survey packets are read."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from broker_filter.config.fields import SAFE_URL, STRICT, File, Topic, split

__all__ = ["Input", "Packets"]


class Packets(BaseModel):
    """How survey packets are read; the defaults reject rather than guess.

    ``star_behind`` says which shape criteria of ZTF's nearest reference source must hold besides
    its distance, for its flux to be taken as the star's: chi and sharpness, or one of them (as
    Fink has it). LSST's reliability is not yet trustworthy. RAPID's fluxes are instrumental
    whatever their name says, so that bands without a zero point are rejected and counted;
    `broker_filter.decode.surveys.roman.NOMINAL_ZERO_POINTS` are those of simulated images. Its
    ``midpointMjdTai`` holds the header's MJD-OBS (start of exposure, UTC), as its writer fills
    it, or what its name says; half of ``roman_exposure_s`` is added to a start.
    """

    model_config = STRICT

    ignored_cuts: Annotated[tuple[str, ...], BeforeValidator(split)] = Field(
        default=(), max_length=100, description="quality cuts that reject nothing, by name"
    )
    star_behind: Literal["both", "either"] = Field(
        default="both",
        description="shape criteria that must hold for ZTF's reference source to be the star",
    )
    ztf_min_rb: float = Field(default=0.0, ge=0, le=1, description="least real-bogus score of ZTF")
    lsst_min_reliability: float = Field(
        default=0.0, ge=0, le=1, description="least reliability of LSST detections"
    )
    roman_zero_points: dict[str, Annotated[float, Field(ge=0, le=50)]] = Field(
        default_factory=dict,
        max_length=20,
        description="band to AB magnitude of 1 DN in Roman difference images; bands without one are"
        " rejected",
    )
    roman_time: Literal["start_utc", "mid_tai"] = Field(
        default="start_utc", description="what midpointMjdTai of Roman packets holds"
    )
    roman_exposure_s: float = Field(
        default=0.0, ge=0, le=10_000, description="length of a Roman exposure, seconds"
    )


class Input(BaseModel):
    """What a message may hold."""

    model_config = STRICT

    format: Literal["auto", "photometry", "photometry_block"] = Field(
        default="auto",
        description="schema of the messages; auto recognises them, and survey packets, one by one",
    )
    schema_folder: File | None = Field(
        default=None,
        description="folder of schemas filed [SURVEY/]MAJOR/MINOR/*.avsc, for packets that carry"
        " only the number 100 MAJOR + MINOR; the package lsst-alert-packet is used if installed",
    )
    schema_ids: dict[int, File] = Field(
        default_factory=dict,
        max_length=1000,
        description="schema number to the folder of its *.avsc, where its number is another",
    )
    schema_registry: str | None = Field(
        default=None,
        pattern=r"^https?://[^@?#\s]+$",
        max_length=1000,
        description="URL of a schema registry, for the numbers that no folder holds",
    )
    schema_registry_login_file: File | None = Field(
        default=None,
        description="file that holds user:password for the registry, such as a mounted secret",
    )
    topic_schemas: dict[Topic, File] = Field(
        default_factory=dict,
        max_length=1000,
        description="topic whose messages are bare Avro records, to the folder of their *.avsc",
    )
    look_back_days: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="of a star's history in a packet, read only epochs of the last days before its"
        " newest known one; by default all that its window can hold, which loses none",
    )
    packets: Packets = Field(default_factory=Packets, description="how survey packets are read")
    mjd_min: float = Field(
        default=40_587.0,
        ge=0,
        allow_inf_nan=False,
        description="earliest epoch taken, MJD TAI (1970)",
    )
    mjd_max: float = Field(
        default=88_069.0,
        le=200_000,
        allow_inf_nan=False,
        description="latest epoch taken, MJD TAI (2100)",
    )
    flag_mask: int = Field(
        default=0xFFFFFFFF,
        ge=0,
        le=0xFFFFFFFF,
        description="an epoch with any of these flags is rejected",
    )
    max_message_bytes: int = Field(
        default=4 << 20,
        ge=1 << 10,
        le=64 << 20,
        description="a longer message becomes a dead letter",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.mjd_min >= self.mjd_max:
            raise ValueError(f"mjd_min {self.mjd_min} must be before mjd_max {self.mjd_max}")
        return self

    @model_validator(mode="after")
    def _login_is_safe(self) -> Self:
        if self.schema_registry_login_file is None:
            return self
        if self.schema_registry is None:
            raise ValueError("schema_registry_login_file needs schema_registry")
        if not SAFE_URL.match(self.schema_registry):
            raise ValueError("schema_registry must begin with https://, since a login goes there")
        return self
