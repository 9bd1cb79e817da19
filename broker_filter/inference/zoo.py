"""The model zoo: find entries, verify them, load them, write them.

An entry is a folder ``model_zoo/weights/<task>-<survey>-<x.y.z>/``::

    model.safetensors      all weights, float32
    self_test.safetensors  a few windows, and ln K of the network for them when it was filed
    config.json            all that rebuilds the network: architecture, window, prior
    card.json              what it is for and what was measured
    README.md              the same for people
    SHA256SUMS             of every file above

Loading checks the sums, then the card and the format, builds the network from the config, loads the
weights strictly and repeats the self-test. No pickle is read anywhere.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker_filter.errors import ModelError
from broker_filter.inference.scale import rescaled
from broker_filter.observe.text import markdown_table
from broker_filter.types import FloatArray

if TYPE_CHECKING:  # entries are listed and verified where torch is not installed, too
    from torch import Tensor

    from broker_filter.inference.network import Network

__all__ = ["Card", "Entry", "find", "load", "model_ids", "verify", "write_entry"]

WEIGHTS = Path(__file__).parents[2] / "model_zoo" / "weights"
FORMAT, READABLE = 2, (1, 2)
"""Layout that is written, and those that are read: 2 may have a head for look-alikes."""
FILES = ("model.safetensors", "self_test.safetensors", "config.json", "card.json", "README.md")
SUMS = "SHA256SUMS"
CONFIG_KEYS = {"window", "encoder", "evidence", "flow", "prior"}
# bfloat16 and other processors move ln K by about this much; a wrong weight moves it by far more.
SELF_TEST_TOLERANCE = 0.05
MOST_IN_A_CELL = 8  # named figures in one cell of the page


class Card(BaseModel):
    """Machine-readable card of an entry; sections hold figures that only people and plots read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_id: str
    format: int = Field(FORMAT, description="version of the entry's layout")
    summary: str
    created: str = Field(description="ISO date and time, UTC")
    licence: str = "MIT"
    supersedes: str | None = None
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    training: dict[str, Any]
    evaluation: dict[str, Any]
    limits: list[str]
    runtime: dict[str, Any]
    gate: dict[str, Any] = Field(description="alert threshold: log10_k and where it came from")


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified entry.

    Parameters
    ----------
    path : Path
    config : mapping
        Keys ``window`` (``days``, ``max_points``, ``buckets``, ``joins_bands``), ``encoder``,
        ``evidence``, ``flow`` and ``prior``.
    card : Card
    sha256 : str
        Of the weights; every alert carries it.
    """

    path: Path
    config: Mapping[str, Any]
    card: Card
    sha256: str

    @property
    def model_id(self) -> str:
        """Name and version of the entry."""
        return self.card.model_id

    @property
    def window_days(self) -> float:
        """Length of the window for which the network was trained."""
        return float(self.config["window"]["days"])

    @property
    def joins_bands(self) -> bool:
        """Whether its windows hold the epochs of all bands of a star."""
        return bool(self.config["window"].get("joins_bands", False))

    @property
    def threshold(self) -> float:
        """The card's alert threshold in log10 K."""
        return float(self.card.gate["log10_k"])

    def rescaled(self, log10_k: FloatArray) -> FloatArray:
        """The network's log10 K, shape (n,), on the card's scale, where it has one."""
        scale = self.card.outputs.get("log10_k_scale")
        return log10_k if scale is None else rescaled(log10_k, scale)


def model_ids() -> list[str]:
    """Names of all entries that came with the package, sorted."""
    return sorted(path.name for path in WEIGHTS.glob("*-*") if (path / "card.json").is_file())


def find(model_id: str) -> Path:
    """Folder of an entry that came with the package.

    Raises
    ------
    ModelError
        If there is none of that name; the message lists those that exist.
    """
    path = WEIGHTS / model_id
    if model_id not in model_ids():
        raise ModelError(f"no model {model_id!r}; there are: {', '.join(model_ids()) or 'none'}")
    return path


