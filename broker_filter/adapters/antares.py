"""ANTARES: a filter of its devkit, for ZTF and for LSST.

Properties have the names of the Rubin collaboration's microlensing filter,
``feature_microlensing_...``; the parameters are of the alert's band, all bands count for K. For ZTF
it takes ``ant_mag_corrected``, the star's magnitude, never ``ant_mag``, which is that of the
difference. History is what the locus carries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from broker_filter.adapters.evidence import Evidence, evidence, lsst_columns
from broker_filter.alerts.verdict import LENSES
from broker_filter.photometry.magnitudes import AB_ZERO_POINT

if TYPE_CHECKING:
    Base = object
else:
    try:
        from antares_devkit.models import BaseFilter as Base
    except ModuleNotFoundError:
        Base = object

__all__ = ["MicrolensingEvidence", "locus_evidence"]

PREFIX: Final = "feature_microlensing_evidence_"
TAG: Final = "microlensing_candidate"
_NUMBERS: Final = {
    "log10_k": "log10 of the Bayes factor of microlensing against a constant star",
    "log10_k_certified": "the same, an unbiased estimate; where K passed the threshold",
    "t0": "time of the peak, MJD TAI",
    "u0": "smallest distance of lens and source, Einstein radii",
    "tE": "Einstein time, days",
    "Fs": "share of the baseline flux that is lensed",
    "days_to_peak": "days from the last epoch to the peak",
}
_FIELD: Final = {"Fs": "f_s"}


class MicrolensingEvidence(Base):
    """Tags loci whose K passes the threshold, and sets K and the lens's parameters."""

    SLACK_CHANNEL = ""
    REQUIRED_LOCUS_PROPERTIES: ClassVar[list[str]] = []
    REQUIRED_TAGS: ClassVar[list[str]] = []
    REQUIRED_ALERT_PROPERTIES: ClassVar[list[str]] = []
    TRIGGERING_SURVEY = "all"
    OUTPUT_LOCUS_TAGS: ClassVar[list[dict[str, str]]] = [
        {"name": TAG, "description": "microlensing is far more probable than a constant star"}
    ]
    OUTPUT_LOCUS_PROPERTIES: ClassVar[list[dict[str, Any]]] = [
        *(
            {"name": PREFIX + name, "description": text, "type": "float"}
            for name, text in _NUMBERS.items()
        ),
        {"name": PREFIX + "verdict", "description": "what it is, in one word", "type": "str"},
    ]

    def _run(self, locus: Any) -> None:  # noqa: ANN401  a DevKitLocus
        found = locus_evidence(locus)
        if found.alerted and found.verdict in ("", *LENSES):
            locus.tag(TAG)
        known = found.known()
        for name in (*_NUMBERS, "verdict"):
            if (value := known.get(_FIELD.get(name, name))) is not None:
                locus.set_property(PREFIX + name, value)


def locus_evidence(locus: Any) -> Evidence:  # noqa: ANN401  a DevKitLocus
    """K of a locus, from the photometry of the survey that triggered."""
    records = [one.properties for one in locus.alerts]
    lsst = [
        {name.removeprefix("lsst_diaSource_"): value for name, value in one.items()}
        for one in records
        if "lsst_diaSource_scienceFlux" in one
    ]
    if lsst:
        return evidence(locus.id, *lsst_columns(lsst), survey="lsst")
    series = locus.timeseries("ztf")
    magnitude, error = (_filled(series[f"ant_{name}_corrected"]) for name in ("mag", "magerr"))
    use = np.isfinite(magnitude) & np.isfinite(error)
    return evidence(
        locus.id,
        _filled(series["ant_mjd"])[use],
        magnitude[use],
        error[use],
        [str(band) for band in np.asarray(series["ant_passband"])[use]],
        survey="ztf",
        time_system="mjd",
        zero_point=AB_ZERO_POINT,
    )


def _filled(column: Any) -> Any:  # noqa: ANN401  a column of astropy, masked or not
    plain = column.filled(np.nan) if hasattr(column, "filled") else column
    return np.asarray(plain, dtype=np.float64)
