"""An injection run into real light curves: ``python -m tests.bench.bench_recovery``.

The OGLE-II and KMTNet files go through an embedded broker and the whole filter, with microlensing
injected into a share of the stars; prints what was found, and writes truth, alerts, summary and
figure to ``build/recovery``. Known events and variables are among the untouched stars, so their
alerts are saved apart by the archive that they are of.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

from broker_filter.alerts.codec import to_json_dict
from broker_filter.commands import replay as replay_command
from broker_filter.commands import replay_options
from broker_filter.commands.recovery import format_report
from broker_filter.config import AlertSettings, Model, Settings
from broker_filter.kafka.sink import Sink
from broker_filter.observe.metrics import Metrics
from broker_filter.recovery.efficiency import report
from broker_filter.recovery.files import read_alerts, read_truth
from broker_filter.recovery.plot import plot_recovery
from broker_filter.service.assembly import open_entry
from broker_filter.service.rehearsal import rehearse
from tests.bench.__main__ import now, processor
from tests.integration.harness import light_curve_settings, version

TEST_DATA = Path(__file__).parents[3] / "shared" / "data"
SOURCES = (
    "photometry/ogle2/ogle2_events_shared.zip",
    "photometry/ogle2/ogle2_variables_shared.zip",
    "photometry/kmt_2019_blg_2073",
    "photometry/mulensmodel/KB180003",
)
CONFIG = """
share: {share}
seed: 1
u0: {{low: 0, high: 1}}
tE: {{low: 0.3, high: 30, log: true}}
rho: {{low: 0.001, high: 1, log: true}}
f_s: {{low: 0.1, high: 1}}
window_days: {days}
"""


def main() -> None:
    """Inject, filter, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=0.5, help="of the stars")
    parser.add_argument("--model", default=Model().id, help="zoo entry (default: the service's)")
    parser.add_argument("--data", type=Path, default=TEST_DATA)
    parser.add_argument("--out", type=Path, default=Path("build/recovery"))
    args = parser.parse_args()
    sources = [args.data / name for name in SOURCES]
    if missing := [str(path) for path in sources if not path.exists()]:
        sys.exit(f"no real light curves at {', '.join(missing)}: give --data")
    args.out.mkdir(parents=True, exist_ok=True)

    def settings(address: str) -> Settings:
        # Small alerts: the embedded broker keeps some megabytes of a partition, and drops the rest.
        chosen = {"model": Model(id=args.model), "alert": AlertSettings(posterior_samples=50)}
        return light_curve_settings(address).model_copy(update=chosen)

    entry = open_entry(settings("127.0.0.1:0"))
    inject = args.out / "inject.yaml"
    inject.write_text(CONFIG.format(share=args.share, days=entry.window_days))

    def publish(sink: Sink) -> None:
        replay = argparse.ArgumentParser()
        replay_options.add_arguments(replay)
        options = ["--topic", "photometry", "--baseline", "median", "--inject", str(inject)]
        replay_command.publish_archive(replay.parse_args([*map(str, sources), *options]), sink)

    alerts = rehearse(settings, entry, publish, Metrics(), partitions=1)
    saved = args.out / "alerts.jsonl"
    saved.write_text("".join(json.dumps(to_json_dict(alert)) + "\n" for alert in alerts))
    truth = read_truth(args.out / "inject.truth.jsonl")
    found = report(truth, read_alerts(str(saved)))
    new = [str(alert.star_id) for alert in alerts if alert.state == "new"]
    of = archive_of(sources)
    untouched = Counter(of.get(star, "other") for star in new if star not in truth.events)
    about = {"machine": processor(), "date": now(), "code": version(), "share": args.share}
    about["model"] = args.model
    summary = {**about, "new alerts of untouched stars": untouched, "report": found}
    (args.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    plot_recovery(found, args.out / "recovery.png")
    print(format_report(found))
    print("new alerts of untouched stars:", *(f"{n} of {name}" for name, n in untouched.items()))


def archive_of(sources: list[Path]) -> dict[str, str]:
    """Name of the archive that each star is of, for zips whose files are named by star."""
    zips = [source for source in sources if source.suffix == ".zip"]
    return {Path(name).stem: source.stem for source in zips for name in ZipFile(source).namelist()}


if __name__ == "__main__":
    main()
