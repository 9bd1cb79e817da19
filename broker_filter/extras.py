"""Packages that come with an extra, and what to say where one is missing.

``pip install broker-filter`` holds what subscribers and replays need. The filter itself, training,
plots and Parquet files need more, which their extras bring.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from broker_filter.errors import ConfigError

__all__ = ["EXTRA_OF", "named_extras", "require"]

EXTRA_OF = {
    "torch": "filter",
    "numba": "filter",
    "zuko": "filter",
    "safetensors": "filter",
    "scipy": "filter",
    "prometheus_client": "filter",
    "matplotlib": "plot",
    "pyarrow": "parquet",
    "jinja2": "page",
    "starlette": "page",
    "uvicorn": "page",
    "VBMicrolensing": "train",
    "dynesty": "train",
    "emcee": "train",
    "tarp": "train",
}
"""Package, by the name that is imported, to the extra of `pyproject.toml` that brings it."""


def require(package: str, purpose: str) -> None:
    """Check that a package of an extra is installed, without importing it.

    Parameters
    ----------
    package : str
        One of `EXTRA_OF`.
    purpose : str
        What it is needed for: "plots", "broker-filter run".

    Raises
    ------
    ConfigError
        It is not; the message has the command that installs it.
    """
    if find_spec(package) is None:
        raise _missing(package, purpose)


@contextmanager
def named_extras(purpose: str, extra: str | None = None) -> Iterator[None]:
    """Turn the failed import of a package of an extra into the message of `require`.

    Parameters
    ----------
    purpose : str
    extra : str, optional
        The extra that brings all that is needed, where that is not the missing package's own.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRA_OF:
            raise
        raise _missing(package, purpose, extra) from None


def _missing(package: str, purpose: str, extra: str | None = None) -> ConfigError:
    wanted = extra or EXTRA_OF[package]
    return ConfigError(
        f"{purpose}: {package} is not installed: pip install 'broker-filter[{wanted}]'"
    )
