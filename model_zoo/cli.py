"""Command line of the offline part: ``model-zoo train | evaluate``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from broker_filter.errors import BrokerFilterError, ConfigError
from broker_filter.inference import zoo
from broker_filter.observe.text import aligned_table, printable_lines
from model_zoo.evaluate.draw.sky import draw_sky
from model_zoo.evaluate.labels import LABELS, LabelledStar, read_labels, some_of_each
from model_zoo.evaluate.parts import PARTS
from model_zoo.evaluate.report.card import card_figures
from model_zoo.evaluate.report.report import machine
from model_zoo.evaluate.report.sky import write_sky_page
from model_zoo.evaluate.served import serving
from model_zoo.evaluate.sets import FULL, FULL_PROOF, QUICK, QUICK_PROOF, Proof
from model_zoo.evaluate.sky import Filters, evaluate_sky
from model_zoo.evaluate.sky_summary import read_causes, sky_table, summary
from model_zoo.evaluate.suite import add_part, evaluate, report_of
from model_zoo.training.config import load_config
from model_zoo.training.entry import file_entry, refile
from model_zoo.training.polish import polish
from model_zoo.training.train import Trainer

__all__ = ["main"]

PROVED = {
    "fits": "events whose fit is set beside the flow",
    "nested": "events whose fit is set beside nested sampling",
    "reach": "events of which fit and nested sampling have their errors compared",
    "chains": "events whose fit is set beside emcee",
    "corners": "streams of constant stars at each corner of the family of noise",
    "skies": "events in each kind of noise, stars of each kind with a verdict, and stars at each"
    " corner with noise like a lens, that go along the service's own path",
    "seasons": "events in each sparse survey that go along the same path, season after season",
    "scale": "events from which the scale of the network's K comes",
}
PRECISIONS = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, or 2 with one clear message."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (BrokerFilterError, OSError) as error:
        print(f"model-zoo: {printable_lines(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"model-zoo: interrupted; {args.go_on}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="model-zoo", description="Train and evaluate models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_train(commands)
    _add_evaluate(commands)
    return parser


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    train = commands.add_parser(
        "train",
        help="train an entry, simulating as it goes",
        description="Train an entry and file it with a card of figures measured on it.",
        epilog="example: model-zoo train model_zoo/configs/fspl-paper-1.0.0.yaml --minutes 60",
    )
    train.add_argument("config", type=Path, help="training configuration (YAML)")
    train.add_argument(
        "--minutes",
        type=float,
        help="time of training and polish, over all resumed runs; the card's figures come after",
    )
    train.add_argument("--seed", type=int, help="instead of the config's")
    train.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    train.add_argument("--precision", choices=list(PRECISIONS), default="auto")
    train.add_argument("--run-folder", type=Path, help="for checkpoints (default: runs/MODEL_ID)")
    train.add_argument("--entry", type=Path, help="folder of the entry (default: in the zoo)")
    train.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    train.add_argument("--quick", action="store_true", help="small test set for the card")
    train.add_argument("--quiet", action="store_true", help="no progress")
    train.set_defaults(run=_train, go_on="go on with --resume")


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    evaluation = commands.add_parser(
        "evaluate",
        help="measure an entry on the frozen test sets",
        description="Measure an entry on the frozen test sets: results.json, pictures, report.md.",
        epilog="example: model-zoo evaluate fspl-paper-1.0.0 --out report --quick",
    )
    evaluation.add_argument(
        "model",
        nargs="?",
        help="an entry's name, or its folder; with --sky each star by default goes through the"
        " entry that serves its survey",
    )
    evaluation.add_argument("--out", type=Path, default=Path("report"), help="folder to write to")
    evaluation.add_argument(
        "--parts", type=lambda text: text.split(","), help=f"some of {', '.join(PARTS)}"
    )
    evaluation.add_argument("--quick", action="store_true", help="small sets, under two minutes")
    evaluation.add_argument("--tail", type=int, help="noise windows for the tail of K")
    evaluation.add_argument(
        "--redraw", action="store_true", help="draw the pictures of what --out holds anew"
    )
    for name, words in PROVED.items():
        evaluation.add_argument(f"--{name}", type=int, metavar="N", help=words)
    evaluation.add_argument(
        "--update-card", action="store_true", help="put the figures into the entry's card"
    )
    evaluation.add_argument("--quiet", action="store_true", help="no progress bars")
    sky = evaluation.add_argument_group("labelled stars of the real sky, in place of the parts")
    sky.add_argument("--sky", type=Path, metavar="DIR", help="their photometry; writes sky.json")
    sky.add_argument(
        "--labels", type=Path, default=LABELS, metavar="FILE", help="their table (CSV)"
    )
    sky.add_argument(
        "--half",
        choices=["tune", "report", "all"],
        help="which of them: by default the report half of the table that is kept here, all of"
        " another one",
    )
    sky.add_argument(
        "--surveys",
        type=lambda text: text.lower().split(","),
        metavar="A,B",
        help="only of surveys whose names begin so, such as OGLE,KMT; all of them by default",
    )
    sky.add_argument("--most", type=int, metavar="N", help="stars of each class and survey")
    sky.add_argument(
        "--every-days", type=float, default=1.0, metavar="D", help="between two evaluations"
    )
    sky.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (all cores)"
    )
    go_on = "parts that are done stay in --out, name the others with --parts"
    evaluation.set_defaults(run=_evaluate, go_on=go_on)


def _train(args: argparse.Namespace) -> int:
    config = load_config(args.config)
    changes = {key: getattr(args, key) for key in ("minutes", "seed")}
    config = config.model_copy(update={k: v for k, v in changes.items() if v is not None})
    folder = args.run_folder or Path("runs") / config.model_id
    trainer = Trainer(config, folder, device=args.device, precision=PRECISIONS[args.precision])
    if args.resume:
        trainer.resume()

    def say(text: str) -> None:
        if not args.quiet:
            print(f"{config.model_id}: {text}", file=sys.stderr, flush=True)

    begun = f"goes on after step {trainer.progress.step}; began" if args.resume else "starts"
    say(f"{begun} from {trainer.origin}")
    trainer.run(quiet=args.quiet)
    say(
        f"best on the validation set: {trainer.final}; polish of up to {trainer.seconds_left:.0f} s"
    )
    if trainer.seconds_left:  # none where a run that had come to its end is resumed
        polish(trainer, seconds=trainer.seconds_left, quiet=args.quiet)
    say(
        f"filed weights on the validation set: {trainer.final}, after"
        f" {trainer.progress.seconds / 60:.1f} min; evaluation for the card"
    )
    path = args.entry or zoo.WEIGHTS / config.model_id
    sizes, report = QUICK if args.quick else FULL, folder / "report"
    card = file_entry(trainer, path, sizes, report, quiet=args.quiet)
    print(json.dumps(card.evaluation, indent=1))
    print(f"filed {path}; report: {report / 'report.md'}", file=sys.stderr)
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    if args.sky:
        return _evaluate_sky(args)
    if args.model is None:
        raise ConfigError("which entry? give its name (model-zoo evaluate NAME), or --sky DIR")
    entry = _entry(args.model)
    usual = asdict(QUICK_PROOF if args.quick else FULL_PROOF)
    proof = Proof(**{name: getattr(args, name) or usual[name] for name in PROVED})
    results = evaluate(
        entry,
        args.out,
        parts=args.parts,
        quick=args.quick,
        tail=args.tail,
        proof=proof,
        redraw=args.redraw,
        quiet=args.quiet,
    )
    if args.update_card:
        refile(entry, results)
    print(_table(results))
    print(f"report: {args.out / 'report.md'}")
    return 0


@cache
def _entry(name: str) -> zoo.Entry:
    path = Path(name)
    return zoo.verify(path if path.is_dir() else zoo.find(name))


@dataclass(frozen=True, slots=True)
class _EntryOf:
    """The entry of a star: the one that was named, or else the one that serves its survey."""

    name: str | None

    def __call__(self, star: LabelledStar) -> zoo.Entry:
        return _entry(self.name or serving(star.survey))


def _evaluate_sky(args: argparse.Namespace) -> int:
    args.go_on = "the same command goes on after the stars that are done"
    if not args.sky.is_dir():
        raise ConfigError(f"--sky: {args.sky} is no folder")
    if not args.every_days > 0 or (args.most is not None and args.most < 1):
        raise ConfigError("--every-days and --most must be above 0")
    args.half = args.half or ("report" if args.labels == LABELS else "all")
    stars = _sky_stars(args)
    if args.model is not None:
        report_of(_entry(args.model), args.out)  # another entry's is refused before hours of work
    entry_of = _EntryOf(args.model)
    records = evaluate_sky(
        Filters(args.sky, entry_of, args.every_days),
        stars,
        args.out / "sky_stars.jsonl",
        jobs=args.jobs,
        quiet=args.quiet,
    )
    found = _sky_head(args, len(stars)) | summary(records, entry_of, read_causes())
    _write_sky(args, found)
    print(sky_table(found))
    for one in found["unreadable"]:
        print(printable_lines(f"not read: {one['problem']}"), file=sys.stderr)
    print(f"written: {args.out / 'sky.json'}")
    return 0


def _sky_stars(args: argparse.Namespace) -> list[LabelledStar]:
    """The stars of the table that are asked for."""
    stars = [one for one in read_labels(args.labels) if args.half in (one.half, "all")]
    if args.surveys is not None:
        stars = [one for one in stars if one.survey.lower().startswith(tuple(args.surveys))]
    if args.most is not None:
        stars = some_of_each(stars, args.most)
    if not stars:
        raise ConfigError("--sky: no star of the table is of this --half and these --surveys")
    return stars


def _sky_head(args: argparse.Namespace, stars: int) -> dict[str, Any]:
    """What sky.json says of the run itself."""
    head: dict[str, Any] = {} if args.model is None else {"model_id": _entry(args.model).model_id}
    head |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
    head |= {"half": args.half, "of_stars": stars, "every_days": args.every_days}
    return head if args.surveys is None else head | {"surveys": args.surveys}


def _write_sky(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """sky.json, and the page of it: that of an entry's report where one was named."""
    (args.out / "sky.json").write_text(json.dumps(found, indent=1) + "\n")
    if args.model is None:
        draw_sky(found, args.out)
        write_sky_page(found, args.out)
    else:
        add_part(_entry(args.model), args.out, "sky", found)


def _table(results: Mapping[str, Any]) -> str:
    """The figures of the card that fit on a line; then budget, threshold and efficiency."""
    lines = [f"{name:20} {text}" for name, text in _lines(card_figures(results))]
    if budgets := results.get("certified", {}).get("budgets"):
        head = ("alarms a night", "stars", "log10 K >=", "network", "certified")
        rows = (
            (
                f"{row['false_alarms_per_night']:g}",
                f"{row['stars']:,.0f}",
                f"{row['threshold']:.2f}",
                f"{row['efficiency_network']:.2%}",
                f"{row['efficiency_certified']:.2%}",
            )
            for row in budgets
        )
        lines += ["", aligned_table(head, rows)]
    return "\n".join(lines)


def _lines(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, int | float):
            yield name, f"{value:,.6g}"
        elif isinstance(value, Mapping) and all(isinstance(v, float) for v in value.values()):
            yield name, ", ".join(f"{key} {v:.3f}" for key, v in value.items())


if __name__ == "__main__":
    sys.exit(main())