def verify(path: Path) -> Entry:
    """Check sums, card and format of an entry.

    Raises
    ------
    ModelError
        Naming the file that is missing, altered or not understood.
    """
    for name, expected in _read_sums(path).items():
        if _sha256(path / name) != expected:
            raise ModelError(f"{path / name}: altered or damaged, its SHA-256 is not that filed")
    return Entry(path, _read_config(path), _read_card(path), _sha256(path / "model.safetensors"))


def load(entry: Entry, device: str = "cpu") -> Network:
    """Rebuild the network of a verified entry and repeat its self-test.

    Raises
    ------
    ModelError
        If config and weights do not fit each other, the device is missing, or the network gives
        other results than when it was filed.
    """
    from broker_filter.inference.device import device_of
    from broker_filter.inference.network import Network

    place = device_of(device)
    try:
        network = Network(entry.config)
    except (ModelError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{entry.path / 'config.json'}: builds no network: {error}") from error
    try:
        network.load_state_dict(_read_tensors(entry.path / "model.safetensors"), strict=True)
    except RuntimeError as error:
        raise ModelError(
            f"{entry.path / 'model.safetensors'}: not the weights of config.json: {error}"
        ) from error
    network = network.to(place).eval().requires_grad_(False)
    _self_test(network, entry.path, device)
    return network


def write_entry(
    path: Path,
    network: Network,
    config: Mapping[str, Any],
    card: Card,
    windows: Tensor,
    baseline_error: Tensor,
) -> None:
    """File a network, all at once or not at all.

    Parameters
    ----------
    path : Path
        Folder of the entry; replaced if it exists.
    network : Network
    config : mapping
        As in `Entry`.
    card : Card
    windows : Tensor, shape (n, L, 3), float32
    baseline_error : Tensor, shape (n,), float32
        Input of the self-test.

    Raises
    ------
    ModelError
        If it cannot be written, as on a full disk; a former entry stays as it was.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    network = network.cpu().float().eval()
    with torch.no_grad():
        answers = _answers(network, windows, baseline_error)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise ModelError(f"{path}: not written: {error}") from error
    try:
        weights = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
        # One key only: the order of several would change the sum from one writing to the next.
        save_file(weights, staging / FILES[0], {"format": "pt"})
        test = {"x": windows, "baseline_error": baseline_error, **answers}
        save_file({name: t.contiguous() for name, t in test.items()}, staging / FILES[1])
        (staging / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        (staging / "card.json").write_text(card.model_dump_json(indent=1) + "\n")
        (staging / "README.md").write_text(_readme(card))
        sums = "".join(f"{_sha256(staging / name)}  {name}\n" for name in FILES)
        (staging / SUMS).write_text(sums)
        staging.chmod(0o755)
        _put_in_place(staging, path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: not written, and nothing was changed: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _put_in_place(staging: Path, path: Path) -> None:
    """Move a whole entry to its place; the former one goes only once the new one stands."""
    former = staging.with_name(f"{staging.name}-former")
    if path.exists():
        path.rename(former)
    try:
        staging.rename(path)
    except BaseException:
        if former.exists():
            former.rename(path)
        raise
    shutil.rmtree(former, ignore_errors=True)


def _self_test(network: Network, path: Path, device: str) -> None:
    import torch

    file = path / "self_test.safetensors"
    stored = _read_tensors(file, device)
    heads = ["ln_k"] if network.lookalikes is None else ["ln_k", "ln_k_lookalikes"]
    needed = ["x", "baseline_error", *heads]
    if set(stored) != set(needed):
        raise ModelError(f"{file}: holds {sorted(stored)} instead of {', '.join(needed)}")
    with torch.no_grad():
        answers = _answers(network, stored["x"], stored["baseline_error"])
    for name in heads:
        filed, now = stored[name], answers[name]
        if not bool(((now - filed).abs() <= SELF_TEST_TOLERANCE * (1 + filed.abs())).all()):
            raise ModelError(
                f"{file}: self-test failed: {name} is {now.tolist()}, filed was {filed.tolist()}"
            )


def _answers(network: Network, x: Tensor, baseline_error: Tensor) -> dict[str, Tensor]:
    """Natural log of K of some windows, by each head of a network."""
    ln_k, s = network(x, baseline_error)
    if network.lookalikes is None:
        return {"ln_k": ln_k}
    return {"ln_k": ln_k, "ln_k_lookalikes": network.lookalikes(s)}


def _read_sums(path: Path) -> dict[str, str]:
    try:
        lines = (path / SUMS).read_text().splitlines()
    except OSError as error:
        raise ModelError(f"{path / SUMS}: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{path / SUMS}: not text: {error}") from error
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    if set(sums) != set(FILES):
        raise ModelError(f"{path / SUMS}: lists {sorted(sums)} instead of {sorted(FILES)}")
    for name in FILES:
        if not (path / name).is_file():
            raise ModelError(f"{path / name}: missing, the entry is not whole")
    return sums


def _read_card(path: Path) -> Card:
    """The format comes first: a card of another one may have other keys."""
    stored = _read_json(path / "card.json")
    if stored.get("format") not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise ModelError(
            f"{path / 'card.json'}: format {stored.get('format')}, this version reads {known}"
        )
    try:
        return Card.model_validate(stored)
    except ValidationError as error:
        raise ModelError(f"{path / 'card.json'}: {error}") from error


def _read_config(path: Path) -> dict[str, Any]:
    config = _read_json(path / "config.json")
    if set(config) != CONFIG_KEYS:
        raise ModelError(
            f"{path / 'config.json'}: has keys {sorted(config)} instead of {sorted(CONFIG_KEYS)}"
        )
    return config


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise ModelError(f"{file}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not a JSON object")
    return content


def _read_tensors(file: Path, device: str = "cpu") -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(file, device=device)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: {error}") from error
    return tensors


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _readme(card: Card) -> str:
    """The card for people; what does not fit into a table is in card.json alone."""
    sections = {
        "Inputs": card.inputs,
        "Outputs": card.outputs,
        "Evaluation": card.evaluation,
        "Training": card.training,
    }
    tables = "\n\n".join(f"## {title}\n\n{_table(part)}" for title, part in sections.items())
    tables += _posteriors(card.evaluation)
    limits = "\n".join(f"- {limit}" for limit in card.limits)
    return (
        f"---\nlicense: {card.licence.lower()}\nlibrary_name: broker-filter\n"
        f"tags: [microlensing, simulation-based-inference]\n---\n\n# {card.model_id}\n\n"
        f"{card.summary}\n\n{tables}\n\n## Limits\n\n{limits}\n\n"
        "All figures and settings: [card.json](card.json).\n"
    )


def _posteriors(evaluation: Mapping[str, Any]) -> str:
    """Errors and coverage of fit and flow side by side, where they were measured."""
    if not {"fit", "flow"} <= evaluation.keys():
        return ""
    sides = {name: evaluation[name] for name in ("fit", "flow")}
    measures = ("rmse", "median_error", "coverage68", "coverage95")
    head = [f"{measure}, {side}" for measure in measures for side in sides]
    rows = (
        (name, *(f"{side[measure][name]:.3f}" for measure in measures for side in sides.values()))
        for name in sides["fit"]["rmse"]
    )
    scalars = "\n\n".join(
        f"{name.capitalize()}: " + ", ".join(f"{key} {_cell(value)}" for key, value in numbers)
        for name, side in sides.items()
        if (numbers := [pair for pair in side.items() if not isinstance(pair[1], dict)])
    )
    return f"\n\n## Fit and flow\n\n{scalars}\n\n{markdown_table(('', *head), rows)}"


def _table(section: Mapping[str, Any]) -> str:
    cells = ((key, _cell(value)) for key, value in section.items())
    return markdown_table(("what", "figure"), [row for row in cells if row[1] is not None])


def _cell(value: object) -> str | None:
    """Scalars, lists of them, and named ones, in one line; None for anything deeper."""
    if isinstance(value, dict):
        named = [(key, None if isinstance(v, dict) else _cell(v)) for key, v in value.items()]
        if len(named) > MOST_IN_A_CELL or any(cell is None for _, cell in named):
            return None
        return "; ".join(f"{key} {cell}" for key, cell in named)
    if isinstance(value, list):
        if any(isinstance(item, dict | list) for item in value):
            return None
        return ", ".join(str(_cell(item)) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
