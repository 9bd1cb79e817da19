"""The figures that a model's card takes from the parts of its evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

__all__ = ["ACCURACY", "card_figures"]

CASCADE = ("log10_k", "found", "lost", "lost_up_to_snr", "passed")
ACCURACY = ("bias", "rmse", "coverage68", "coverage95", "tarp_max_deviation")
FITTED = ("n", "rmse", "median_error", "coverage68", "coverage95", "seconds_median")


def card_figures(results: Mapping[str, Any]) -> dict[str, Any]:
    """The ``evaluation`` section of a card; parts that were not run stay out."""
    figures: dict[str, Any] = {}
    if "detection" in results:
        figures |= _detection_figures(results["detection"])
    if "calibration" in results:
        part = results["calibration"]
        rows = [{key: row[key] for key in ("k", "observed", "bound")} for row in part["k_tail"]]
        figures |= {
            "n_tail": part["n_tail"],
            "k_tail": rows,
            "mean_k_noise": part["mean_k_noise"],
            "highest_log10_k": part["highest_log10_k"][0],
        }
        figures |= {key: part[key] for key in ("recalibration",) if key in part}
    if "posteriors" in results:
        part = results["posteriors"]
        names = ("n_posterior", *ACCURACY, "median_abs_error", "r")
        figures |= {name: part[name] for name in names}
    figures |= _fit_figures(results)
    if "scale" in results:
        part = results["scale"]
        figures["scale"] = {key: part[key] for key in ("n_events", "before", "after")}
    if "certified" in results:
        figures |= {
            "tpr_certified_6_6": results["certified"]["tpr_certified_6_6"],
            "n_certified": results["certified"]["n_events"],
            "refined": {name: results["certified"]["refined"][name] for name in ACCURACY},
        }
    if "cascade" in results:
        rows = results["cascade"]["rows"]
        figures["cascade"] = [{name: row[name] for name in CASCADE} for row in rows]
    if "surveys" in results:
        figures["surveys"] = [
            {
                "survey": row["survey"],
                "n": row["at_all"]["n"],
                "before_peak": row["before_peak"]["share"],
                "at_all": row["at_all"]["share"],
            }
            for row in results["surveys"]["rows"]
        ]
    if "speed" in results:
        figures["npe_10k_ms"] = round(results["speed"]["npe"]["event_ms"])
    return figures


def _fit_figures(results: Mapping[str, Any]) -> dict[str, Any]:
    """Sections ``fit`` and ``flow`` of the card: the same figures of both, and more of the fit."""
    if "fit" not in results:
        return {}
    part = results["fit"]
    fit, flow = ({key: part[name][key] for key in FITTED} for name in ("fit", "flow"))
    fit["converged"] = part["fit"]["converged"]
    if "nested" in results:
        nested = results["nested"]
        fit |= {"lnz_within_3": nested["within_3"], "lnz_events": nested["n"]}
        fit["width_over_nested"] = nested["width_ratio_median"]
    if "reach" in results:
        reach = results["reach"]
        fit["beside_nested"] = {"n": reach["n"], "fit": reach["fit"], "nested": reach["nested"]}
    if "emcee" in results:
        fit["emcee_over_fit"] = results["emcee"]["ratio_median"]
    return {"fit": fit, "flow": flow}


def _detection_figures(part: Mapping[str, Any]) -> dict[str, Any]:
    own = part["sets"]["own"]
    found = own["detectors"]["network_zero_fp"]
    figures = {
        "n_events": own["n"],
        "n_noise": part["n_noise"],
        "tpr_zero_fp": found["all"]["share"],
        "fp_noise": part["false_alarms"]["network_zero_fp"]["false_alarms"],
        "tpr_rho_ge_5": found["rho_ge_5"]["share"],
        "tpr_at_0_8": own["detectors"]["network_0.8"]["all"]["share"],
    }
    if "rising" in part:
        efficiency = own["efficiency"]
        figures |= {
            "efficiency_by_snr": _bins(efficiency["snr"], "snr"),
            "efficiency_by_tE": _bins(efficiency["log10_tE"], "log10_tE"),
            "rising": part["rising"],
        }
    return figures


def _bins(efficiency: Mapping[str, Any], quantity: str) -> list[dict[str, Any]]:
    """What the network finds at the threshold without false alarms, one row a bin with events."""
    found = efficiency["network_zero_fp"]
    return [
        {f"{quantity}_low": low, f"{quantity}_high": high, "n": n}
        | {key: found[key][i] for key in ("share", "low68", "high68")}
        for i, ((low, high), n) in enumerate(
            zip(pairwise(efficiency["edges"]), efficiency["n"], strict=True)
        )
        if n
    ]
