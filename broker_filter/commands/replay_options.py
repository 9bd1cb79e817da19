"""The options of ``broker-filter replay``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from broker_filter.commands.lightcurve_options import add_lightcurve_options
from broker_filter.commands.options import add_client_config, number

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``broker-filter replay``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Publish an archive to a topic, in the order in which its epochs happened.\n"
        "Read are\n"
        "  packets of surveys and brokers: Avro, JSON, JSON lines, gzip around them, tar and\n"
        "    tar.gz of them, Parquet;\n"
        "  light curves: OGLE phot.dat, KMTNet pySIS, NASA Exoplanet Archive, the Roman data\n"
        "    challenge, tables with named columns (ZTF, ATLAS, ASAS-SN, Gaia, ...), zip of them;\n"
        "  a range of a topic: kafka://HOST:PORT/TOPIC?offsets=FIRST:LAST or ?time=FROM/TO (UTC),\n"
        "    and &partitions=0,3 for some partitions only."
    )
    parser.epilog = (
        "examples:\n"
        "  broker-filter replay kmt_2019_blg_2073/ --star KMT-2019-BLG-2073 --topic photometry\n"
        "  broker-filter replay ztf_2026*.tar.gz --topic packets --speed 60 --resume position\n"
        "  broker-filter replay 'kafka://kafka:9092/a?time=2026-03-10/2026-03-11' --topic again\n"
        "\n"
        "Packets are published byte for byte. Files are merged by time; a message that stands too\n"
        "far out of order in its file comes late, and is counted. With --loop the times of\n"
        "photometry messages move on by whole days; packets of surveys keep theirs, so that a\n"
        "filter knows their epochs already.\n"
        "\n"
        "It exits 0; 1 where there was nothing to publish; 2 for wrong settings or an unreachable\n"
        "broker; 3 where something could not be read (all else is published)."
    )
    _add_sources(parser.add_argument_group("what to read"))
    _add_pace(parser.add_argument_group("what to publish, and how fast"))
    _add_injection(parser.add_argument_group("synthetic events, to measure what a filter finds"))


def _add_sources(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="files, folders, kafka://HOST:PORT/TOPIC"
    )
    star = group.add_mutually_exclusive_group()
    star.add_argument("--star", help="star id of all files (default: as in the file, or its name)")
    star.add_argument(
        "--star-from-folder", action="store_true", help="star id = name of the folder"
    )
    add_lightcurve_options(group)
    group.add_argument(
        "--quantity",
        choices=("mag", "flux", "delta-flux"),
        help="what light curves measure, where no header says it, or a header names several",
    )
    group.add_argument(
        "--ignore-column",
        action="append",
        default=[],
        metavar="NAME",
        help="of light curves, not to be read (may be given several times)",
    )
    group.add_argument(
        "--source-config",
        type=Path,
        metavar="FILE",
        help="librdkafka properties for kafka:// sources, one key=value a line (for SASL and TLS)",
    )
    group.add_argument(
        "--schema-folder",
        type=Path,
        metavar="DIR",
        help="schemas MAJOR/MINOR/*.avsc of packets that carry only a number (wire format)",
    )
    group.add_argument(
        "--schema-registry", metavar="URL", help="a schema registry that knows such schemas"
    )
    group.add_argument(
        "--schema-registry-login-file",
        type=Path,
        metavar="FILE",
        help="holds user:password for it, if it needs a login",
    )


def _add_pace(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--bootstrap-servers",
        default="localhost:9092",
        metavar="HOST:PORT",
        help="default: %(default)s",
    )
    group.add_argument("--topic", required=True)
    add_client_config(group, " of the broker that is published to")
    group.add_argument(
        "--speed",
        type=_speed,
        default=math.inf,
        metavar="X",
        help="times real time, or max (default: max)",
    )
    group.add_argument(
        "--rate", type=_speed, default=math.inf, metavar="N", help="messages a second at most"
    )
    group.add_argument(
        "--start", type=number(-1e7, 1e7), default=-math.inf, metavar="MJD", help="TAI, inclusive"
    )
    group.add_argument(
        "--stop", type=number(-1e7, 1e7), default=math.inf, metavar="MJD", help="TAI, exclusive"
    )
    group.add_argument(
        "--loop", type=_turns, default=1, metavar="N", help="replay N times, or forever"
    )
    group.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="keep the position in FILE, and go on there after an interrupt",
    )
    group.add_argument("--epochs-per-message", type=int, default=1, metavar="N", help="at most")
    group.add_argument(
        "--baseline",
        choices=("history", "median"),
        default="history",
        help="leave the reference flux open, or give the file's median (looks ahead)",
    )
    group.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_injection(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--inject",
        type=Path,
        metavar="CONFIG",
        help="magnify a share of the stars, by the YAML file CONFIG: share, seed, ranges of t0, "
        "u0, tE, rho and f_s (low, high, log); packets, for which t0 is needed, go out as "
        "photometry messages where they are of such a star",
    )
    group.add_argument(
        "--truth",
        type=Path,
        metavar="FILE",
        help="what was injected, for broker-filter recovery (default: CONFIG with .truth.jsonl)",
    )


def _speed(text: str) -> float:
    value = math.inf if text == "max" else float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not larger than 0, nor max")
    return value


def _turns(text: str) -> int | None:
    if text == "forever":
        return None
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more, nor forever")
    return value
