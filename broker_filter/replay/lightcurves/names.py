"""The names that archives give to their columns, and what such a column holds.

Known are the names of IRSA and ALeRCE (ZTF), ASAS-SN, ATLAS, Gaia, KMTNet, OGLE, MOA, SkyPortal,
AAVSO, CRTS, SNAD, lightkurve (Kepler, TESS), LSST and VizieR. A name is compared in lower case with
``_`` for all that is no letter or digit, and between the words of ``camelCase``.
"""

from __future__ import annotations

import re
from typing import Final, Literal

__all__ = [
    "FILTER_NUMBERS",
    "Quantity",
    "Role",
    "band_in",
    "is_error",
    "is_row_id",
    "looks_like_error",
    "may_part",
    "nanojansky",
    "quantity_of",
    "role_of",
    "snake",
]

Quantity = Literal["mag", "flux", "delta_flux", "diff_mag"]
Role = Literal["band", "star", "id", "source", "flags", "limit", "ra", "dec", "sign", "zero_point"]

FILTER_NUMBERS: Final = {"1": "g", "2": "r", "3": "i"}
"""Bands of ZTF's column ``fid``."""

_NAME: Final = r"(_?(id|name|code|no|num))?"
_ROLES: Final[dict[Role, str]] = {
    "band": rf"(band|bandpass|filt|filter|passband|photband|phot_filter){_NAME}|filtercode|fid",
    "star": (
        rf"(star|object|obj|target|tic|kic|epic|kepler|ztf|dia_?object|event){_NAME}"
        r"|(gaia_?)?source_?id|gaia_?id|master_?id|designation"
    ),
    "id": r"id|oid|name",
    "source": (
        rf"(source|site|tel|telescope|cam|camera|inst|instr|instrument|detector|ccd|chip|field)"
        rf"{_NAME}|observatory|obs_?code|observer(_?code)?|facility|station|amp|amplifier|rcid|qid"
        r"|quadrant|sector|quarter|campaign|survey|mission|author|tid|sid"
    ),
    "flags": (
        r"([a-z0-9]+_)*flags?(_[a-z0-9]+)*|catflags|qflag|([a-z]+_)*quality|qual|grade|dq|bit_?mask"
        r"|infobits(_?sci)?|mask(ed)?|(is_?)?(bad|good|ok|clean|saturated|rejected|accepted|dubious)"
        r"|rejected_by_[a-z]+|use|used"
    ),
    "limit": (
        r"(is_?)?(upper_?)?lim(it)?s?(_?flag)?|(is_?)?ul|up_?lim|non_?det(ection)?|fainter_?than"
        r"|(is_?)?det(ected|ection)?"
    ),
    "ra": (
        r"ra(_?(deg|degrees|j2000|icrs|hours?))?|raj|alpha(_?(deg|j2000))?|right_ascension|obj_?ra"
    ),
    "dec": (
        r"de(c|cl)?(_?(deg|degrees|j2000|icrs))?|delta(_?(deg|j2000))?|declination|obj_?dec|decj2000"
    ),
    "sign": r"is_?diff_?pos",
    "zero_point": r"zp|zp_?diff|zero_?point|mag_?zp",
}  # fmt: skip

_OF_VALUE: Final = (
    "(relative|rel|calibrated|cal|corrected|corr|psf|aperture|aper|ap|auto|instrumental|inst"
    "|apparent|app|mean|total|tot)"
)
_MAG: Final = rf"{_OF_VALUE}?_?mag(nitude)?s?(_?{_OF_VALUE})*"
_BAND_MAG: Final = r"([ugrizyvbjhk])_?mag|mag_?([ugrizyvbjhk])"
_FLUX: Final = (
    rf"(sap|pdcsap|kspsap|norm(ali[sz]ed)?|raw|detrended|sci(ence)?|{_OF_VALUE})?_?flux"
    rf"(_?{_OF_VALUE})*|pdcsap|sap|counts?"
)
_DELTA_FLUX: Final = r"(psf_?|force)?(delta|diff|difference|diffim)_?flux|d_?flux|forcediffimflux"
_JANSKY: Final = re.compile(r"(.*?)_?(n|nano|u|micro|m|milli|)_?(jy|jansky)")
_UNITS: Final = {"n": 1.0, "nano": 1.0, "u": 1e3, "micro": 1e3, "m": 1e6, "milli": 1e6, "": 1e9}

