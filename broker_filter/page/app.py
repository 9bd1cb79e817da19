"""The page's routes.

A request is answered in a thread of its own, with a connection of its own to the database.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from dataclasses import asdict, dataclass, field
from typing import Final
from urllib.parse import parse_qs
from uuid import UUID

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from broker_filter.alerts.verdict import VERDICTS
from broker_filter.alerts.words import in_words
from broker_filter.errors import ConfigError, PoisonMessage, StateError, TransientError
from broker_filter.observe.text import printable
from broker_filter.page import kept
from broker_filter.page.database import Database
from broker_filter.page.downloads import DOWNLOADS
from broker_filter.page.figures import figures
from broker_filter.page.guard import Guard, same_origin
from broker_filter.page.intake import Standing
from broker_filter.page.listing import COLUMNS, events, wanted
from broker_filter.page.views import ASSETS, describe, links, render
from broker_filter.types import STATES

__all__ = ["make_app"]

_log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 32 << 10
_STATUS: Final = {ConfigError: 400, TransientError: 503, StateError: 500, PoisonMessage: 500}


def make_app(database: Database, standing: Standing, password: str = "") -> Starlette:
    """Make the application.

    Parameters
    ----------
    database : Database
    standing : Standing
        Of the intake; shown as it is at each request.
    password : str
        Empty where only this machine is served.
    """
    page = _Page(database, standing)
    return Starlette(
        routes=[
            Route("/", page.list),
            Route("/healthz", lambda _: PlainTextResponse("alive\n")),
            Route("/status", page.status),
            Route("/events/{event}", page.event),
            Route("/events/{event}/figures.json", page.figures),
            Route("/events/{event}/note", page.note, methods=["POST"]),
            Route("/events/{event}/hidden", page.hidden, methods=["POST"]),
            Route("/alerts/{alert}.{ending}", page.download),
            Mount("/assets", StaticFiles(directory=ASSETS)),
        ],
        middleware=[Middleware(Guard, password=password), Middleware(GZipMiddleware)],
        exception_handlers={
            HTTPException: _http_error,
            **dict.fromkeys(_STATUS, _own_error),
        },
        max_body_size=MAX_BODY_BYTES,
    )


@dataclass(frozen=True, slots=True)
class _Page:
    """What the routes have in common.

    Parameters
    ----------
    token : str
        In every form, so that no page elsewhere can send one.
    """

    database: Database
    standing: Standing
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    def list(self, request: Request) -> Response:
        want = wanted(dict(request.query_params))
        with self.database.read() as connection:
            listed = events(connection, want)
        html = render(
            "list.html",
            want=want,
            listed=listed,
            columns=COLUMNS,
            states=STATES,
            verdicts=VERDICTS,
            standing=self.standing,
        )
        return _tagged(request, html)

    def status(self, _: Request) -> Response:
        return JSONResponse(asdict(self.standing))

    def event(self, request: Request) -> Response:
        event = _identifier(request, "event")
        with self.database.read() as connection:
            alert = kept.latest_alert(connection, event)
            rows = kept.history(connection, event)
            note, hidden = kept.marks(connection, event)
        if alert is None:
            raise HTTPException(404, "there is no such event; it may have been forgotten")
        html = render(
            "event.html",
            alert=alert,
            words=printable(in_words(alert)),
            rows=rows,
            note=note,
            hidden=hidden,
            token=self.token,
            links=links(alert),
            text=describe(alert, len(rows)),
            downloads={"avro": "Avro", "json": "JSON", "csv": "CSV", "xml": "VOEvent"},
            max_note=kept.MAX_NOTE,
        )
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})

    def figures(self, request: Request) -> Response:
        event = _identifier(request, "event")
        with self.database.read() as connection:
            alert = kept.latest_alert(connection, event)
            rows = kept.history(connection, event)
        if alert is None:
            raise HTTPException(404, "there is no such event")
        return JSONResponse(figures(alert, rows))

    def download(self, request: Request) -> Response:
        name, ending = _identifier(request, "alert"), request.path_params["ending"]
        if ending not in DOWNLOADS:
            raise HTTPException(404, f"there is no such file; there are {', '.join(DOWNLOADS)}")
        with self.database.read() as connection:
            alert = kept.alert_of(connection, name)
        if alert is None:
            raise HTTPException(404, "there is no such alert")
        kind, write = DOWNLOADS[ending]
        disposition = f'attachment; filename="{name}.{ending}"'
        return Response(write(alert), media_type=kind, headers={"Content-Disposition": disposition})

    async def note(self, request: Request) -> Response:
        form = await self._form(request)
        return await run_in_threadpool(self._mark, request, note=form.get("note", ""))

    async def hidden(self, request: Request) -> Response:
        form = await self._form(request)
        return await run_in_threadpool(self._mark, request, hidden=form.get("hidden") == "1")

    async def _form(self, request: Request) -> dict[str, str]:
        """Fields of a form of ours; HTTPException for another's."""
        found = parse_qs((await request.body()).decode(errors="replace"), max_num_fields=10)
        form = {name: values[0] for name, values in found.items()}
        ours = secrets.compare_digest(form.get("token", "").encode(), self.token.encode())
        if not ours or not same_origin(request.headers):
            raise HTTPException(403, "this form is not from this page; reload it and send again")
        return form

    def _mark(
        self, request: Request, *, note: str | None = None, hidden: bool | None = None
    ) -> Response:
        event = _identifier(request, "event")
        with self.database.write() as connection:
            if not kept.history(connection, event):
                raise HTTPException(404, "there is no such event")
            if note is not None:
                kept.set_note(connection, event, note.replace("\r\n", "\n"))
            if hidden is not None:
                kept.set_hidden(connection, event, hidden)
        return Response(status_code=303, headers={"Location": f"/events/{event}"})


def _identifier(request: Request, name: str) -> str:
    """A UUID of the path, in its usual form."""
    try:
        return str(UUID(request.path_params[name]))
    except ValueError:
        raise HTTPException(404, f"this is the name of no {name}") from None


def _tagged(request: Request, html: str) -> Response:
    """An answer that need not be sent again while it stays the same."""
    tag = f'W/"{hashlib.sha256(html.encode(errors="replace")).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(html, headers=headers)


def _http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = error.detail if isinstance(error, HTTPException) else str(error)
    html = render("error.html", status=status, said=printable(said))
    return HTMLResponse(html, status)


def _own_error(_: Request, error: Exception) -> Response:
    status = _STATUS[type(error)]
    if status >= 500:
        _log.warning("%s", printable(error))
    return HTMLResponse(render("error.html", status=status, said=printable(error)), status)
