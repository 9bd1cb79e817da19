"""Laws that every encoder keeps: what surrounds a window must not change what is said of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from broker_filter.errors import ModelError
from broker_filter.inference.encoder import build_encoder
from broker_filter.inference.network import Network

CONFIGS = {
    "compact": {"name": "compact", "width": 32, "layers": 2, "feed_forward": 64},
    "compact, scan": {
        "name": "compact",
        "width": 32,
        "layers": 2,
        "feed_forward": 64,
        "scan": True,
    },
    "paper": {"name": "paper", "width": 32, "layers": 2, "heads": 4, "feed_forward": 64},
}


def make_network(name: str) -> Network:
    torch.manual_seed(3)
    prior = {"name": "box-1", "low": [0, 0, -1, -2, 0.1], "high": [20, 1.5, 1.3, 1, 1]}
    flow = {"transforms": 2, "hidden": [16]}
    config = {"encoder": CONFIGS[name], "evidence": {"hidden": 8}, "flow": flow, "prior": prior}
    return Network(config).eval()


@pytest.fixture(params=sorted(CONFIGS))
def network(request: pytest.FixtureRequest) -> Network:
    return make_network(request.param)


def windows(n: int, epochs: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.full((n, length, 3), -2.0)
    x[:, :epochs, 0] = torch.rand(n, epochs, generator=generator).sort(1).values * 2 - 1
    x[:, :epochs, 2] = 0.001 + 0.02 * torch.rand(n, epochs, generator=generator)
    x[:, :epochs, 1] = 1 + x[:, :epochs, 2] * torch.randn(n, epochs, generator=generator)
    return x


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=3e-5)


def test_bucket_length_changes_nothing(network: Network) -> None:
    with torch.no_grad():
        short, long = network.encoder(windows(3, 100, 128)), network.encoder(windows(3, 100, 1000))
    assert close(short, long)


def test_batch_mates_change_nothing(network: Network) -> None:
    x = windows(8, 90, 128)
    with torch.no_grad():
        together = network.encoder(x)
        alone = torch.cat([network.encoder(x[i : i + 1]) for i in range(len(x))])
        shuffled = network.encoder(x.flip(0)).flip(0)
    assert close(together, alone)
    assert torch.equal(together, shuffled)


@pytest.mark.parametrize("damage", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_counts_as_padding(network: Network, damage: float) -> None:
    x = windows(2, 60, 128)
    broken = x.clone()
    broken[:, 60:70] = damage
    with torch.no_grad():
        assert close(network.encoder(broken), network.encoder(x))


def test_an_empty_window_has_a_finite_summary(network: Network) -> None:
    with torch.no_grad():
        ln_k, s = network(torch.full((2, 128, 3), -2.0))
    assert torch.isfinite(ln_k).all()
    assert torch.isfinite(s).all()


def test_an_empty_window_has_finite_gradients(network: Network) -> None:
    network(torch.full((2, 128, 3), -2.0))[0].sum().backward()
    gradients = [p.grad for p in network.encoder.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_training_mode_gives_what_evaluation_gives(network: Network) -> None:
    x = windows(4, 100, 128)
    with torch.no_grad():
        assert torch.equal(network.train()(x)[0], network.eval()(x)[0])


@pytest.mark.parametrize("name", ["compact", "paper"])
def test_an_untrained_network_does_not_know_of_baselines(name: str) -> None:
    """Unless a scan tells it, which is exact from the start."""
    network, x = make_network(name), windows(3, 100, 128)
    with torch.no_grad():
        assert torch.equal(network(x, torch.tensor([0.0, 1e-3, 0.1]))[0], network(x)[0])


def trained(network: Network) -> Network:
    """After one step that lets the summary follow the error of the baseline."""
    x, error = windows(4, 100, 128, seed=1), torch.tensor([0.0, 1e-4, 1e-3, 1e-2])
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    (network.encoder(x, error)[:, 0] @ (error + 1e-5).log()).backward()
    optimizer.step()
    return network


def test_training_makes_the_baselines_error_count(network: Network) -> None:
    x, network = windows(1, 100, 128).expand(3, -1, -1), trained(network)
    with torch.no_grad():
        s = network.encoder(x, torch.tensor([0.0, 1e-3, 1e-2]))
    assert not close(s[0], s[1])
    assert not close(s[1], s[2])


def test_a_baselines_error_left_out_is_that_of_an_exact_one(network: Network) -> None:
    x, network = windows(3, 100, 128), trained(network)
    with torch.no_grad():
        assert torch.equal(network.encoder(x), network.encoder(x, torch.zeros(3)))


def test_each_window_has_its_own_baseline(network: Network) -> None:
    x, error = windows(4, 90, 128), torch.tensor([0.0, 1e-4, 1e-3, 1e-2])
    network = trained(network)
    with torch.no_grad():
        together = network.encoder(x, error)
        alone = [network.encoder(x[i : i + 1], error[i : i + 1]) for i in range(4)]
    assert close(together, torch.cat(alone))


def test_every_epoch_counts(network: Network) -> None:
    x = windows(1, 100, 128)
    with torch.no_grad():
        before = network.encoder(x)
        for epoch in (0, 49, 50, 99):
            changed = x.clone()
            changed[0, epoch, 1] += 0.1
            assert not close(network.encoder(changed), before)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_state_travels_by_state_dict(name: str) -> None:
    network, other = make_network(name), make_network(name)
    for p in other.parameters():
        p.data.zero_()
    other.load_state_dict(network.state_dict(), strict=True)
    x = windows(4, 100, 128)
    with torch.no_grad():
        assert torch.equal(other(x)[0], network(x)[0])


@pytest.mark.parametrize(
    "make", [lambda: build_encoder("none"), lambda: build_encoder("compact", wdith=3)]
)
def test_unknown_names_and_options_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ModelError, match="known are compact, paper"):
        make()


def test_what_is_known_of_a_stars_noise_matters_once_learned_and_only_where_it_is_known() -> None:
    torch.manual_seed(4)
    encoder = build_encoder(**{**CONFIGS["compact"], "star_noise": True}).eval()
    x, unknown = windows(3, 60, 128), torch.full((3, 3), torch.nan)
    known = torch.tensor([[1.2, 0.5, 30.0], [1.0, 0.0, 200.0], [0.9, 2.0, 0.0]])
    with torch.no_grad():
        plain = encoder(x)
        assert torch.equal(encoder(x, None, known), plain)
        torch.nn.init.normal_(encoder.star.linear.weight)
        assert torch.equal(encoder(x, None, unknown), plain)
        moved = encoder(x, None, known)
    assert torch.isfinite(moved).all()
    assert not torch.isclose(moved, plain).all(1).any()
