"""ALeRCE: a step of its pipeline, behind the correction or cross-match step.

Its base class apf-base pins old versions of Kafka's client and pandas, so this class has its
methods and not its name; `step_class` makes a true ``GenericStep`` of it where apf is installed.
Messages carry the corrected light curve of the object, so K sees all its history.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from broker_filter.adapters.evidence import Evidence, evidence
from broker_filter.photometry.magnitudes import AB_ZERO_POINT

__all__ = ["MicrolensingStep", "object_evidence", "step_class"]


class MicrolensingStep:
    """Features and a class for each object, as ``schemas/lc_classification_step`` has them."""

    def pre_execute(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Drop messages without a light curve."""
        return [one for one in messages if one.get("detections")]

    def execute(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One output a message, in their order."""
        return [_output(str(one["oid"]), object_evidence(one)) for one in messages]


def object_evidence(message: Mapping[str, Any]) -> Evidence:
    """K of an object from its corrected magnitudes: the difference alone is no star's."""
    found = [one for one in message["detections"] if _usable(one)]
    return evidence(
        str(message["oid"]),
        [one["mjd"] for one in found],
        [one["mag_corr"] for one in found],
        [one["e_mag_corr"] for one in found],
        [str(one["fid"]) for one in found],
        survey="ztf",
        time_system="mjd",
        zero_point=AB_ZERO_POINT,
    )


def _usable(detection: Mapping[str, Any]) -> bool:
    """Whether a detection has a magnitude of the star itself, which nobody doubts."""
    known = None not in (detection.get("mag_corr"), detection.get("e_mag_corr"))
    return bool(known and detection.get("corrected") and not detection.get("dubious"))


def _output(oid: str, found: Evidence) -> dict[str, Any]:
    known = found.known()
    features = {f"microlensing_{k}": v for k, v in known.items() if not isinstance(v, str)}
    lensed = _probability(found.log10_k)
    probabilities = {"microlensing": lensed, "other": 1.0 - lensed}
    name = found.verdict or ("microlensing" if found.alerted else "other")
    classification = {"probabilities": probabilities, "class": name, "hierarchical": {}}
    return {"oid": oid, "features": features, "lc_classification": classification}


def _probability(log10_k: float) -> float:
    """K / (1 + K): of microlensing, were a lens and a constant star equally frequent."""
    if math.isnan(log10_k):
        return 0.0
    return 1.0 / (1.0 + math.pow(10.0, -min(max(log10_k, -300.0), 300.0)))


def step_class() -> type:
    """The step as a subclass of apf's GenericStep; needs apf."""
    from apf.core.step import GenericStep

    return type("MicrolensingStep", (MicrolensingStep, GenericStep), {})
