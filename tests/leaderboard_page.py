"""A leaderboard of many arms without a run, and a browser to look at its page with."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
from finished_runs import write_run
from stored_traces import stored

from page_bench.commands import leaderboard
from page_bench.config import PageConfig
from page_bench.records.trace import Trace

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TASKS = {
    # Full accuracy, accuracy lost at b = 0, and mean D.
    "niah_multikey_3": (0.9, 1.0, 0.04),
    "niah_multivalue": (0.8, 0.4, 0.09),
    "fwe": (0.5, 0.1, 0.11),
    "qa_1": (0.7, 0.15, 0.2),
    "vt": (0.95, 0.05, 0.15),
}
BUDGETS = (0.125, 0.25, 0.5)
EVICTORS = {"snapkv": 1.0, "h2o": 1.4}
"""By name, how much more than SnapKV each loses."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def arm(evictor: str, gate: str, budget: float, n: int = 20, **changes: Any) -> list[Trace]:
    """The traces of one arm, the same on every call."""
    made = []
    options = asdict(PageConfig(evictor).make_evictor())
    for task, (right, lost, drop) in TASKS.items():
        for doc in range(n):
            rng = random.Random(f"{task}/{doc}")
            full = rng.random() < right
            keeps = rng.random() > lost * EVICTORS.get(evictor, 1.0) * (1 - budget)
            own = drop + rng.uniform(-0.02, 0.02)
            opened = gate == "open" or (gate == "page" and own >= 0.07)
            decided = {"tau": 0.07, "tau_variant": "number"} if gate == "page" else {}
            made.append(
                stored(
                    f"page_ruler_4k_{task}",
                    doc,
                    gate=gate,
                    gate_open=opened,
                    drop=own,
                    correct=float(full and (keeps or not opened)),
                    kept_kv=budget if opened else 1.0,
                    **{
                        **decided,
                        "evictor": evictor,
                        "budget": budget,
                        "evictor_args": options,
                        "protocol": "page",
                        "chat_template": True,
                        "asked": {"max_new_tokens": 128, "stop": []},
                        "n_sink": 4,
                        "recent": 32,
                        "kv_bytes_full": 4000,
                        "kv_bytes_kept": int(4000 * budget) if opened else 4000,
                        "new_tokens": 10,
                        **changes,
                    },
                )
            )
    return made


def write_board(folder: Path) -> Path:
    """A leaderboard of 13 arms of a model and one arm of another; returns `leaderboard.csv`."""
    runs = folder / "runs"
    write_run(runs / "full", arm("snapkv", "closed", 0.25), limit=20.0)
    for evictor in EVICTORS:
        for budget in BUDGETS:
            for gate in ("open", "page"):
                name = f"{evictor}-{budget}-{gate}"
                write_run(runs / name, arm(evictor, gate, budget), limit=20.0)
    write_run(
        runs / "small",
        arm("snapkv", "closed", 0.25, model="small"),
        limit=20.0,
        model_num_parameters=135_000_000,
    )
    file = folder / "leaderboard.csv"
    assert leaderboard.run(["add", str(runs), "--file", str(file)]) == 0
    return file


class Page:
    """A page in headless Chromium, spoken to over its DevTools socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: aiohttp.ClientWebSocketResponse):
        self._loop, self._socket, self._sent = loop, socket, 0
        self.problems: list[str] = []
        """Errors of scripts and requests for anything but the page, so far."""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a DevTools command."""
        return self._loop.run_until_complete(asyncio.wait_for(self._call(method, params), 30))

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._sent += 1
        await self._socket.send_json({"id": self._sent, "method": method, "params": params})
        while True:
            told = await self._socket.receive_json()
            if told.get("id") == self._sent:
                assert "error" not in told, told
                answer: dict[str, Any] = told["result"]
                return answer
            self._note(told)

    def _note(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        if told["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        if told["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        if told["method"] == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith("file:"):
                self.problems.append(url)

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file and wait until its script has run."""
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.call("Network.enable")
        self.call("Page.navigate", url=f"{path.as_uri()}{fragment}")
        for _ in range(200):
            if self.get("document.readyState === 'complete' && location.protocol === 'file:'"):
                return
        raise AssertionError("the page did not load")

    def get(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key, as the keyboard does."""
        text = {"text": "\r"} if key == "Enter" else {}
        known = {"key": key, "code": key, "windowsVirtualKeyCode": code, **text}
        self.call("Input.dispatchKeyEvent", type="keyDown", **known)
        self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


@contextmanager
def browser(folder: Path, size: str = "1280,900") -> Iterator[Page]:
    """A page of a fresh Chromium.

    Args:
        folder: for its profile.
        size: of the window, width and height.
    """
    assert CHROMIUM is not None
    profile = folder / "profile"
    words = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", f"--window-size={size}"]
    with subprocess.Popen(
        [*words, "--remote-debugging-port=0", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        loop = asyncio.new_event_loop()
        try:
            assert process.stderr is not None
            address = next(line for line in process.stderr if "DevTools listening on" in line)
            port = address.rsplit(":", 1)[1].split("/")[0]
            yield from _pages(loop, int(port))
        finally:
            process.terminate()
            loop.close()


def _pages(loop: asyncio.AbstractEventLoop, port: int) -> Iterator[Page]:
    async def connect() -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
        session = aiohttp.ClientSession()
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            (target, *_) = [one for one in await answer.json() if one["type"] == "page"]
        return session, await session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)

    session, socket = loop.run_until_complete(connect())
    try:
        yield Page(loop, socket)
    finally:
        loop.run_until_complete(socket.close())
        loop.run_until_complete(session.close())
