"""What an event is, in one word, with a probability for each class and a sentence that says why.

Probabilities are those of Bayes' rule: marginal likelihoods of the lens and its rivals, times rates
of the classes, times what the star's own record says. Two things they cannot say decide as well:
whether the winner describes the data at all, and whether light of any kind (the smooth rival, which
follows everything) is a reason to call a single bump a variable star.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker_filter.alerts.parts import Verdict

__all__ = [
    "CLASSES",
    "LEAST_SCALE",
    "LENSES",
    "VERDICTS",
    "Findings",
    "Rates",
    "Record",
    "is_established",
    "is_quiet",
    "verdict_of",
]

LENSES: Final = ("microlensing", "anomalous-lens")
CLASSES: Final = (*LENSES, "flare", "outburst", "variable", "artefact")
LOOK_ALIKES: Final = frozenset({"flare", "outburst", "variable"})
UNCLEAR: Final = "unclear"
VERDICTS: Final = (*CLASSES, UNCLEAR)

SHARES: Final[Mapping[str, tuple[str, float]]] = {
    "lens": ("microlensing", 1.0),
    "anomalous": ("anomalous-lens", 1.0),
    "flare": ("flare", 1.0),
    "outburst": ("outburst", 1.0),
    "periodic": ("variable", 0.4),
    "smooth": ("variable", 0.4),
    "trend": ("variable", 0.1),
    "dip": ("variable", 0.1),
    "artefact": ("artefact", 0.5),
    "constant": ("artefact", 0.5),
}
"""The class of each model, and its share of the class's rate."""

SURE, SURE_OF_LENS = 0.9, 0.95
"""Probability from which on a class is the verdict, or a lens of either class: telescopes follow
those."""

REPEATED, REPEATS = 0.1, 3
"""Factor on the rates of lenses and artefacts for each earlier event, up to so many: hardly a star
is lensed twice, and wrong epochs come by chance, but flares and outbursts repeat."""

DECISIVE: Final = 1.0
"""Dex by which data must speak against the lens for a look-alike to be the verdict: rates alone do
not make one."""

ESTABLISHED: Final = 3.0
"""Dex above noise and wrong epochs from which on an event counts in the star's record."""

VARIES: Final = 2
"""Earlier events from which on a star is known to vary: no lens is the verdict on a further one."""

KNOWN: Final = 1e3
"""Factor on the rate of variables for a star that a catalogue calls one."""

SLOW_DAYS: Final = 50.0
"""Einstein time from which on variable stars rise as slowly as a lens."""

FALLEN: Final = 0.5
"""Share of a lens's light at the peak that may be left when a slow one, or one with an anomaly, is
the verdict: any slow rise, and any steep one, is that of some such lens."""

POOR_SCALE, WORST_SCALE = 1.6, 2.5
"""Factors on the errors from which on a lens does not describe the data: in units of what the best
rival needs, and at all (quiet stars need .85 to 1.63)."""

LEAST_SCALE: Final = 0.85
"""A rival that needs smaller errors than any quiet star follows the noise."""

NOTHING: Final = ("constant", "artefact")

