"""The parts of the evaluation: what each takes of the network, simulator and entry it measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_filter.errors import ConfigError
from broker_filter.inference import zoo
from broker_filter.inference.network import Network
from model_zoo.evaluate.measure.ancestors import measure_ancestors
from model_zoo.evaluate.measure.calibrate import measure_recalibration
from model_zoo.evaluate.measure.calibration import measure_calibration
from model_zoo.evaluate.measure.cascade import measure_cascade
from model_zoo.evaluate.measure.certified import measure_certified
from model_zoo.evaluate.measure.chains import measure_chains
from model_zoo.evaluate.measure.corner_tails import measure_corner_tails
from model_zoo.evaluate.measure.corners import measure_corners
from model_zoo.evaluate.measure.detection import measure_detection
from model_zoo.evaluate.measure.efficiency import measure_efficiency
from model_zoo.evaluate.measure.exact import measure_exact
from model_zoo.evaluate.measure.fits import measure_fits
from model_zoo.evaluate.measure.kept import Kept
from model_zoo.evaluate.measure.nested import measure_nested
from model_zoo.evaluate.measure.posteriors import measure_posteriors
from model_zoo.evaluate.measure.reach import measure_reach
from model_zoo.evaluate.measure.scale import measure_scale
from model_zoo.evaluate.measure.seasons import measure_seasons
from model_zoo.evaluate.measure.sharing import FULL_SHARING, QUICK_SHARING, measure_sharing
from model_zoo.evaluate.measure.speed import FULL_SPEED, QUICK_SPEED, measure_speed
from model_zoo.evaluate.measure.streams import measure_streams
from model_zoo.evaluate.measure.surveys import measure_surveys
from model_zoo.evaluate.measure.toy import FULL_TOY, QUICK_TOY, measure_toy
from model_zoo.evaluate.measure.verdicts import measure_verdicts
from model_zoo.evaluate.sets import FULL, FULL_PROOF, Proof, Sizes
from model_zoo.simulate.curves import Simulator

__all__ = ["CORE_PARTS", "PARTS", "QUICK_PARTS", "VISIT_PARTS", "WHITE_PARTS", "Subject"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: a network, its config.json, the simulator of its test sets, and sizes.

    ``folder`` is where parts of hours keep what they have.
    """

    network: Network
    config: Mapping[str, Any]
    simulator: Simulator
    sizes: Sizes
    quiet: bool = False
    proof: Proof = FULL_PROOF
    entry: zoo.Entry | None = None
    folder: Path | None = None

    def kept(self, name: str) -> Kept:
        """Stars that an earlier run of a part has measured, and a place for more."""
        path = None if self.folder is None else self.folder / f"{name}_stars.jsonl"
        return Kept(path, "" if self.entry is None else self.entry.sha256)

    @property
    def full(self) -> bool:
        """Whether sizes are those of a card, not of a quick look."""
        return self.sizes.events >= FULL.events


def _usual(part: Callable[..., dict[str, Any]]) -> Callable[[Subject], dict[str, Any]]:
    return lambda on: part(on.network, on.simulator, on.sizes, quiet=on.quiet)


def _on_path(name: str, part: Callable[..., dict[str, Any]]) -> Callable[[Subject], dict[str, Any]]:
    """A part that sends stars along the service's own path, and keeps what it has of each."""
    return lambda on: part(_filed(on), on.proof.skies, kept=on.kept(name), quiet=on.quiet)


def _calibration(on: Subject) -> dict[str, Any]:
    """With a map that mends K, where the raw one fails."""
    part = measure_calibration(on.network, on.simulator, on.sizes, quiet=on.quiet)
    if not (part["tail_holds"] and part["mean_k_holds"]):
        events, noise = 10 * on.sizes.events, on.sizes.tail // 10
        mended = measure_recalibration(on.network, on.simulator, events, noise, quiet=on.quiet)
        part["recalibration"] = mended.to_card()
    return part


