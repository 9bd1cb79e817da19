"""A secret that belongs to no section of the settings: from the environment, or from a file."""

from __future__ import annotations

import os
from pathlib import Path

from broker_filter.errors import ConfigError

__all__ = ["read_secret"]


def read_secret(variable: str, file: Path | None = None) -> str | None:
    """Read a secret; None where there is neither a file nor a variable, or the variable is empty.

    Parameters
    ----------
    variable : str
        Of the environment; the file comes before it.
    file : Path, optional
        Holds the secret on one line and nothing else.

    Raises
    ------
    ConfigError
        The file cannot be read, or does not hold one line. The message never shows the secret.
    """
    if file is None:
        return os.environ.get(variable, "").strip() or None
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"{file}: the secret cannot be read: {reason}") from None
    if not secret or "\n" in secret:
        raise ConfigError(f"{file}: does not hold one line with the secret")
    return secret
