"""Entries of the zoo: written whole or not at all, and read only if they are whole."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from broker_filter.errors import ModelError
from broker_filter.inference import zoo
from broker_filter.inference.network import Network
from broker_filter.types import PARAMETERS
from tests import build

CONFIG: dict[str, Any] = {
    "window": {"days": 20.0, "max_points": 1000, "buckets": [128, 256, 512, 1000]},
    "encoder": {"name": "compact", "width": 16, "layers": 1, "heads": 2, "feed_forward": 32},
    "evidence": {"hidden": 8},
    "flow": {"transforms": 1, "hidden": [16], "bins": 4},
    "prior": {"name": "box", "low": [0, 0, -1, -2, 0.1], "high": [20, 1.5, 1.3, 1, 1]},
}


def make_card(model_id: str = "fspl-test-0.0.1") -> zoo.Card:
    return build.card(model_id)


def make_network(seed: int = 1) -> Network:
    torch.manual_seed(seed)
    return Network(CONFIG).eval()


def write_with_two_heads(path: Path) -> Network:
    """An entry with a head for look-alikes, whose encoder reads the star's noise."""
    encoder = {**CONFIG["encoder"], "star_noise": True}
    config = {**CONFIG, "encoder": encoder, "evidence": {"hidden": 8, "lookalikes": True}}
    torch.manual_seed(1)
    network = Network(config).eval()
    zoo.write_entry(path, network, config, make_card(), make_windows(), torch.zeros(3))
    return network


def make_windows() -> Tensor:
    x = torch.full((3, 128, 3), -2.0)
    x[:, :100, 0] = torch.linspace(-1, 1, 100)
    x[:, :100, 1] = 1 + torch.tensor([0.0, 0.3, 5.0])[:, None] * torch.linspace(0, 1, 100)
    x[:, :100, 2] = 0.01
    return x


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    path = tmp_path / "fspl-test-0.0.1"
    zoo.write_entry(path, make_network(), CONFIG, make_card(), make_windows(), torch.zeros(3))
    return path


