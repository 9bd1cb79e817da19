"""Fixtures that several test modules share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real light curves and alert packets; they are not part of the repository."""
    path = Path(os.environ.get("BROKER_FILTER_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not path.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(
                f"{path} is missing: set BROKER_FILTER_TEST_DATA to the folder of real data"
            )
        pytest.skip(f"no real data at {path} (set BROKER_FILTER_TEST_DATA)")
    return path