SHAPELESS: Final = frozenset({"smooth", "trend"})
"""Models that follow a part of an event as well as a variable star."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How often windows of each class alert, relative to each other."""

    microlensing: float = 1.0
    anomalous_lens: float = 0.1
    flare: float = 3.0
    outburst: float = 3.0
    variable: float = 30.0
    artefact: float = 10.0

    def of(self, name: str) -> float:
        """Of a class by its name."""
        return float(getattr(self, name.replace("-", "_")))


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of the star beside this event.

    Parameters
    ----------
    earlier_events : int
        Of the same star and band that were more than noise.
    label : str or None
        Of a catalogue of variable stars.
    """

    earlier_events: int = 0
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """What the comparison of an event's models found.

    Parameters
    ----------
    log10_evidence : mapping of str to float
        Of each model in `SHARES` that was tried, relative to the lens's.
    scale : float
        Factor on the errors that the best lens needs.
    least_scale : float
        The same of the model that describes the data best.
    goes_below : bool
        Whether the star became much fainter than its baseline too, which no lens does.
    days_to_peak : float, days
        From the last epoch to the peak of the lens; negative once it has passed.
    t_einstein : float, days
        Of the best lens.
    light_left : float
        Share of the light at its peak that the last epoch still has, by the curve of that lens; 1
        until the peak is over.
    p_value : float
        Of the fit.
    too_long : bool
        Whether the best lens is as long as its prior allows, so that a longer one may be better.
    spare_epochs : int
        How many more epochs there are than a lens has parameters.
    left_out : int
        Epochs that were left out as wrong.
    """

    log10_evidence: Mapping[str, float]
    scale: float = 1.0
    least_scale: float = 1.0
    goes_below: bool = False
    days_to_peak: float = -math.inf
    t_einstein: float = 0.0
    light_left: float = 0.0
    p_value: float = 1.0
    too_long: bool = False
    spare_epochs: int = 1
    left_out: int = 0


def is_established(found: Findings, least: float = ESTABLISHED) -> bool:
    """Whether there was an event at all: something better than noise and wrong epochs.

    Parameters
    ----------
    found : Findings
    least : float
        Dex by which it is; no less than `ESTABLISHED`.
    """
    evidence = found.log10_evidence
    nothing = max(evidence[name] for name in NOTHING if name in evidence)
    return max(evidence.values()) - nothing >= max(least, ESTABLISHED)


def is_quiet(found: Findings) -> bool:
    """Whether nothing is so much better than noise alone."""
    evidence = found.log10_evidence
    return max(evidence.values()) - evidence["constant"] < ESTABLISHED


def verdict_of(found: Findings, record: Record, rates: Rates) -> Verdict:
    """Decide what an event is.

    Parameters
    ----------
    found : Findings
    record : Record
    rates : Rates
    """
    models = _model_probabilities(found, record, rates)
    classes = dict.fromkeys(CLASSES, 0.0)
    for name, probability in models.items():
        classes[SHARES[name][0]] += probability
    # Whether a lens is anomalous is no doubt that it is one.
    alike = {name: LENSES if name in LENSES else (name,) for name in CLASSES}
    together = {name: sum(classes[other] for other in alike[name]) for name in CLASSES}
    ranked = sorted(CLASSES, key=lambda name: (-together[name], -classes[name]))
    first = ranked[0]
    second = next(name for name in ranked if name not in alike[first])
    model = max(
        (name for name in models if SHARES[name][0] == first), key=lambda name: models[name]
    )
    doubt = _doubt(found, record, together[first], first, second, model)
    reason = doubt or _reason(found, record, first, model)
    if found.left_out:
        reason += f"; left out as wrong: {found.left_out} of the epochs"
    return Verdict(UNCLEAR if doubt else first, classes, reason)


def _model_probabilities(found: Findings, record: Record, rates: Rates) -> dict[str, float]:
    log10 = {}
    for name, evidence in found.log10_evidence.items():
        kind, share = SHARES[name]
        log10[name] = evidence + math.log10(share * rates.of(kind) * _by_record(kind, record))
    top = max(log10.values())
    weight = {name: 10 ** max(value - top, -300.0) for name, value in log10.items()}
    total = sum(weight.values())
    return {name: value / total for name, value in weight.items()}


def _by_record(kind: str, record: Record) -> float:
    """Factor on a class's rate from what is known of the star."""
    if kind not in LOOK_ALIKES:
        return float(REPEATED ** min(record.earlier_events, REPEATS))
    return KNOWN if kind == "variable" and record.label else 1.0


