"""Settings: one frozen tree, from a YAML file and then from the environment.

The file holds sections and keys (``deploy/config.example.yaml`` shows all of them). The variable
``BROKER_FILTER_<SECTION>__<KEY>`` overrides a key, ``BROKER_FILTER_<SECTION>__<PART>__<KEY>`` a
nested one; empty variables count as unset and lists are separated by commas. This is the only
module that reads the environment.

A secret, such as the password, comes from ``BROKER_FILTER_KAFKA__SECURITY__PASSWORD`` or from the
file that ``kafka.security.password_file`` names, never from the YAML file, and is shown nowhere.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from broker_filter.config_file import (
    hidden,
    problem_lines,
    put,
    read_secrets,
    read_yaml,
    unknown_variables,
    variables,
    written_secrets,
)
from broker_filter.errors import ConfigError
from broker_filter.types import ALERT_TOPIC, DEAD_LETTER_TOPIC

__all__ = [
    "AlertSettings",
    "Batch",
    "DeadLetters",
    "Input",
    "Kafka",
    "Log",
    "MetricsSettings",
    "Model",
    "NoiseSettings",
    "Packets",
    "ScheduleSettings",
    "Security",
    "Settings",
    "Snapshot",
    "Window",
    "load_settings",
    "masked",
    "unread_variables",
]

_STRICT = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

# Properties that follow from our own settings or carry the delivery guarantee.
_OWNED = {
    *("acks", "request.required.acks", "enable.idempotence", "transactional.id", "partitioner"),
    *("auto.offset.reset", "auto.commit.enable", "enable.auto.commit", "auto.commit.interval.ms"),
    *("enable.auto.offset.store", "enable.partition.eof", "partition.assignment.strategy"),
    *("bootstrap.servers", "metadata.broker.list", "security.protocol"),
    *("group.id", "group.instance.id", "group.protocol"),
    *("session.timeout.ms", "max.poll.interval.ms", "message.timeout.ms", "delivery.timeout.ms"),
    *("compression.codec", "compression.type", "delivery.report.only.error", "logger"),
}
_OWNED_PATTERN = re.compile(
    r"(enable\.)?(sasl|ssl|https|test\.mock)\.|on_|.*_cb$|.*(pass|secret|token|credential|\.pem$)"
)
_PASSWORD = ("username", "password")
_OAUTH = ("token_url", "client_id", "client_secret")
_TLS = ("ca_location", "certificate_location", "key_location")
_SAFE_URL = re.compile(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])[:/]")
_HOST_PORT = re.compile(r"(\w+://)?([\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
InputTopic = Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]{1,249}|\^.{1,248})$")]


class Security(BaseModel):
    """How to log in to Kafka."""

    model_config = _STRICT

    protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        default="plaintext", description="security.protocol of librdkafka"
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = Field(
        default=None, description="SASL mechanism; needed by the sasl_* protocols"
    )
    username: str | None = Field(default=None, description="SASL user, for PLAIN and SCRAM")
    password: SecretStr | None = Field(
        default=None, description="SASL password; only from the environment or from password_file"
    )
    password_file: Path | None = Field(
        default=None, description="file that holds the SASL password, such as a mounted secret"
    )
    token_url: str | None = Field(
        default=None, description="token endpoint of the OAuth server, for OAUTHBEARER; https"
    )
    client_id: str | None = Field(default=None, description="client at the OAuth server")
    client_secret: SecretStr | None = Field(
        default=None,
        description="secret of the client; only from the environment or from client_secret_file",
    )
    client_secret_file: Path | None = Field(
        default=None, description="file that holds the secret of the client"
    )
    scope: str | None = Field(
        default=None, description="scope to request from the OAuth server, if any"
    )
    token_ca_location: Path | None = Field(
        default=None,
        description="CA certificates (PEM) of the OAuth server; by default the system's",
    )
    ca_location: Path | None = Field(
        default=None, description="CA certificates (PEM) of the brokers; by default the system's"
    )
    certificate_location: Path | None = Field(default=None, description="client certificate (PEM)")
    key_location: Path | None = Field(default=None, description="client private key (PEM)")
    key_password: SecretStr | None = Field(
        default=None,
        description="password of the private key; only from the environment or from"
        " key_password_file",
    )
    key_password_file: Path | None = Field(
        default=None, description="file that holds the password of the private key"
    )

    @field_validator("token_url")
    @classmethod
    def _encrypted(cls, value: str | None) -> str | None:
        if value and not _SAFE_URL.match(value):
            raise ValueError("must begin with https://, since the secret goes there")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        login = self.protocol.startswith("sasl")
        oauth = self.mechanism == "OAUTHBEARER"
        credentials = _OAUTH if oauth else _PASSWORD
        absent = [name for name in ("mechanism", *credentials) if not getattr(self, name)]
        if login and absent:
            raise ValueError(f"protocol {self.protocol} also needs {', '.join(absent)}")
        if (self.certificate_location is None) != (self.key_location is None):
            raise ValueError("certificate_location and key_location go together")
        return self

    @model_validator(mode="after")
    def _nothing_in_vain(self) -> Self:
        # Else somebody who forgot the protocol would send in clear what was meant to be secret.
        if self.mechanism and not self.protocol.startswith("sasl"):
            raise ValueError(f"protocol {self.protocol} does not use mechanism: take sasl_ssl")
        given = [name for name in _TLS if getattr(self, name)]
        if given and self.protocol not in ("ssl", "sasl_ssl"):
            raise ValueError(f"protocol {self.protocol} does not use {', '.join(given)}: take ssl")
        return self


class Kafka(BaseModel):
    """Where messages come from and go to."""

    model_config = _STRICT

    bootstrap_servers: str = Field(description="host:port of one or more brokers, comma separated")
    group_id: str = Field(default="broker-filter", min_length=1, description="consumer group")
    input_topics: Annotated[tuple[InputTopic, ...], BeforeValidator(_split)] = Field(
        min_length=1,
        description="topics to read; a name that begins with ^ is a regular expression",
    )
    alert_topic: Topic = Field(default=ALERT_TOPIC, description="topic of the alerts")
    dead_letter_topic: Topic = Field(
        default=DEAD_LETTER_TOPIC, description="topic of the messages that cannot be used"
    )
    security: Security = Field(default_factory=Security, description="how to log in")
    auto_offset_reset: Literal["earliest", "latest"] = Field(
        default="earliest", description="where a new group starts"
    )
    assignment_strategy: Literal["auto", "cooperative-sticky", "range", "roundrobin"] = Field(
        default="auto",
        description="how partitions are shared out in the group; auto is range where a pattern is"
        " given, cooperative-sticky elsewhere",
    )
    group_instance_id: str | None = Field(
        default=None,
        description="fixed member name (the pod's), so that a restart moves no partition",
    )
    session_timeout_ms: int = Field(
        default=45_000,
        ge=1_000,
        le=1_800_000,
        description="silence after which a member is given up",
    )
    max_poll_interval_ms: int = Field(
        default=300_000, ge=1_000, le=3_600_000, description="longest time between two polls"
    )
    delivery: Literal["auto", "exactly_once", "at_least_once"] = Field(
        default="auto",
        description="exactly_once publishes and commits in one transaction; auto takes it where the"
        " brokers have transactions",
    )
    transaction_timeout_s: float = Field(
        default=30.0,
        ge=5,
        le=900,
        description="time after which the brokers abort a transaction that we left",
    )
    commit_interval_s: float = Field(
        default=2.0, gt=0, le=60, description="time between two commits of offsets"
    )
    connect_timeout_s: float = Field(
        default=30.0, gt=0, le=600, description="time to reach a broker at the start"
    )
    delivery_timeout_s: float = Field(
        default=120.0,
        ge=1,
        le=3_600,
        description="time after which an undelivered message is given up",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="lz4", description="compression of what is produced"
    )
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        max_length=100,
        description="further librdkafka properties, except those that this program sets itself",
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        bad = [part for part in value.split(",") if not _HOST_PORT.fullmatch(part.strip())]
        if bad:
            raise ValueError(f"{bad[0].strip()!r} is not host:port")
        return value

    @field_validator("input_topics")
    @classmethod
    def _expressions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for topic in value:
            try:
                re.compile(topic)
            except re.error as error:
                raise ValueError(f"{topic!r} is not a regular expression: {error}") from None
        return value

    @field_validator("options", mode="before")
    @classmethod
    def _not_ours(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        # The environment cannot name a variable with dots.
        options = {str(key).lower().replace("_", "."): item for key, item in value.items()}
        ours = sorted(key for key in options if key in _OWNED or _OWNED_PATTERN.match(key))
        if ours:
            raise ValueError(f"{', '.join(ours)} cannot be set here: use the keys of kafka")
        return options

    @model_validator(mode="after")
    def _no_loop(self) -> Self:
        topics = [*self.input_topics, self.alert_topic, self.dead_letter_topic]
        if len(set(topics)) < len(topics):
            raise ValueError("input_topics, alert_topic and dead_letter_topic must all differ")
        for pattern in self.patterns:
            for ours in (self.alert_topic, self.dead_letter_topic):
                if re.match(pattern, ours):
                    raise ValueError(
                        f"input_topics {pattern!r} matches {ours!r}, which this program writes:"
                        " what went out would come in again"
                    )
        return self

    @model_validator(mode="after")
    def _shared_alike(self) -> Self:
        if self.patterns and self.strategy != "range":
            raise ValueError(
                f"assignment_strategy {self.assignment_strategy} may give topics of the pattern"
                f" {self.patterns[0]!r} to several members, and with them the nights of one star:"
                " set it to range or auto, or name the topics literally"
            )
        return self

    @property
    def strategy(self) -> str:
        """How partitions are shared out, ``auto`` resolved."""
        if self.assignment_strategy != "auto":
            return self.assignment_strategy
        return "range" if self.patterns else "cooperative-sticky"

    @property
    def patterns(self) -> tuple[str, ...]:
        """The input topics that are regular expressions."""
        return tuple(topic for topic in self.input_topics if topic.startswith("^"))


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

    model_config = _STRICT

    ignored_cuts: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
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

    model_config = _STRICT

    format: Literal["auto", "photometry", "photometry_block"] = Field(
        default="auto",
        description="schema of the messages; auto recognises them, and survey packets, one by one",
    )
    schema_folder: Path | None = Field(
        default=None,
        description="folder of schemas filed [SURVEY/]MAJOR/MINOR/*.avsc, for packets that carry"
        " only the number 100 MAJOR + MINOR; the package lsst-alert-packet is used if installed",
    )
    schema_ids: dict[int, Path] = Field(
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
    schema_registry_login_file: Path | None = Field(
        default=None,
        description="file that holds user:password for the registry, such as a mounted secret",
    )
    topic_schemas: dict[Topic, Path] = Field(
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
        if not _SAFE_URL.match(self.schema_registry):
            raise ValueError("schema_registry must begin with https://, since a login goes there")
        return self


class Window(BaseModel):
    """The light curve that is kept per star and band."""

    model_config = _STRICT

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

    model_config = _STRICT

    every_days: float = Field(
        default=0.25,
        ge=0,
        le=20,
        description="days between evaluations; 0 evaluates at every epoch",
    )
    min_points: int = Field(default=10, ge=1, le=1000, description="points that a window needs")


class Model(BaseModel):
    """The networks, and what runs them."""

    model_config = _STRICT

    id: str = Field(
        default="fspl-roman-1.0.0",
        pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$",
        description="entry of the model zoo",
    )
    path: Path | None = Field(
        default=None, description="folder of an entry, instead of the zoo's by id"
    )
    device: Literal["cpu", "cuda"] = Field(
        default="cpu", description="a cuda that is missing stops the start"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="number type of the evidence network"
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="CPU threads; by default one per core"
    )


class NoiseSettings(BaseModel):
    """Constant stars against which certified K holds: each of them keeps P(K >= k) <= 1/k.

    Of the family are all noises within these bounds. Wider ones cover more stars, and cost events
    that a wider noise explains as well.
    """

    model_config = _STRICT

    error_scale: tuple[float, float] = Field(
        default=(0.8, 1.5), description="least and largest factor on the errors, after scaling"
    )
    red_noise: float = Field(
        default=0.3,
        ge=0,
        le=10,
        description="largest standard deviation of correlated noise, in median errors of a source",
    )
    red_noise_days: tuple[float, float] = Field(
        default=(0.05, 40.0), description="bounds of its correlation time"
    )
    wrong_epochs: int = Field(
        default=2, ge=0, le=2, description="epochs of a source that may be off by any amount"
    )
    wrong_nights: int = Field(
        default=1, ge=0, le=1, description="nights of a source that may be off as a whole"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name, (low, high) in (
            ("error_scale", self.error_scale),
            ("red_noise_days", self.red_noise_days),
        ):
            if not 0 < low < high < math.inf:
                raise ValueError(f"{name} needs two numbers above 0, the smaller one first")
        return self


class AlertSettings(BaseModel):
    """When an alert is published and what it carries."""

    model_config = _STRICT

    log10_k: float | None = Field(
        default=None,
        ge=-10,
        le=1000,
        description="threshold of log10 K; by default the model card's",
    )
    decide_on: Literal["network", "certified"] = Field(
        default="network", description="which log10 K must pass the threshold"
    )
    trigger_log10_k: float = Field(
        default=1.0,
        ge=-10,
        le=1000,
        description="log10 K of the network from which on K is certified, if that decides",
    )
    certified: bool = Field(
        default=True,
        description="whether alerts carry certified K, which takes most of the time of an alert",
    )
    noise: NoiseSettings | None = Field(
        default=None,
        description="noise of constant stars that certified K allows for; by default white noise",
    )
    false_alarms_per_night: float | None = Field(
        default=None,
        gt=0,
        description="budget from which the certified threshold follows, in place of log10_k",
    )
    stars: int | None = Field(
        default=None, ge=1, description="number of stars in the stream, for the budget"
    )
    bands: int = Field(
        default=1,
        ge=1,
        le=100,
        description="bands in which each of these stars is observed, for the budget",
    )
    max_updates: int = Field(default=20, ge=0, le=1000, description="most updates of one event")
    prior_odds: float = Field(
        default=1e-6, gt=0, le=1, description="odds of an event in one window, before any data"
    )
    posterior_samples: int = Field(default=1000, ge=10, le=20_000, description="samples per alert")
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="seed of the posterior samples")

    @model_validator(mode="after")
    def _budget(self) -> Self:
        if self.decide_on == "certified" and not self.certified:
            raise ValueError("decide_on: certified needs certified: true")
        if (self.false_alarms_per_night is None) != (self.stars is None):
            raise ValueError("false_alarms_per_night and stars go together")
        if self.false_alarms_per_night is not None:
            if self.decide_on != "certified":
                raise ValueError("false_alarms_per_night needs decide_on: certified")
            if self.log10_k is not None:
                raise ValueError("give log10_k or false_alarms_per_night, not both")
        return self


class Batch(BaseModel):
    """How windows are gathered for the network."""

    model_config = _STRICT

    flush_windows: int = Field(
        default=1024, ge=1, le=1 << 20, description="windows that make a batch go at once"
    )
    max_wait_s: float = Field(default=2.0, ge=0, le=60, description="longest wait of a due window")
    queue_depth: int = Field(
        default=4, ge=1, le=1000, description="batches that may wait for the network"
    )
    chunk: int = Field(default=64, ge=1, le=1 << 16, description="windows per call of the network")


class Snapshot(BaseModel):
    """Where windows and events are saved, so that they outlive the process."""

    model_config = _STRICT

    url: str | None = Field(
        default=None,
        description="folder or fsspec URL; without one, a start replays two windows of the topic",
    )
    interval_s: float = Field(
        default=300.0, ge=1, le=86_400, description="time between two snapshots of a partition"
    )


class DeadLetters(BaseModel):
    """How much of a stream may be unusable before the consumer stops."""

    model_config = _STRICT

    max_ratio: float = Field(default=0.01, gt=0, le=1, description="share of unusable messages")
    max_consecutive: int = Field(default=1000, ge=1, description="unusable messages in a row")


class MetricsSettings(BaseModel):
    """The HTTP server with /metrics, /healthz and /readyz."""

    model_config = _STRICT

    enabled: bool = Field(default=True, description="serve metrics and health")
    host: str = Field(
        default="127.0.0.1", description="address to listen on; 0.0.0.0 opens it to others"
    )
    port: int = Field(default=9464, ge=0, le=65_535, description="TCP port; 0 takes a free one")


class Log(BaseModel):
    """What is logged, to stderr."""

    model_config = _STRICT

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level"
    )
    format: Literal["json", "text"] = Field(
        default="json", description="one JSON object a line, or text"
    )


class Settings(BaseModel):
    """All settings; the attributes are the sections of the file."""

    model_config = _STRICT

    kafka: Kafka = Field(description=str(Kafka.__doc__))
    input: Input = Field(default_factory=Input, description=str(Input.__doc__))
    window: Window = Field(default_factory=Window, description=str(Window.__doc__))
    schedule: ScheduleSettings = Field(
        default_factory=ScheduleSettings, description=str(ScheduleSettings.__doc__)
    )
    model: Model = Field(default_factory=Model, description=str(Model.__doc__))
    alert: AlertSettings = Field(
        default_factory=AlertSettings, description=str(AlertSettings.__doc__)
    )
    batch: Batch = Field(default_factory=Batch, description=str(Batch.__doc__))
    snapshot: Snapshot = Field(default_factory=Snapshot, description=str(Snapshot.__doc__))
    dead_letters: DeadLetters = Field(
        default_factory=DeadLetters, description=str(DeadLetters.__doc__)
    )
    metrics: MetricsSettings = Field(
        default_factory=MetricsSettings, description=str(MetricsSettings.__doc__)
    )
    log: Log = Field(default_factory=Log, description=str(Log.__doc__))


def load_settings(path: Path | None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from a YAML file, overridden by the environment.

    Parameters
    ----------
    path : Path or None
        The YAML file; None takes everything from the environment.
    environ : mapping, optional
        Environment variables; those of the process by default.

    Returns
    -------
    Settings

    Raises
    ------
    ConfigError
        With one line per problem: where it stands, the key, its value (never a secret), what is
        allowed, and the nearest key where one is misspelt.
    """
    tree, places = read_yaml(path) if path else ({}, {})
    problems = written_secrets(tree, places)
    for name, keys, value in variables(os.environ if environ is None else environ):
        places[keys] = name
        if not put(tree, keys, value):
            problems.append(f"{name}: {'.'.join(keys[:-1])} is not a section")
    problems += read_secrets(tree)
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        problems += problem_lines(Settings, error, places, tree)
    if problems:
        # "from None" above all keeps the values that pydantic saw out of tracebacks.
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None
    return settings


def masked(settings: Settings) -> dict[str, Any]:
    """Return the settings as plain values, with asterisks for secrets, also those in URLs."""
    shown: dict[str, Any] = _hidden(settings.model_dump(mode="json"))
    return shown


def _hidden(tree: Any) -> Any:  # noqa: ANN401  a tree of plain values
    if isinstance(tree, dict):
        return {key: _hidden(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_hidden(value) for value in tree]
    return hidden(tree) if isinstance(tree, str) else tree


def unread_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """A line for each environment variable that looks like one of ours, but is not read."""
    return unknown_variables(Settings, os.environ if environ is None else environ)
