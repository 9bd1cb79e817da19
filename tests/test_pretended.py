"""The GPU that is not there forbids what CUDA forbids."""

from __future__ import annotations

import pytest
import torch

from tests.pretended import gpu


def test_operations_stay_on_the_device_and_give_what_the_processor_gives() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    with gpu():
        there = values.to("cuda")
        found = (there @ torch.ones(3, 1, device="cuda") + 1.0 * torch.tensor(2.0)).relu_()
        assert found.device.type == "cuda"
        assert there[torch.tensor([True, False])].device.type == "cuda"
        assert found.cpu().tolist() == [[5.0], [14.0]]
        there[0] = 7.0
    assert values[0].tolist() == [0.0, 1.0, 2.0]


def test_places_do_not_mix_and_nothing_is_read_that_was_not_copied_back() -> None:
    with gpu():
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(RuntimeError, match="same device"):
            here[torch.tensor([0], device="cuda")]
        with pytest.raises(RuntimeError, match="numpy"):
            there.numpy()
