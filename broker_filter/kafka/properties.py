"""Properties of librdkafka from a file, such as those for SASL and TLS."""

from __future__ import annotations

from pathlib import Path

from broker_filter.errors import ConfigError

__all__ = ["Properties", "read_properties"]

Properties = dict[str, str | int | float | bool]


def read_properties(path: Path | None) -> Properties:
    """Read a file of librdkafka properties, one key=value a line; none without a file.

    Raises
    ------
    ConfigError
        It cannot be read; the message names file and line, never a value, which may be a secret.
    """
    if path is None:
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: Kafka properties cannot be read: {error}") from None
    properties: Properties = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            if not equals or not key.strip():
                raise ConfigError(f"{path}, line {number}: expected key=value")
            properties[key.strip()] = value.strip()
    return properties
