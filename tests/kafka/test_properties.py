"""Properties of the Kafka client from a file; a value may be a secret, and is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_filter.errors import ConfigError
from broker_filter.kafka.properties import read_properties


def test_a_file_of_properties_is_read(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# secret\n\nsasl.password = a=b \nsecurity.protocol=SASL_SSL\n")
    assert read_properties(path) == {
        "sasl.password": "a=b",
        "security.protocol": "SASL_SSL",
    }


def test_errors_name_the_line_but_not_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("a=1\nsasl.password hunter2\n")
    with pytest.raises(ConfigError, match=r"client\.properties, line 2: ") as caught:
        read_properties(path)
    assert "hunter2" not in str(caught.value)


def test_no_file_gives_no_properties() -> None:
    assert read_properties(None) == {}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_properties(tmp_path / "nowhere")
