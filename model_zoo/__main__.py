"""Entry point of ``model-zoo``: says what to install where a package of its extra is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from broker_filter.errors import ConfigError
from broker_filter.extras import named_extras

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``model_zoo.cli.main``; the exit status is 2 where a package is missing."""
    try:
        with named_extras("model-zoo", extra="train"):
            from model_zoo import cli

            return cli.main(argv)
    except ConfigError as error:
        sys.stderr.write(f"model-zoo: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
