"""Fink, filter for Rubin: alerts whose K says microlensing.

To submit, copy the text below ``DESCRIPTION`` into
``fink_filters/rubin/livestream/filter_microlensing_evidence/filter.py``. It reads the columns that
the science module `broker_filter.adapters.fink` writes; nothing but pandas is needed.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

__all__ = ["DESCRIPTION", "HBASE_SUPPORT", "microlensing_evidence"]

DESCRIPTION = (
    "Select alerts with a Bayes factor of 1e5 and more for microlensing, not in the Solar System"
)
HBASE_SUPPORT = True
MIN_LOG10_K = 5.0
REFUSED = ("flare", "outburst", "variable", "artefact")


def microlensing_evidence(
    microlensing_log10_k: pd.Series[Any],
    microlensing_verdict: pd.Series[Any],
    is_sso: pd.Series[Any],
) -> pd.Series[Any]:
    """Select alerts that are likely to be microlensing.

    Parameters
    ----------
    microlensing_log10_k : pd.Series
        log10 of the Bayes factor, ``microlensing.log10_k``; NaN where there is none.
    microlensing_verdict : pd.Series
        What the event is in one word, ``microlensing.verdict``; empty where nobody said.
    is_sso : pd.Series
        Whether it is an object of the Solar System.

    Returns
    -------
    out : pd.Series of booleans
    """
    likely = microlensing_log10_k.fillna(-99.0) >= MIN_LOG10_K
    return likely & ~microlensing_verdict.isin(REFUSED) & ~is_sso.fillna(False).astype(bool)
