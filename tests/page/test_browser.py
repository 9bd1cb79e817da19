"""The page in Chromium: light and dark, on a phone, by keyboard, and by the rules of axe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_filter.page import kept
from broker_filter.page.app import make_app
from broker_filter.page.database import Database
from broker_filter.page.intake import Standing
from broker_filter.page.server import PageServer
from tests import build
from tests.page.chromium import Chromium
from tests.page.night import fill, name_of

AXE = Path(__file__).parents[2] / "build" / "axe.min.js"
DRAWN = "document.documentElement.dataset.drawn === 'yes'"
TICKS = "[...document.querySelectorAll('#light-curve text')].map((one) => one.textContent).join()"
PATHS = """[...document.querySelectorAll('figure svg')].map(
    (one) => one.querySelectorAll('path').length)"""
PRESS = """document.querySelector('#light-curve .plot').dispatchEvent(
    new KeyboardEvent('keydown', {key: '%s'}))"""
RULES = """axe.run().then((found) => JSON.stringify(found.violations.map(
    (one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200))])))"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    base = Database(tmp_path_factory.mktemp("page") / "page.sqlite")
    fill(base, 9, 3)
    return base


@pytest.fixture(scope="module")
def address(database: Database) -> Iterator[str]:
    with PageServer(make_app(database, Standing("a night")), "127.0.0.1", 0) as server:
        yield server.address


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


def event(address: str, i: int = 0) -> str:
    return f"{address}events/{name_of('event', i)}"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
def test_pages_fit_their_window_and_break_no_rule_of_axe(
    browser: Chromium, address: str, width: int, dark: bool
) -> None:
    browser.look(width, 800, dark=dark)
    for url, ready in ((address, "true"), (event(address), DRAWN)):
        browser.open(url, ready)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        if AXE.exists():  # make page-tools brings it
            browser.evaluate(f"{AXE.read_text()};0")
            assert json.loads(browser.evaluate(RULES)) == []


def test_all_three_figures_are_drawn(browser: Chromium, address: str) -> None:
    browser.look()
    browser.open(event(address), DRAWN)
    assert min(browser.evaluate(PATHS)) > 5
    assert browser.evaluate("document.querySelectorAll('#light-curve .rival').length") == 1
    browser.evaluate("document.querySelectorAll('#light-curve input')[3].click()")
    assert browser.evaluate("document.querySelectorAll('#light-curve .rival').length") == 0


def test_the_light_curve_is_zoomed_by_button_and_by_key(browser: Chromium, address: str) -> None:
    browser.look()
    browser.open(event(address), DRAWN)
    whole = browser.evaluate(TICKS)
    browser.evaluate("document.querySelector('[data-do=in]').click()")
    nearer = browser.evaluate(TICKS)
    browser.evaluate(PRESS % "ArrowRight")
    later = browser.evaluate(TICKS)
    browser.evaluate(PRESS % "0")
    assert len({whole, nearer, later}) == 3
    assert browser.evaluate(TICKS) == whole


def test_a_hostile_name_runs_nothing(browser: Chromium, address: str) -> None:
    for url, ready in ((address, "true"), (event(address, 1), DRAWN)):
        browser.open(url, ready)
        assert browser.evaluate("document.title") != "taken"
        assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0


def test_a_script_inside_a_page_would_not_run(browser: Chromium, address: str) -> None:
    browser.open(address)
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        " {textContent: 'document.title = \"taken\"'}))"
    )
    assert browser.evaluate("document.title") != "taken"


def test_a_new_event_comes_into_an_open_list(
    browser: Chromium, address: str, database: Database
) -> None:
    browser.open(address)
    with database.write() as connection:
        new = {"alert_id": name_of("late"), "event_id": name_of("late event")}
        kept.keep(connection, build.alert(**new, star_id="latecomer"))
    browser.wait("document.querySelector('tbody').textContent.includes('latecomer')")
    assert browser.evaluate("document.getElementById('news').textContent").startswith("1 new")


def test_a_note_is_kept_through_the_form(browser: Chromium, address: str) -> None:
    url = event(address, 2)
    browser.open(url, DRAWN)
    browser.evaluate("document.getElementById('note').value = 'look tonight'")
    browser.evaluate(
        "document.querySelector('form[action$=note]').requestSubmit(); window.old = true"
    )
    browser.wait("!window.old && document.getElementById('note')?.value === 'look tonight'")
    assert browser.evaluate("location.href") == url
