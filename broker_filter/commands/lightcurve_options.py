"""Options of the commands that read files of light curves."""

from __future__ import annotations

import argparse

from broker_filter.commands.options import number
from broker_filter.photometry.magnitudes import AB_ZERO_POINT
from broker_filter.photometry.times import TIME_SYSTEMS

__all__ = ["add_lightcurve_options"]


def add_lightcurve_options(parser: argparse._ActionsContainer) -> None:
    """Add what a file of a light curve may leave open: band, survey, time system, zero point."""
    parser.add_argument("--band", help="band of all files (default: as in the file, or its name)")
    parser.add_argument("--survey", default="archive", help="of light curves; default: %(default)s")
    parser.add_argument("--time-system", choices=TIME_SYSTEMS, help="default: recognised")
    parser.add_argument(
        "--zero-point",
        type=number(-100, 100),
        default=AB_ZERO_POINT,
        metavar="MAG",
        help="magnitude of 1 nJy (default: %(default)s, AB)",
    )
