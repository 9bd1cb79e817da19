"""The page's routes: what they show, whom they refuse, and that no name of a star is markup."""

from __future__ import annotations

import io
import json
import uuid
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import fastavro
import numpy as np
import pytest
from starlette.testclient import TestClient

from broker_filter.alerts.parts import Rival, Verdict
from broker_filter.client.read import read_alert
from broker_filter.errors import ConfigError, TransientError
from broker_filter.page import database, kept
from broker_filter.page.app import MAX_BODY_BYTES, make_app
from broker_filter.page.database import Database
from broker_filter.page.figures import figures
from broker_filter.page.guard import check_bind, is_loopback
from broker_filter.page.intake import Standing
from tests import build

ALERT = build.alert()
EVENT = f"/events/{ALERT.event_id}"
FILE = f"/alerts/{ALERT.alert_id}"
HOSTILE = "<script>alert(1)</script>\"'\x1b\u202e"
HERE = "http://127.0.0.1:8765"
PASSWORD = "correct horse battery"  # noqa: S105


@pytest.fixture
def base(tmp_path: Path) -> Database:
    base = Database(tmp_path / "page.sqlite")
    with base.write() as connection:
        kept.keep(connection, ALERT)
    return base


def client(base: Database, password: str = "", standing: Standing | None = None) -> TestClient:
    return TestClient(make_app(base, standing or Standing("topic t"), password), HERE)


@pytest.fixture
def page(base: Database) -> TestClient:
    return client(base)


def token(page: TestClient) -> str:
    return page.get(EVENT).text.partition('name="token" value="')[2].partition('"')[0]


# What is shown


def test_the_list_is_a_table_that_says_how_it_is_sorted(page: TestClient) -> None:
    answer = page.get("/", params={"sort": "t0", "down": "0"})
    assert answer.status_code == 200
    assert answer.text.count('aria-sort="ascending"') == 1
    assert f'<a href="{EVENT}">{ALERT.star_id}</a>' in answer.text
    assert "20.92" in answer.text


def test_a_list_that_has_not_changed_is_not_sent_again(page: TestClient) -> None:
    tag = page.get("/").headers["etag"]
    again = page.get("/", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_an_event_is_shown_in_words_beside_its_figures(page: TestClient) -> None:
    text = page.get(EVENT).text
    assert "peaked 2.7 d ago (+-0.1) at F146 = 20.6" in text
    assert "43 epochs of 2 source(s)" in text
    assert "simbad.cds.unistra.fr/simbad/sim-coo?Coord=268.750000+-29.250000" in text


def test_figures_hold_what_the_alert_holds(base: Database, page: TestClient) -> None:
    found = page.get(f"{EVENT}/figures.json").json()
    sources = found["lightCurve"]["sources"]
    assert sum(len(one["time"]) for one in sources) == ALERT.n_epochs
    assert len(found["corner"]["pairs"]) == 10
    assert set("".join(found["corner"]["pairs"].values())) == set("012")
    assert found["history"]["log10_k"] == [ALERT.log10_k]
    flare = Rival("flare", 18.0, None, {}, np.ones(ALERT.n_epochs, np.float32))
    with base.read() as connection:
        rows = kept.history(connection, str(ALERT.event_id))
    drawn = figures(replace(ALERT, rivals=(flare,)), rows)["lightCurve"]["rivals"]
    assert [len(one["flux"]) for one in drawn] == [29]
    bare = replace(ALERT, fit=None, network=None, source=None, sources=(), baseline_flux=None)
    assert json.dumps(figures(bare, rows), allow_nan=False)


def test_downloads_are_read_by_their_readers(page: TestClient, tmp_path: Path) -> None:
    avro = page.get(f"{FILE}.avro").content
    (record,) = fastavro.reader(io.BytesIO(avro))
    assert record["alertId"] == str(ALERT.alert_id)
    (tmp_path / "one.avro").write_bytes(avro)
    assert read_alert(tmp_path / "one.avro").log10_k == ALERT.log10_k
    assert len(page.get(f"{FILE}.json").json()["lightCurve"]["flux"]) == ALERT.n_epochs
    rows = page.get(f"{FILE}.csv").text.splitlines()
    assert rows[0] == "mjd_tai,flux,sigma,band,source"
    assert len(rows) == ALERT.n_epochs + 1
    packet = page.get(f"{FILE}.xml")
    assert ET.fromstring(packet.content).tag.endswith("VOEvent")  # noqa: S314  our own
    assert "attachment" in packet.headers["content-disposition"]


def test_trouble_of_the_intake_is_said(base: Database) -> None:
    standing = Standing("topic t", trouble="no Kafka broker answers", broken=2)
    page = client(base, standing=standing)
    assert "No new alerts: no Kafka broker answers" in page.get("/").text
    assert page.get("/status").json()["broken"] == 2
    assert page.get("/healthz").text == "alive\n"


@pytest.mark.parametrize("path", ["list", "event"])
def test_a_hostile_name_is_text(base: Database, path: str) -> None:
    verdict = Verdict("flare", {HOSTILE: 0.9}, HOSTILE)
    alert = replace(ALERT, star_id=HOSTILE, survey=HOSTILE, band=HOSTILE, verdict=verdict)
    alert = replace(alert, alert_id=uuid.UUID(int=4), event_id=uuid.uuid4(), model_id=HOSTILE)
    with base.write() as connection:
        kept.keep(connection, alert)
        kept.set_note(connection, str(alert.event_id), "</textarea>" + HOSTILE)
    text = client(base).get("/" if path == "list" else f"/events/{alert.event_id}").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>alert" not in text
    assert "</textarea><" not in text
    if path == "list":
        assert "\x1b" not in text
        assert "\u202e" not in text


# Notes


def test_a_note_and_hiding_are_kept(base: Database, page: TestClient) -> None:
    form = {"token": token(page), "note": "look <tonight>", "hidden": "1"}
    for name in ("note", "hidden"):
        answer = page.post(f"{EVENT}/{name}", data=form, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, EVENT)
    assert "look &lt;tonight&gt;</textarea>" in page.get(EVENT).text
    assert EVENT not in page.get("/").text
    assert EVENT in page.get("/?hidden=1").text
    page.post(f"{EVENT}/hidden", data=form | {"hidden": "0"})
    with base.read() as connection:
        assert kept.marks(connection, str(ALERT.event_id)) == ("look <tonight>", False)


@pytest.mark.parametrize(
    ("given", "headers"),
    [
        ("wrong", {}),
        ("", {}),
        ("right", {"Origin": "http://evil.example"}),
        ("right", {"Sec-Fetch-Site": "cross-site"}),
    ],
)
def test_a_form_from_elsewhere_changes_nothing(
    base: Database, page: TestClient, given: str, headers: dict[str, str]
) -> None:
    form = {"token": token(page) if given == "right" else given, "note": "x"}
    assert page.post(f"{EVENT}/note", data=form, headers=headers).status_code == 403
    with base.read() as connection:
        assert kept.marks(connection, str(ALERT.event_id)) == ("", False)


def test_a_long_form_is_refused_and_a_long_note_cut(base: Database, page: TestClient) -> None:
    form = {"token": token(page), "note": "x" * MAX_BODY_BYTES}
    assert page.post(f"{EVENT}/note", data=form).status_code == 413
    page.post(f"{EVENT}/note", data=form | {"note": "x" * 5000})
    with base.read() as connection:
        assert len(kept.marks(connection, str(ALERT.event_id))[0]) == kept.MAX_NOTE


# What cannot be


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?page=0", 400),
        ("/?min_k=nan", 400),
        ("/?sort=%3Cscript%3E", 400),
        (f"/events/{uuid.UUID(int=4)}", 404),
        ("/events/1", 404),
        ("/alerts/..%2f..%2fetc%2fpasswd.avro", 404),
        (f"/alerts/{uuid.UUID(int=4)}.avro", 404),
        (f"{FILE}.exe", 404),
        ("/assets/../app.py", 404),
        ("/assets/%2e%2e/app.py", 404),
        ("/nothing", 404),
    ],
)
def test_a_wrong_address_has_a_page_that_says_so(page: TestClient, path: str, status: int) -> None:
    answer = page.get(path)
    assert answer.status_code == status
    assert f"<h1>{status}</h1>" in answer.text
    assert "<script>" not in answer.text


