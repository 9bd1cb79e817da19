"""Where messages come from and go to, and how to log in there."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, SecretStr, field_validator, model_validator

from broker_filter.config.fields import SAFE_URL, STRICT, File, InputTopic, Topic, split
from broker_filter.types import ALERT_TOPIC, DEAD_LETTER_TOPIC

__all__ = ["Kafka", "Security"]

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
_OAUTH_EXTRAS = ("scope", "token_ca_location")
_TLS = ("ca_location", "certificate_location", "key_location")
# What Python and POSIX read otherwise, or only one of them.
_ONE_OF_TWO = re.compile(r"\\[0-9A-Za-z]|\(\?|[*+?}][?+]|\[[:.=]|\{(?!\d*,?\d*\})")
_HOST_PORT = re.compile(r"(\w+://)?([\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")


class Security(BaseModel):
    """How to log in to Kafka."""

    model_config = STRICT

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
    password_file: File | None = Field(
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
    client_secret_file: File | None = Field(
        default=None, description="file that holds the secret of the client"
    )
    scope: str | None = Field(
        default=None, description="scope to request from the OAuth server, if any"
    )
    token_ca_location: File | None = Field(
        default=None,
        description="CA certificates (PEM) of the OAuth server; by default the system's",
    )
    ca_location: File | None = Field(
        default=None, description="CA certificates (PEM) of the brokers; by default the system's"
    )
    certificate_location: File | None = Field(default=None, description="client certificate (PEM)")
    key_location: File | None = Field(default=None, description="client private key (PEM)")
    key_password: SecretStr | None = Field(
        default=None,
        description="password of the private key; only from the environment or from"
        " key_password_file",
    )
    key_password_file: File | None = Field(
        default=None, description="file that holds the password of the private key"
    )

    @field_validator("token_url")
    @classmethod
    def _encrypted(cls, value: str | None) -> str | None:
        if value and not SAFE_URL.match(value):
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
        login, oauth = ("mechanism", *_PASSWORD), (*_OAUTH, *_OAUTH_EXTRAS)
        if not self.protocol.startswith("sasl"):
            if vain := self._given(*login, *oauth):
                raise ValueError(f"protocol {self.protocol} does not use {vain}: take sasl_ssl")
        elif vain := self._given(*(_PASSWORD if self.mechanism == "OAUTHBEARER" else oauth)):
            raise ValueError(f"mechanism {self.mechanism} does not use {vain}")
        given = self._given(*_TLS)
        if given and self.protocol not in ("ssl", "sasl_ssl"):
            raise ValueError(f"protocol {self.protocol} does not use {given}: take ssl")
        return self

    def _given(self, *names: str) -> str:
        return ", ".join(name for name in names if getattr(self, name))


class Kafka(BaseModel):
    """Where messages come from and go to."""

    model_config = STRICT

    bootstrap_servers: str = Field(description="host:port of one or more brokers, comma separated")
    group_id: str = Field(default="broker-filter", min_length=1, description="consumer group")
    input_topics: Annotated[tuple[InputTopic, ...], BeforeValidator(split)] = Field(
        min_length=1,
        description="topics to read; a name that begins with ^ is a regular expression",
    )
    alert_topic: Topic = Field(default=ALERT_TOPIC, description="topic of the alerts")
    alert_framing: Literal["bare", "container", "confluent"] = Field(
        default="bare",
        description="what stands around an alert: nothing, an Avro container with the schema, or"
        " Confluent's wire format",
    )
    alert_schema_id: int | None = Field(
        default=None,
        ge=0,
        lt=1 << 32,
        description="number of the alert's schema for confluent, where no registry gives it",
    )
    alert_schema_registry: str | None = Field(
        default=None,
        description="registry in which confluent files the alert's schema, at subject"
        " <alert_topic>-value; https",
    )
    alert_schema_registry_login_file: File | None = Field(
        default=None, description="file that holds user:password for that registry"
    )
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
            if topic.startswith("^"):
                _check_expression(topic)
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

    @field_validator("alert_schema_registry")
    @classmethod
    def _safe_registry(cls, value: str | None) -> str | None:
        if value is not None and not SAFE_URL.match(value):
            raise ValueError("must begin with https://, or name this machine by http://")
        return value

    @model_validator(mode="after")
    def _schema_number(self) -> Self:
        given = [
            name
            for name in ("alert_schema_id", "alert_schema_registry")
            if getattr(self, name) is not None
        ]
        if self.alert_framing == "confluent" and len(given) != 1:
            raise ValueError(
                "alert_framing confluent needs alert_schema_id or alert_schema_registry, one of"
                " the two"
            )
        if self.alert_framing != "confluent" and given:
            raise ValueError(f"alert_framing {self.alert_framing} does not use {', '.join(given)}")
        if self.alert_schema_registry_login_file and not self.alert_schema_registry:
            raise ValueError("alert_schema_registry_login_file needs alert_schema_registry")
        return self

    @model_validator(mode="after")
    def _alive_between_polls(self) -> Self:
        if self.max_poll_interval_ms < self.session_timeout_ms:
            raise ValueError(
                f"max_poll_interval_ms {self.max_poll_interval_ms} must not be less than"
                f" session_timeout_ms {self.session_timeout_ms}"
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


def _check_expression(pattern: str) -> None:
    """Refuse what is no regular expression, or not the same one to Python and Kafka's client."""
    if found := _ONE_OF_TWO.search(pattern):
        raise ValueError(
            f"{pattern!r}: {found[0]!r} is not the same to Python and to Kafka's client, whose"
            r" expressions are those of POSIX: write [0-9] for \d and [A-Za-z0-9_] for \w,"
            " and groups and repetitions without a further ?"
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