_PARTING: Final = {
    "the band": frozenset({"band", "filter", "filt", "passband", "bandpass"}),
    "the instrument": frozenset(
        {"telescope", "tel", "instrument", "inst", "site", "camera", "cam", "observatory"}
        | {"detector", "ccd", "chip", "station"}
    ),
    "limits": frozenset({"upper", "limit", "limits", "upperlimit", "nondetection"}),
    "flags": frozenset({"bad", "good", "reject", "rejected", "saturated"}),
}
"""Words by which a column of another name may be recognised, and what it may hold."""

_GREEK: Final = {0xB5: "u", 0x3BC: "u", 0x394: "delta", 0x3B4: "delta", 0x3C3: "sigma"}
_PREFIX: Final = re.compile(r"(?:err(?:or)?|sigma|sig|unc(?:ertainty)?|std|e|d)_?(.*)")
_SUFFIX: Final = re.compile(r"(.*?)_?(?:errs?|errors?|unc|uncert|uncertainty|sigma|sig|std|_e)")
_ERROR: Final = r"e|errs?|errors?|sigma|unc|uncert|uncertainty|std"
_ERROR_WORDS: Final = frozenset(_ERROR.replace("errs?", "err|errs").split("|"))
_EXPOSURES: Final = frozenset(
    {"exp", "exposure", "visit", "frame", "image", "obs", "observation", "night", "row", "cadence"}
    | {"detection", "cand", "alert", "transit", "solution", "program", "group"}
)


def snake(name: str) -> str:
    """Write the name of a column as all names are compared: ``MagErr`` and ``mag-err`` alike."""
    name = name.translate(_GREEK)
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])(?!Jy)", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def role_of(name: str) -> Role | None:
    """What a column beside time, value and error holds; None where its name is not known."""
    return next((role for role, names in _ROLES.items() if re.fullmatch(names, name)), None)


def quantity_of(name: str) -> Quantity | None:
    """Whether a column holds a magnitude, a flux or a difference flux.

    `m` is a magnitude and `f` a flux only where its error stands beside it, which the caller finds.
    """
    base = _base(name)
    for quantity, names in (
        ("delta_flux", _DELTA_FLUX),
        ("mag", rf"{_MAG}|{_BAND_MAG}|m"),
        ("flux", _FLUX),
    ):
        if re.fullmatch(names, base):
            return quantity  # type: ignore[return-value]
    return "flux" if not base and name else None


def nanojansky(name: str) -> float | None:
    """Nanojansky in the unit that a name ends with, as in ``flux_ujy``; None without a unit."""
    found = _JANSKY.fullmatch(name)
    return _UNITS[found[2]] if found else None


def _base(name: str) -> str:
    """The name without a unit."""
    found = _JANSKY.fullmatch(name)
    return found[1] if found else name


def is_error(name: str, value: str) -> int:
    """How surely a column holds the error of another: 3 by its own name, 2 by its kind, 1 any."""
    if re.fullmatch(_ERROR, name):
        return 1
    kind = "flux" if quantity_of(value) != "mag" else "mag"
    bare = re.sub(r"_?(mag(nitude)?|flux)_?", "_", _base(value)).strip("_")
    own = {one.replace("_", "") for one in (value, _base(value), bare) if one}
    common = {"mag": {"mag", "magnitude", "m"}, "flux": {"flux", "f"}}[kind]
    if name == "mage" and value == "mag":
        return 3
    for pattern in (_PREFIX, _SUFFIX):
        for text in (name, _base(name)):
            found = pattern.fullmatch(text)
            rest = found[1].replace("_", "") if found else None
            if rest in own:
                return 3
            if rest in common:
                return 2
    return 0


def looks_like_error(name: str) -> bool:
    """Whether a column may hold errors, whatever of."""
    return bool(_ERROR_WORDS.intersection(name.split("_"))) or bool(
        re.fullmatch(r"(mag|flux|m|f|sigma)[a-z]*(err|unc|sig)|(sigma|err)(mag|flux)?[a-z]*", name)
    )


def may_part(name: str) -> str:
    """What a column whose name is not known may hold that parts rows; empty for nothing."""
    words = set(name.split("_"))
    return next((what for what, known in _PARTING.items() if known & words), "")


def is_row_id(name: str) -> bool:
    """Whether a column that ends in ``_id`` numbers rows or exposures, not stars."""
    return bool(_EXPOSURES.intersection(name.split("_")))


def band_in(name: str) -> str | None:
    """The band that the name of a column of magnitudes holds, as ``Vmag`` and ``mag_g``."""
    found = re.fullmatch(r"([ugrizyUBVRIJHK])_?[mM]ag|[mM]ag_?([ugrizyUBVRIJHK])", name.strip())
    return (found[1] or found[2]) if found else None