def test_a_locked_database_is_said(
    base: Database, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = {"token": token(page), "note": "x"}
    monkeypatch.setattr(database, "BUSY_S", 0.01)
    with base.write():
        answer = page.post(f"{EVENT}/note", data=form)
        assert page.get("/").status_code == 200
    assert answer.status_code == 503
    assert "is locked" in answer.text


# Who may see it


def test_every_answer_forbids_scripts_inside_pages(page: TestClient) -> None:
    for path in ("/", EVENT, "/assets/style.css", "/nothing"):
        policy = page.get(path).headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
    for path in ("/", EVENT):
        text = page.get(path).text
        assert not any(mark in text for mark in (" style=", " onclick=", "<style", "javascript:"))
        assert "https://" not in text.partition("</head>")[0]


def test_without_a_password_only_this_machine_is_answered(base: Database) -> None:
    app = make_app(base, Standing("t"))
    for host in ("http://127.0.0.1:1", "http://localhost", "http://[::1]:8765"):
        assert TestClient(app, host).get("/").status_code == 200
    for host in ("http://evil.example", "http://127.0.0.1.evil.example"):
        assert TestClient(app, host).get("/").status_code == 421


def test_with_a_password_it_is_asked_for(base: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_filter.page.guard.REFUSED_S", 0.0)
    page = client(base, PASSWORD)
    refused = page.get("/")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")
    assert page.get("/", auth=("any", PASSWORD + "x")).status_code == 401
    assert page.get("/", headers={"Authorization": "Basic !!"}).status_code == 401
    assert page.get("/", auth=("any", PASSWORD)).status_code == 200
    assert page.get("/", headers={"Authorization": f"Bearer {PASSWORD}"}).status_code == 200
    assert page.get("/healthz").status_code == 200
    assert page.get("/assets/style.css").status_code == 401


def test_others_are_served_with_a_password_alone() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.9.9.9", "::1", "[::1]")] == [True] * 4
    check_bind("0.0.0.0", PASSWORD)  # noqa: S104
    for host in ("0.0.0.0", "::", "page.example", ""):  # noqa: S104
        with pytest.raises(ConfigError, match="PASSWORD"):
            check_bind(host, "")
    with pytest.raises(ConfigError, match="12 characters"):
        check_bind("127.0.0.1", "short")


def test_a_transient_failure_has_its_own_status(
    page: TestClient, base: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise TransientError("is locked")

    monkeypatch.setattr(kept, "history", locked)
    assert page.get(EVENT).status_code == 503
    assert base.path.exists()