def _doubt(
    found: Findings, record: Record, probability: float, first: str, second: str, model: str
) -> str:
    """Why there is no verdict and what would settle it; empty where there is one."""
    if found.spare_epochs <= 0 and first != "artefact":
        return (
            f"{first} or anything else: a lens has no fewer parameters than there are epochs, since"
            " each source has its own f_s and baseline; more epochs settle it"
        )
    if probability < (SURE_OF_LENS if first in LENSES else SURE):
        name = "a lens" if first in LENSES else first
        return f"{name} ({probability:.0%}) or {second}: {_settles(found, first, second)}"
    against = found.log10_evidence[model]
    if first in LOOK_ALIKES and against < DECISIVE:
        return f"the data do not tell {first} from microlensing: {_settles(found, first, second)}"
    if first in LOOK_ALIKES and found.too_long and not record.label:
        return (
            f"{first}, or a lens longer than the model allows for: a fit of longer ones settles it"
        )
    if first in LENSES and found.too_long:
        return (
            f"{first} by its shape, but as long as the model allows for; epochs until the star is"
            " quiet again settle it"
        )
    slow_or_anomalous = first == "anomalous-lens" or found.t_einstein > SLOW_DAYS
    if first in LENSES and slow_or_anomalous and found.light_left > FALLEN:
        return f"{first} by its shape so far; epochs when the light has fallen by half settle it"
    if first in LENSES and record.earlier_events >= VARIES:
        return (
            f"{first} by its shape, but hardly a star is lensed twice, and this one had"
            f" {record.earlier_events} events before; what they were settles it"
        )
    best = max(found.least_scale, LEAST_SCALE)
    if first == "microlensing" and found.scale > min(POOR_SCALE * best, WORST_SCALE):
        return (
            f"no model describes the data: the best lens needs errors {found.scale:.1f} times as"
            " large; look at the residuals"
        )
    known_to_vary = found.goes_below or record.label or record.earlier_events >= VARIES
    if model in SHAPELESS and not known_to_vary:
        if found.days_to_peak > 0:
            return f"only a part of a bump is seen: {_settles(found, first, second)}"
        return (
            "a bump that no single lens describes: a binary lens or a variable star; the star's"
            " years before, or a model of two lenses, settle it"
        )
    return ""


def _settles(found: Findings, first: str, second: str) -> str:
    """What data would tell two classes apart."""
    pair = {first, second}
    if found.days_to_peak > 0:
        return f"the peak is {found.days_to_peak:.1f} d away; epochs beyond it settle it"
    if "artefact" in pair:
        return "images of these nights, or another site, settle it"
    if "flare" in pair:
        return "a second band at the peak settles it: flares are blue"
    if "outburst" in pair:
        return "a second band, or a spectrum, while it is bright settles it"
    if "variable" in pair:
        return "the star's years before settle it, or epochs after the event"
    return "epochs around the peak settle it"


def _reason(found: Findings, record: Record, verdict: str, model: str) -> str:
    """Why the verdict is what it is."""
    others = {
        name: value for name, value in found.log10_evidence.items() if SHARES[name][0] != verdict
    }
    rival = max(others, key=lambda name: others[name]) if others else ""
    lead = found.log10_evidence[model] - others[rival] if others else 0.0
    data = "all other data" if found.left_out else "all data"
    words = {
        "lens": f"one lens describes {data}",
        "anomalous": f"one lens describes {data} but a short stretch",
        "periodic": "it repeats with a period",
        "smooth": "it varies smoothly" + (", below its baseline too" if found.goes_below else ""),
        "constant": "noise alone describes the data",
        "artefact": "single wrong epochs or a wrong night describe the data",
    }
    said = words.get(model, f"the shape of {_name(model)} describes the data")
    known = f"; catalogued as {record.label}" if record.label else ""
    again = (
        f"; earlier events of the star: {record.earlier_events}" if record.earlier_events else ""
    )
    beside = f", 10^{lead:.1f} times better than {_name(rival)}" if others else ""
    if lead < 0:
        beside = f", 10^{-lead:.1f} times less well than {_name(rival)}, but is the more usual"
    return f"{said}{beside}{known}{again}"


def _name(model: str) -> str:
    names = {
        "lens": "one lens",
        "anomalous": "an anomalous lens",
        "periodic": "a period",
        "smooth": "smooth variation",
        "constant": "noise",
        "artefact": "wrong epochs",
        "outburst": "an outburst",
    }
    return names.get(model, f"a {model}")
