"""Figures of the page with many events: ``python -m tests.page.measure`` writes ``figures.json``.

Times are those of whole requests over HTTP on this machine, those of the processor with the
client's part; the browser's are from the start of the navigation, with nothing in its cache.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from broker_filter.page.app import make_app
from broker_filter.page.database import Database
from broker_filter.page.intake import Standing
from broker_filter.page.server import PageServer
from tests.page.chromium import Chromium
from tests.page.night import fill, name_of

FIGURES = Path(__file__).with_name("figures.json")
AXE = Path(__file__).parents[2] / "build" / "axe.min.js"
EVENTS, ALERTS, TIMES = 10_000, 2, 21
LISTS = {
    "list": "",
    "list sorted by K": "?sort=certified",
    "list filtered by text": "?text=00999",
    "last page": "?page=200",
}
DRAWN = "document.documentElement.dataset.drawn === 'yes'"
PAINTED = """performance.getEntriesByType('navigation')[0].loadEventEnd > 0
    && performance.getEntriesByName('first-contentful-paint').length"""
TIMING = """(() => { const page = performance.getEntriesByType('navigation')[0];
    const paint = performance.getEntriesByName('first-contentful-paint')[0];
    const files = performance.getEntriesByType('resource');
    return [paint.startTime, page.loadEventEnd,
        [page, ...files].reduce((sum, one) => sum + one.transferSize, 0), 1 + files.length]; })()"""


def measure() -> dict[str, Any]:
    """Fill a database, and time it."""
    with tempfile.TemporaryDirectory() as folder:
        base = Database(Path(folder) / "page.sqlite")
        began = time.perf_counter()
        fill(base, EVENTS, ALERTS)
        filled = time.perf_counter() - began
        event = f"events/{name_of('event', 0)}"
        asked = LISTS | {"event": event, "figures of an event": f"{event}/figures.json"}
        with PageServer(make_app(base, Standing("a night")), "127.0.0.1", 0) as server:
            answers = {name: _answer(server.address + path) for name, path in asked.items()}
            browser = _browser(Path(folder) / "chromium", server.address, event)
        return {
            "load": round(os.getloadavg()[0], 1),
            "cores": os.cpu_count(),
            "events": EVENTS,
            "alerts": EVENTS * ALERTS,
            "alerts_kept_per_s": round(EVENTS * ALERTS / filled),
            "database_mb": round(base.path.stat().st_size / 1e6, 1),
            "answers": answers,
            "browser": browser,
        }


def _answer(url: str) -> dict[str, float]:
    """Time of a request by clock and of the processor, and its bytes as they are and packed."""
    spent, worked = [], []
    for _ in range(TIMES):
        began, busy = time.perf_counter(), time.process_time()
        with urllib.request.urlopen(url, timeout=10) as found:  # noqa: S310  our own address
            body = found.read()
        spent.append(1000 * (time.perf_counter() - began))
        worked.append(1000 * (time.process_time() - busy))
    return {
        "median_ms": round(statistics.median(spent), 1),
        "worst_ms": round(max(spent), 1),
        "processor_ms": round(statistics.median(worked), 1),
        "bytes": len(body),
        "bytes_packed": len(gzip.compress(body)),
    }


def _browser(profile: Path, address: str, event: str) -> dict[str, Any]:
    """What a browser needs for a page, and what axe says of it."""
    found = {}
    with Chromium(profile) as chromium:
        for name, path, ready in (("list", "", "true"), ("event", event, DRAWN)):
            chromium.open(address + path, f"{PAINTED} && {ready}")
            paint, load, size, files = chromium.evaluate(TIMING)
            chromium.evaluate(f"{AXE.read_text()};0")
            axe = "axe.run().then((one) => [one.passes.length, one.violations.length])"
            passes, violations = chromium.evaluate(axe)
            found[name] = {
                "first_paint_ms": round(paint),
                "load_ms": round(load),
                "bytes": size,
                "files": files,
                "axe_passes": passes,
                "axe_violations": violations,
            }
    return found


def main() -> None:
    """Measure, and write the figures."""
    FIGURES.write_text(json.dumps(measure(), indent=1) + "\n")
    print(FIGURES.read_text())


if __name__ == "__main__":
    main()