def seal(path: Path) -> None:
    """File the sums anew, as somebody who altered an entry on purpose would."""
    lines = [f"{hashlib.sha256((path / n).read_bytes()).hexdigest()}  {n}\n" for n in zoo.FILES]
    (path / zoo.SUMS).write_text("".join(lines))


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    seal(file.parent)


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_what_was_filed_is_what_is_loaded(entry: Path) -> None:
    verified = zoo.verify(entry)
    with torch.no_grad():
        ln_k, s = zoo.load(verified)(make_windows())
        expected_ln_k, expected_s = make_network()(make_windows())
    assert torch.equal(ln_k, expected_ln_k)
    assert torch.equal(s, expected_s)
    assert verified.config == CONFIG
    assert verified.card == make_card()
    assert (verified.window_days, verified.threshold) == (20.0, 2.5)
    assert verified.sha256 == hashlib.sha256((entry / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("name", [*zoo.FILES, zoo.SUMS])
def test_a_damaged_file_is_named(entry: Path, name: str) -> None:
    damaged = bytearray((entry / name).read_bytes())
    damaged[len(damaged) // 2] ^= 0x81
    (entry / name).write_bytes(damaged)
    # A flipped digit of the sums shows at the file whose sum it was.
    with pytest.raises(ModelError, match=str(entry) if name == zoo.SUMS else str(entry / name)):
        zoo.verify(entry)


@pytest.mark.parametrize("name", [*zoo.FILES, zoo.SUMS])
def test_a_missing_file_is_named(entry: Path, name: str) -> None:
    (entry / name).unlink()
    with pytest.raises(ModelError, match=str(entry / name)):
        zoo.verify(entry)


def test_a_file_that_is_not_listed_is_not_trusted(entry: Path) -> None:
    sums = (entry / zoo.SUMS).read_text().splitlines()
    (entry / zoo.SUMS).write_text("\n".join(sums[1:]))
    with pytest.raises(ModelError, match=zoo.SUMS):
        zoo.verify(entry)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("card.json", lambda c: c.update(colour="blue"), "colour"),
        ("card.json", lambda c: c.pop("gate"), "gate"),
        ("card.json", lambda c: c.update(format=3, colour="blue"), "format 3.* reads 1 and 2"),
        ("card.json", lambda c: c.pop("format"), "format None"),
        ("config.json", lambda c: c.pop("window"), "window"),
        ("config.json", lambda c: c.update(colour="blue"), "colour"),
    ],
)
def test_card_and_config_hold_what_this_version_knows_and_no_more(
    entry: Path, name: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(entry / name, change)
    with pytest.raises(ModelError, match=f"{name}: (?s:.*){message}"):
        zoo.verify(entry)


@pytest.mark.parametrize("text", ["[]", "{", "nul"])
def test_what_is_no_json_object_is_named(entry: Path, text: str) -> None:
    (entry / "config.json").write_text(text)
    seal(entry)
    with pytest.raises(ModelError, match=r"config\.json: not"):
        zoo.verify(entry)


@pytest.mark.parametrize("encoder", [{"name": "none"}, {"name": "compact", "depth": 3}, {}, None])
def test_an_architecture_that_does_not_exist_is_named(entry: Path, encoder: object) -> None:
    edit(entry / "config.json", lambda c: c.update(encoder=encoder))
    with pytest.raises(ModelError, match=r"config\.json"):
        zoo.load(zoo.verify(entry))


def test_weights_of_another_architecture_are_refused(entry: Path) -> None:
    edit(entry / "config.json", lambda c: c["encoder"].update(width=32))
    with pytest.raises(ModelError, match=r"model\.safetensors: not the weights"):
        zoo.load(zoo.verify(entry))


def test_a_weight_that_is_left_out_or_over_is_refused(entry: Path) -> None:
    weights = load_file(entry / "model.safetensors")
    dropped = dict(list(weights.items())[1:])
    for changed in (dropped, {**weights, "more": torch.zeros(1)}):
        save_file(changed, entry / "model.safetensors")
        seal(entry)
        with pytest.raises(ModelError, match=r"model\.safetensors"):
            zoo.load(zoo.verify(entry))


@pytest.mark.parametrize("name", ["model.safetensors", "self_test.safetensors"])
def test_what_is_no_safetensors_file_is_named(entry: Path, name: str) -> None:
    (entry / name).write_bytes(b"not tensors")
    seal(entry)
    with pytest.raises(ModelError, match=name):
        zoo.load(zoo.verify(entry))


def test_a_network_that_says_something_else_than_filed_fails_its_self_test(entry: Path) -> None:
    stored = load_file(entry / "self_test.safetensors")
    save_file({**stored, "ln_k": stored["ln_k"] + 0.2}, entry / "self_test.safetensors")
    seal(entry)
    with pytest.raises(ModelError, match=r"self_test\.safetensors: self-test failed"):
        zoo.load(zoo.verify(entry))


def test_an_entry_with_a_second_head_comes_back_with_it(tmp_path: Path) -> None:
    path = tmp_path / "fspl-test-0.0.1"
    network = write_with_two_heads(path)
    loaded = zoo.load(zoo.verify(path))
    assert network.lookalikes is not None
    assert loaded.lookalikes is not None
    with torch.no_grad():
        (_, s), (_, same) = network(make_windows()), loaded(make_windows())
        torch.testing.assert_close(loaded.lookalikes(same), network.lookalikes(s))
    stored = load_file(path / "self_test.safetensors")
    other = {**stored, "ln_k_lookalikes": stored["ln_k_lookalikes"] + 0.2}
    save_file(other, path / "self_test.safetensors")
    seal(path)
    with pytest.raises(ModelError, match="self-test failed: ln_k_lookalikes"):
        zoo.load(zoo.verify(path))


def test_weights_that_are_not_finite_fail_the_self_test(entry: Path) -> None:
    weights = load_file(entry / "model.safetensors")
    weights["evidence.mlp.2.bias"][:] = torch.nan
    save_file(weights, entry / "model.safetensors")
    seal(entry)
    with pytest.raises(ModelError, match="self-test failed"):
        zoo.load(zoo.verify(entry))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_gpu_that_was_asked_for_and_is_missing_is_an_error(entry: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.device"):
        zoo.load(zoo.verify(entry), "cuda")


def test_an_entry_is_replaced_as_a_whole(entry: Path) -> None:
    (entry / "left-over").write_text("of the former entry")
    zoo.write_entry(
        entry, make_network(2), CONFIG, make_card("fspl-test-0.0.2"), make_windows(), torch.zeros(3)
    )
    assert zoo.verify(entry).model_id == "fspl-test-0.0.2"
    assert set(content(entry)) == {*zoo.FILES, zoo.SUMS}
    assert list(entry.parent.iterdir()) == [entry]


def fail(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def fail_to_move_in(path: Path, target: Path) -> Path:
    """Stands for Path.rename; refuses the new entry its place."""
    if not path.name.endswith("-former") and not target.name.endswith("-former"):
        raise KeyboardInterrupt
    shutil.move(path, target)
    return target


@pytest.mark.parametrize(
    ("where", "what"),
    [("safetensors.torch.save_file", fail), ("pathlib.Path.rename", fail_to_move_in)],
)
def test_an_interrupt_leaves_the_former_entry_and_nothing_else(
    entry: Path, monkeypatch: pytest.MonkeyPatch, where: str, what: Callable[..., object]
) -> None:
    before = content(entry)
    with monkeypatch.context() as patched:
        patched.setattr(where, what)
        with pytest.raises(KeyboardInterrupt):
            zoo.write_entry(
                entry, make_network(2), CONFIG, make_card(), make_windows(), torch.zeros(3)
            )
    assert content(entry) == before
    assert list(entry.parent.iterdir()) == [entry]


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def full_disk_for_tensors(*_: object, **__: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device")


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("safetensors.torch.save_file", full_disk_for_tensors),
        ("pathlib.Path.write_text", full_disk),
        ("tempfile.mkdtemp", full_disk),
    ],
)
def test_a_full_disk_is_one_clear_error_and_leaves_the_former_entry(
    entry: Path, monkeypatch: pytest.MonkeyPatch, where: str, what: Callable[..., object]
) -> None:
    before = content(entry)
    with monkeypatch.context() as patched:
        patched.setattr(where, what)
        with pytest.raises(ModelError, match=rf"{entry}: not written.*No space left on device"):
            zoo.write_entry(
                entry, make_network(2), CONFIG, make_card(), make_windows(), torch.zeros(3)
            )
    assert content(entry) == before
    assert list(entry.parent.iterdir()) == [entry]


def test_a_truncated_weight_file_is_named(entry: Path) -> None:
    weights = (entry / "model.safetensors").read_bytes()
    (entry / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ModelError, match=r"model\.safetensors: altered or damaged"):
        zoo.verify(entry)
    seal(entry)
    with pytest.raises(ModelError, match=r"model\.safetensors: "):
        zoo.load(zoo.verify(entry))


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(ModelError, match="no model 'none'; there are: ") as caught:
        zoo.find("none")
    for name in zoo.model_ids():
        assert name in str(caught.value)


@pytest.mark.parametrize("name", ["..", "../weights/fspl-roman-0.1.0", ""])
def test_a_name_is_not_a_path(name: str) -> None:
    with pytest.raises(ModelError, match="no model"):
        zoo.find(name)


@pytest.mark.parametrize("model_id", zoo.model_ids())
def test_every_filed_entry_is_whole_and_says_what_it_is(model_id: str) -> None:
    entry = zoo.verify(zoo.find(model_id))
    network = zoo.load(entry)
    assert entry.model_id == model_id
    assert not any(p.requires_grad for p in network.parameters())
    assert all(p.dtype == torch.float32 for p in network.parameters())
    assert set(entry.card.outputs["posterior"]) == set(PARAMETERS)
    assert {"tpr_zero_fp", "k_tail", "rmse", "coverage68", "coverage95", "test_set"} <= set(
        entry.card.evaluation
    )
    assert entry.card.inputs["window_days"] == entry.window_days
    assert entry.threshold >= 2
    assert entry.card.limits


def test_the_page_of_a_card_shows_figures_and_leaves_deep_ones_to_the_card(tmp_path: Path) -> None:
    evaluation = {"rmse": {"t0": 0.123456, "u0": 2}, "by_snr": [{"snr": 1.0}], "n": 5000}
    card = make_card().model_copy(update={"evaluation": evaluation})
    path = tmp_path / "fspl-test-0.0.1"
    zoo.write_entry(path, make_network(), CONFIG, card, make_windows(), torch.zeros(3))
    page = (path / "README.md").read_text()
    assert "| rmse | t0 0.1235; u0 2 |" in page
    assert "| n | 5000 |" in page
    assert "by_snr" not in page
