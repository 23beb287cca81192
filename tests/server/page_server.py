"""The application on a thread of the test's process, for a page in a browser, and a script that reads the page's map of blocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from browser import Page
from fake_engine import FakeEngine
from processes import HANG_S, until

from llmx.config import EngineConfig, ServerConfig
from llmx_server import create_app

__all__ = ["CELLS", "served"]

# Counts the cells of the map by the colour that their middle has.
CELLS = """(() => {
  const canvas = document.querySelector('#kv-map'), style = getComputedStyle(canvas);
  const pen = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const { size, columns, cells } = canvas.dataset, scale = canvas.width / canvas.clientWidth, counts = {};
  const rgb = (text) => { pen.fillStyle = text.trim(); return pen.fillStyle; };
  const names = Object.fromEntries(['held', 'cached', 'free'].map((name) => [rgb(style.getPropertyValue('--' + name)), name]));
  for (let at = 0; at < cells; at += 1) {
    const x = ((at % columns) * size + (size - 1) / 2) * scale, y = (Math.floor(at / columns) * size + (size - 1) / 2) * scale;
    const colour = '#' + [...pen.getImageData(x, y, 1, 1).data].slice(0, 3).map((part) => part.toString(16).padStart(2, '0')).join('');
    counts[names[colour] || colour] = (counts[names[colour] || colour] || 0) + 1;
  }
  return counts;
})()"""


@contextmanager
def served(page: Page, engine: FakeEngine, **server: Any) -> Iterator[str]:
    """The application on a thread of this process; the page has left it when it ends."""
    options: dict[str, Any] = {"tool_parser": "hermes", "reasoning_parser": "qwen3", **server}
    app = create_app(engine, EngineConfig(server=ServerConfig(**options)))  # type: ignore[arg-type]
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        until(lambda: running.started)
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    finally:
        page.leave()
        running.should_exit = True
        thread.join(HANG_S)
