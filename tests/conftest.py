"""Fixtures that several test modules share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

# Files of tests run side by side, one a core. Read once, when numpy and torch are first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


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


@pytest.fixture(scope="session")
def compiled_reader() -> None:
    """One packet read: time and memory of compiling the loop over packets are those of no other."""
    from broker_filter.decode.avro.reader import RecordReader
    from broker_filter.decode.avro.schema import parse_document

    numbers = {"name": "numbers", "type": {"type": "array", "items": "long"}}
    packet = parse_document({"type": "record", "name": "packet", "fields": [numbers]})
    RecordReader(packet, {}).read(b"\2\2\0")


@pytest.fixture(scope="session")
def tiny_entry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an entry with an untrained network, small enough to load and run in no time."""
    import torch

    from broker_filter.inference import zoo
    from broker_filter.inference.network import Network
    from tests import build

    config = {
        "window": {"days": 20.0, "max_points": 1000, "buckets": [128, 256, 512, 1000]},
        "encoder": {"name": "compact", "width": 16, "layers": 1, "heads": 2, "feed_forward": 32},
        "evidence": {"hidden": 8},
        "flow": {"transforms": 1, "hidden": [8], "bins": 4},
        "prior": {"name": "box", "low": [0, 0, -1, -2, 0.1], "high": [20, 1.5, 1.3, 1, 1]},
    }
    card = build.card("fspl-tiny-0.0.1")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = Network(config)
    windows = torch.full((2, 128, 3), -2.0)
    windows[:, :100] = torch.stack(
        [torch.linspace(-1, 1, 100), torch.ones(100), torch.ones(100)], 1
    )
    path = tmp_path_factory.mktemp("zoo") / card.model_id
    zoo.write_entry(path, network, config, card, windows, torch.zeros(2))
    return path
