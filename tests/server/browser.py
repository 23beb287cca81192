"""Chromium without a window, driven over its DevTools protocol: pages, real clicks and keys, and what the page logged and asked for."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

__all__ = ["CHROMIUM", "Page", "browser"]

HANG_S = 60  # a hang guard, not a speed limit
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--disable-sync",
          "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0", "--hide-scrollbars")  # fmt: skip
_KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowUp": (38, ""), " ": (32, " ")}


@dataclass
class Page:
    """One tab. errors: what its console and its scripts complained of; requests: every URL that it asked for."""

    socket: ClientConnection
    session: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _number: int = 0
    _answers: dict[int, dict[str, Any]] = field(default_factory=dict)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """What a DevTools command gives back."""
        self._number += 1
        number = self._number
        self.socket.send(json.dumps({"id": number, "method": method, "params": params, "sessionId": self.session}))
        while number not in self._answers:
            self._take(HANG_S)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _take(self, timeout_s: float) -> None:
        message = json.loads(self.socket.recv(timeout=timeout_s))
        if "id" in message:
            self._answers[message["id"]] = message
            return
        params = message.get("params", {})
        match message["method"]:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Network.webSocketCreated":
                self.requests.append(params["url"])
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description") or details["text"])
            case "Log.entryAdded":
                if params["entry"]["level"] in ("error", "warning"):
                    self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled":
                if params["type"] in ("error", "warning", "assert"):
                    self.errors.append(str(params["args"]))

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, (expression, result["exceptionDetails"])
        return result["result"].get("value")

    def open(self, url: str) -> None:
        """Load a page and wait until it has run."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def leave(self) -> None:
        """Go to an empty page, and forget what the last one had stored."""
        if self.run("location.href") != "about:blank":
            self.run("sessionStorage.clear()")
            self.call("Page.navigate", url="about:blank")
            self.until("location.href === 'about:blank'")

    def until(self, expression: str) -> bool:
        """Wait until an expression is true."""
        end = time.monotonic() + HANG_S
        while not self.run(f"Boolean({expression})"):
            assert time.monotonic() < end, f"never true: {expression}; the page says: {self.errors}"
            time.sleep(0.02)
        return True

    def click(self, selector: str, text: str | None = None) -> None:
        """Press the mouse where the element is (the last of those with this text), as a person does: what lies over it gets the click."""
        wanted = f".filter((one) => one.textContent.trim() === {json.dumps(text)})" if text else ""
        find = f"[...document.querySelectorAll({json.dumps(selector)})]{wanted}.at(-1)"
        self.until(f"(() => {{ const one = {find}; return one && one.checkVisibility(); }})()")
        self.run(f"{find}.scrollIntoView({{block: 'nearest'}})")
        box = self.run(f"(() => {{ const b = {find}.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})()")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="none" if kind == "mouseMoved" else "left", clickCount=1)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """One key."""
        code, text = _KEYS[key]
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def text(self, selector: str) -> str:
        """The text of the last such element; empty when there is none."""
        return str(self.run(f"[...document.querySelectorAll({json.dumps(selector)})].at(-1)?.textContent ?? ''"))

    def size(self, width: int, height: int, *, scale: float = 1, phone: bool = False) -> None:
        """The size of the window in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)

    def dark(self, on: bool) -> None:
        """What the system prefers."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def picture(self, path: Path) -> None:
        """A PNG of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with its profile in `folder`, and its one page. It can reach nothing but this machine."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost", "about:blank"]
    with (folder / "log").open("w+") as log, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log) as process:
        try:
            with connect(_address(process, folder / "log"), max_size=None, proxy=None, compression=None, ping_interval=None) as socket:
                yield _attached(socket)
        finally:
            process.kill()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + HANG_S
    while not (found := re.search(r"DevTools listening on (ws://\S+)", log.read_text(errors="replace"))):
        assert process.poll() is None and time.monotonic() < end, f"Chromium did not start: {log.read_text(errors='replace')[-2000:]}"
        time.sleep(0.05)
    return found[1]


def _attached(socket: ClientConnection) -> Page:
    """The page that the browser opened, listened to."""
    number = 1_000_000

    def ask(method: str, **params: Any) -> dict[str, Any]:
        nonlocal number
        number += 1
        socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (message := json.loads(socket.recv(timeout=HANG_S))).get("id") != number:
            pass
        result: dict[str, Any] = message["result"]
        return result

    targets = ask("Target.getTargets")["targetInfos"]
    target = next(one["targetId"] for one in targets if one["type"] == "page")
    page = Page(socket, ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
    for domain in ("Page", "Runtime", "Network", "Log"):
        page.call(f"{domain}.enable")
    page.size(1280, 800)
    return page
