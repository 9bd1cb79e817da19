"""A headless Chromium, driven through a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import pytest

ANSWER_S = 30.0


class Chromium:
    """One browser with one tab; the test is skipped where Debian's chromium is not installed."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("chromium")
        if program is None:
            pytest.skip("chromium is not installed")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        self._left, self._last = b"", 0

        def hand_over() -> None:  # the browser reads from 3 and writes to 4
            reads, writes = os.dup(to_read), os.dup(to_write)
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        self._process = subprocess.Popen(
            [
                *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-dev-shm-usage", "--disable-background-networking"),
                *("--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"),
            ],
            preexec_fn=hand_over,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._write)
        os.close(self._read)

    def look(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Set the window's size, and the colours that its owner prefers."""
        self._tab(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._tab("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str, until: str = "true") -> None:
        """Go to a page; wait until it has loaded and an expression of JavaScript is true there."""
        self._tab("Page.navigate", url=url)
        here = f"location.href === {json.dumps(url)} && document.readyState === 'complete'"
        self.wait(f"{here} && ({until})")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + ANSWER_S
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; a promise is waited for."""
        answer = self._tab(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write the whole page as PNG."""
        data = self._tab("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _tab(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, self._session, **parameters)

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._next())
            if answer.get("id") == self._last:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def _next(self) -> bytes:
        while b"\0" not in self._left:
            more = os.read(self._read, 1 << 16)
            assert more, "the browser has gone"
            self._left += more
        message, _, self._left = self._left.partition(b"\0")
        return message