def _certified(on: Subject) -> dict[str, Any]:
    return measure_certified(on.network, on.config, on.simulator, on.sizes, quiet=on.quiet)


def _fit(on: Subject) -> dict[str, Any]:
    return measure_fits(on.network, on.config, on.simulator, on.proof.fits, quiet=on.quiet)


def _nested(on: Subject) -> dict[str, Any]:
    return measure_nested(on.network, on.config, on.simulator, on.proof.nested, quiet=on.quiet)


def _reach(on: Subject) -> dict[str, Any]:
    return measure_reach(on.network, on.config, on.simulator, on.proof.reach, quiet=on.quiet)


def _emcee(on: Subject) -> dict[str, Any]:
    return measure_chains(on.network, on.config, on.simulator, on.proof.chains, quiet=on.quiet)


def _corners(on: Subject) -> dict[str, Any]:
    kept = on.kept("corners")
    return measure_corners(_filed(on), on.proof.corners, kept=kept, quiet=on.quiet)


def _seasons(on: Subject) -> dict[str, Any]:
    kept, events = on.kept("seasons"), on.proof.seasons
    return measure_seasons(_filed(on), on.simulator, events, kept=kept, quiet=on.quiet)


def _ancestors(on: Subject) -> dict[str, Any]:
    return measure_ancestors(_filed(on), on.simulator, on.sizes, quiet=on.quiet)


def _filed(on: Subject) -> zoo.Entry:
    """The entry as a service loads it; a network in training has none yet."""
    if on.entry is None:
        raise ConfigError("this part needs an entry that is filed")
    return on.entry


def _scale(on: Subject) -> dict[str, Any]:
    return measure_scale(on.network, on.config, on.simulator, on.proof.scale, quiet=on.quiet)


def _speed(on: Subject) -> dict[str, Any]:
    sizes = FULL_SPEED if on.full else QUICK_SPEED
    return measure_speed(on.network, on.simulator, on.config["encoder"], sizes, quiet=on.quiet)


def _sharing(on: Subject) -> dict[str, Any]:
    sizes = FULL_SHARING if on.full else QUICK_SHARING
    return measure_sharing(on.network, on.simulator, on.config["encoder"], sizes, quiet=on.quiet)


def _toy(on: Subject) -> dict[str, Any]:
    return measure_toy(FULL_TOY if on.full else QUICK_TOY, quiet=on.quiet)


PARTS: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "detection": _usual(measure_detection),
    "calibration": _calibration,
    "posteriors": _usual(measure_posteriors),
    "fit": _fit,
    "nested": _nested,
    "reach": _reach,
    "emcee": _emcee,
    "scale": _scale,
    "certified": _certified,
    "corners": _corners,
    "corner_tails": _on_path("corner_tails", measure_corner_tails),
    "efficiency": _on_path("efficiency", measure_efficiency),
    "verdicts": _on_path("verdicts", measure_verdicts),
    "exact": _usual(measure_exact),
    "streams": _usual(measure_streams),
    "cascade": _usual(measure_cascade),
    "ancestors": _ancestors,
    "surveys": _usual(measure_surveys),
    "seasons": _seasons,
    "speed": _speed,
    "sharing": _sharing,
    "toy": _toy,
}
"""Each part of the evaluation by name; the last two train networks of their own."""

CORE_PARTS = ("detection", "calibration", "posteriors")
"""What no card does without."""

WHITE_PARTS = ("fit", "nested", "reach", "emcee", "scale", "certified", "exact")
"""Those that integrate the likelihood of white noise with correct errors, which must be the test
set's own. In other noise the parts on the service's own path measure what fits are worth."""

VISIT_PARTS = ("surveys", "seasons")
"""Those that say something of entries for sparse surveys alone."""

LONG_PARTS = (
    *("nested", "reach", "emcee", "corners", "corner_tails", "efficiency", "verdicts", "seasons"),
    *("ancestors", "sharing", "toy"),
)
QUICK_PARTS = tuple(name for name in PARTS if name not in LONG_PARTS)
