"""The page at / in a real browser: real clicks and keys, on an engine that a test controls and on a whole server.

Needs Chromium (Debian and Ubuntu: apt-get install chromium).
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from browser import CHROMIUM, Page, browser
from fake_engine import FakeEngine
from page_server import CELLS, served
from processes import Server, gauges, serve, until
from tests.cases.echo import install

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian, Ubuntu: apt-get install chromium)")

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'
LOOK = '[{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]'
IDLE = "!document.querySelector('.writing') && document.querySelector('.turn.assistant .figures')?.textContent"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture
def page(tab: Page) -> Iterator[Page]:
    """The tab, with nothing remembered. At the end: nothing was complained of, no other host was asked."""
    tab.errors.clear()
    tab.requests.clear()
    tab.size(1280, 800)
    tab.dark(False)
    yield tab
    tab.leave()
    assert tab.errors == []
    assert {urlsplit(url).hostname for url in tab.requests} <= {"127.0.0.1"}, tab.requests


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(delay_s=0.001)
    engine.info.max_model_len = 100_000
    return engine


def ready(page: Page, url: str) -> None:
    page.open(f"{url}/")
    page.until("document.querySelector('#model').options.length && document.querySelector('#state').dataset.state === 'ready'")


def say(page: Page, text: str) -> None:
    page.click("#input")
    page.type(text)
    page.press("Enter")


def test_text_grows_before_the_end_and_figures_follow(page: Page, engine: FakeEngine) -> None:
    engine.answer, engine.delay_s = lambda ids: "word " * 60, 0.005
    with served(page, engine) as url:
        ready(page, url)
        page.run("window.sizes = []; new MutationObserver(() => sizes.push(document.querySelector('.writing .text')?.textContent.length || 0))"
                 ".observe(document.querySelector('#log'), { childList: true, subtree: true, characterData: true })")  # fmt: skip
        say(page, "hello")
        assert page.until("document.querySelector('#stop-answer').checkVisibility() && !document.querySelector('#send').checkVisibility()")
        page.until(IDLE)
        sizes = [size for size in page.run("sizes") if size]
        assert len(set(sizes)) > 5 and sizes == sorted(sizes) and sizes[0] < 150
        assert page.text(".turn.assistant .text").strip() == ("word " * 60).strip()
        figures = page.text(".turn.assistant .figures")
        assert "301 tokens · " in figures and " tokens/s · first after " in figures and "prompt 23, 4 cached" in figures
        assert page.run("document.querySelector('#send').checkVisibility()") and not engine.aborted
        assert page.run("document.querySelector('#input').value") == ""


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop_ends_the_answer_and_keeps_what_was_said(page: Page, engine: FakeEngine, how: str) -> None:
    engine.answer, engine.delay_s = lambda ids: "word " * 5000, 0.002
    with served(page, engine) as url:
        ready(page, url)
        say(page, "hello")
        page.until("document.querySelector('.writing .text')?.textContent.length > 10")
        page.click("#stop-answer") if how == "button" else page.press("Escape")
        page.until(IDLE)
        until(lambda: not engine.running)
        assert engine.aborted == engine.started_ids and engine.counts.generation_tokens < 20_000
        assert "stopped" in page.text(".turn.assistant .figures") and "tokens" in page.text(".turn.assistant .figures")
        kept = page.text(".turn.assistant .text")
        assert kept.startswith("word word")
        page.open(f"{url}/")  # a reload keeps the conversation of this tab
        page.until(IDLE)
        assert page.text(".turn.assistant .text") == kept


def test_regenerate_edit_and_what_the_model_is_sent(page: Page, engine: FakeEngine) -> None:
    prompts: list[str] = []

    def answer(ids: list[int]) -> str:
        prompts.append(bytes(ids).decode())
        return f"answer {len(prompts)}"

    engine.answer = answer
    with served(page, engine) as url:
        ready(page, url)
        page.click("#toggle-settings")
        page.click("#system")
        page.type("Be brief.")
        page.click("#temperature")
        page.type("0.25")
        page.click("#seed")
        page.type("7")
        page.click("#stop")
        page.type("END")
        say(page, "one")
        page.until(IDLE)
        say(page, "two")
        page.until("document.querySelectorAll('.turn.assistant').length === 2 && " + IDLE)
        page.click(".turn.assistant button", "Regenerate")
        page.until("document.querySelectorAll('.turn.assistant').length === 2 && document.querySelector('#log').textContent.includes('answer 3')")
        page.until(IDLE)
        page.click("#input")
        page.press("ArrowUp")  # edits the last message
        page.until("document.activeElement.getAttribute('aria-label') === 'Edit your message'")
        page.type(" again")
        page.click(".edit button", "Send")
        page.until("document.querySelector('#log').textContent.includes('answer 4')")
        page.until(IDLE)
        begin = "system: Be brief.\nuser: one\nassistant: answer 1\n"
        assert prompts == [
            "system: Be brief.\nuser: one\nassistant: ",
            f"{begin}user: two\nassistant: ",
            f"{begin}user: two\nassistant: ",
            f"{begin}user: two again\nassistant: ",
        ]
        assert {(params.temperature, params.seed, params.stop) for params in engine.params} == {(0.25, 7, ("END",))}
        assert page.run("document.querySelectorAll('.turn.user .edit-button').length") == 1
        page.click("#new-chat")
        assert page.run("document.querySelectorAll('.turn').length") == 0 and page.text(".empty h2") == "Ask something"


def test_what_a_model_writes_is_never_run_or_loaded(page: Page, engine: FakeEngine) -> None:
    evil = "\n\n".join([
        "<script>window.ran = 1</script>", "<img src=x onerror='window.ran = 2'>", "<img src=https://elsewhere.example/a.png>",
        "[a](javascript:window.ran=3) [b](data:text/html,<script>window.ran=4</script>) ![c](https://elsewhere.example/b.png)",
        "```html\n<script>window.ran = 5</script>\n```", "| a | b |\n|---|---|\n| <svg/onload=window.ran=6> | `<b>x</b>` |",
        "# <iframe src=javascript:window.ran=7>", "- **<style>*{display:none}</style>**", "[ok](https://elsewhere.example/ 'x') <https://elsewhere.example>",
    ])  # fmt: skip
    engine.answer, engine.delay_s, engine.chunk = lambda ids: f"<think>{evil}</think>{evil}", 0, 7
    with served(page, engine) as url:
        ready(page, url)
        say(page, "<b onclick=window.ran=8>hi</b>")
        page.until(IDLE)
        page.click(".turn.user .said")
        assert page.run("window.ran") is None
        assert page.run("document.querySelectorAll('#log :is(script, img, iframe, svg, style, object, b)').length") == 0
        links = page.run("[...document.querySelectorAll('#log a')].map((one) => [one.href, one.rel, one.target])")
        assert links and all(href.startswith("https://elsewhere.example/") and "noopener" in rel and target == "_blank" for href, rel, target in links)
        assert "<script>window.ran = 5</script>" in page.text("#log figure code") and "<svg/onload=window.ran=6>" in page.text("#log td:first-child")
        assert "<script>window.ran = 1</script>" in page.text(".reasoning .said")
        with pytest.raises(AssertionError, match="TrustedHTML"):
            page.run("document.body.innerHTML = '<p>x</p>'")  # the policy holds also for the page's own code
        with pytest.raises(AssertionError, match="TrustedScript"):
            page.run("document.body.setAttribute('onclick', 'window.ran = 9')")
        assert page.run("window.ran") is None
        refused = [error for error in page.errors if "Content Security Policy" in error or "This document requires 'Trusted" in error]
        assert refused and refused == page.errors
        page.errors.clear()


def test_markdown(page: Page, engine: FakeEngine) -> None:
    engine.answer = lambda ids: (
        "# Title\n\nSome **bold**, *soft*, `code` and snake_case_name, 2 * 3 * 4.\nA second line\n\n1. one\n\n2. two\n   - inner\n3. three\n\n"
        "```python\nx = 1\n\n\ny = '**'\n```\n> said\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\nend https://a.example/b."
    )
    with served(page, engine) as url:
        ready(page, url)
        say(page, "x")
        page.until(IDLE)
        shape = page.run("[...document.querySelector('.turn.assistant .text').children].map((one) => one.tagName)")
        assert shape == ["H3", "P", "OL", "FIGURE", "BLOCKQUOTE", "DIV", "HR", "P"]
        assert page.run("[...document.querySelectorAll('.text :is(strong, em, p code)')].map((one) => one.textContent)") == ["bold", "soft", "code"]
        assert page.run("[...document.querySelectorAll('.text > ol > li')].map((one) => one.firstChild.textContent)") == ["one", "two", "three"]
        assert page.text(".text ol ul li") == "inner" and page.text(".text figure code") == "x = 1\n\n\ny = '**'"
        assert "snake_case_name, 2 * 3 * 4." in page.text(".turn.assistant .text > p:first-of-type")
        assert page.run("document.querySelector('.text p:last-child a').href") == "https://a.example/b"


def test_reasoning_and_tool_calls(page: Page, engine: FakeEngine) -> None:
    prompts: list[str] = []

    def answer(ids: list[int]) -> str:
        prompts.append(bytes(ids).decode())
        return f"<think>First look.</think>Looking.\n{CALL}" if len(prompts) == 1 else "It is 42."

    engine.answer = answer
    with served(page, engine) as url:
        ready(page, url)
        page.click("#toggle-settings")
        page.click("#tools")
        page.type(LOOK)
        say(page, "what is x?")
        page.until(IDLE)
        assert page.text(".reasoning .said") == "First look." and "Reasoning" in page.text(".reasoning summary")
        assert not page.run("document.querySelector('.reasoning').open")
        page.click(".reasoning summary")
        assert page.run("document.querySelector('.reasoning').open")
        assert page.text(".call b") == "look" and '"at": "x"' in page.text(".call pre") and page.text(".turn.assistant .text") == "Looking."
        page.click(".call .result textarea")
        page.type("42")
        page.click(".call .result button")
        page.until("document.querySelector('#log').textContent.includes('It is 42.')")
        assert "tool: 42" in prompts[1] and "First look." not in prompts[1]
        page.click("#toggle-settings")


def test_errors_are_shown_and_can_be_tried_again(page: Page, engine: FakeEngine) -> None:
    engine.fail_at = 2
    with served(page, engine) as url:
        ready(page, url)
        say(page, "hello")
        page.until("document.querySelector('.turn.failed')")
        assert "signal 9" in page.text(".turn.failed .said")
        engine.fail_at = None
        page.click(".turn.failed button", "Try again")
        page.until("document.querySelector('#log').textContent.includes('hello world')")
        page.until("!document.querySelector('.turn.failed') && " + IDLE)
        page.click("#toggle-settings")
        page.click("#tools")
        page.type("[{")
        say(page, "hello")
        page.until("document.querySelector('.turn.failed')")
        assert "not valid JSON" in page.text(".turn.failed .said")


def test_a_key_is_asked_for_and_kept_for_this_tab(page: Page, engine: FakeEngine) -> None:
    with served(page, engine, api_keys=("right",)) as url:
        page.open(f"{url}/")
        page.until("document.activeElement.id === 'api-key' && document.querySelector('#key-hint').textContent.includes('asks for an API key')")
        page.type("wrong")
        page.press("Enter")
        page.until("document.querySelector('#key-hint').textContent.includes('does not know this key')")
        assert page.run("document.querySelector('#model').options.length") == 0
        page.run("document.querySelector('#api-key').select()")
        page.type("right")
        page.press("Enter")
        page.until("document.querySelector('#model').options.length === 2")
        page.run("document.querySelector('#model').value = 'alias/with.dots'; document.querySelector('#model').dispatchEvent(new Event('change'))")
        say(page, "hello")
        page.until(IDLE)
        assert page.text(".turn.assistant .text") == "hello world"
        assert page.run("Object.keys(localStorage).length + document.cookie.length") == 0
        assert not [asked for asked in page.requests if "right" in asked]  # a key is never part of an address
        page.open(f"{url}/")
        page.until("document.querySelector('#model').value === 'alias/with.dots'")
        expected = [error for error in page.errors if "401" in error]
        assert expected and expected == page.errors  # the browser's own lines about the refusals
        page.errors.clear()


@pytest.mark.parametrize("blocks", [64, 20_000])
def test_the_block_map_is_what_metrics_says(page: Page, engine: FakeEngine, blocks: int) -> None:
    counts, many = engine.counts, blocks // 64
    counts.kv_blocks_total, counts.kv_blocks_used, counts.kv_blocks_cached = blocks, 11 * many, 7 * many
    counts.kv_map = [(2, 4 * many), (0, 20 * many), (1, 7 * many), (2, 7 * many), (0, blocks - 38 * many)]
    with served(page, engine) as url:
        ready(page, url)
        page.until("document.querySelector('#kv-free').textContent !== '–'")
        told = gauges(url)
        legend = {name: int(page.text(f"#kv-{name}").replace(",", "")) for name in ("held", "cached", "free")}
        assert legend == {"held": told["llmx:kv_blocks_held"], "cached": told["llmx:kv_blocks_cached"], "free": blocks - 18 * many}
        cells = page.run(CELLS)
        if blocks == 64:
            assert cells == legend
        else:
            per_cell = int(page.run("document.querySelector('#kv-map').dataset.perCell"))
            assert per_cell > 1 and page.text("#kv-scale") == f"a cell is {per_cell} blocks"
            assert all(abs(cells[name] * per_cell - legend[name]) <= 4 * per_cell for name in legend)
        assert page.run("document.querySelector('#kv-map').getBoundingClientRect().height") <= 240


def test_dark_mode_and_a_phone(page: Page, engine: FakeEngine) -> None:
    engine.counts.kv_map = [(0, 64)]
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0)"
    with served(page, engine) as url:
        ready(page, url)
        assert page.run(ground) > 600
        page.dark(True)
        assert page.run(ground) < 150
        page.until("document.querySelector('#kv-free').textContent !== '–'")
        page.until(f"{CELLS}.free === 64")  # drawn anew in the dark colours
        page.size(390, 844, phone=True)
        page.open(f"{url}/")
        page.until("document.querySelector('#model').options.length")
        assert page.run("document.documentElement.scrollWidth") == 390
        outside = "[...document.querySelectorAll('.bar > *:not(.sr), .composer')].filter((one) => one.getBoundingClientRect().right > 390).length"
        assert page.run(outside) == 0
        assert not page.run("document.querySelector('#engine').checkVisibility()")
        page.click("#toggle-engine")
        assert page.run("document.querySelector('#engine').getBoundingClientRect().width") == 390
        page.click("#toggle-settings")
        assert not page.run("document.querySelector('#engine').checkVisibility()")
        page.click("#toggle-settings")
        page.click("#input")
        page.type("hello")
        page.click("#send")
        page.until(IDLE)
        assert page.text(".turn.assistant .text") == "hello world"


def test_all_by_keyboard(page: Page, engine: FakeEngine) -> None:
    with served(page, engine) as url:
        ready(page, url)
        assert page.run("document.activeElement.id") == "input"  # one can write at once
        page.type("a")
        page.press("Enter", shift=True)
        assert page.run("document.querySelector('#input').value") == "a\n" and not engine.started_ids
        page.press("Enter")
        page.until(IDLE)
        page.run("document.activeElement.blur()")
        seen: list[str] = []
        for _ in range(40):
            page.press("Tab")
            if page.run("document.activeElement === document.body"):
                continue
            name, style = page.run(
                "[document.activeElement.id || document.activeElement.textContent.trim(), getComputedStyle(document.activeElement).outlineStyle]"
            )
            assert style != "none" or name == "input", name  # the focus is seen; the composer's frame shows its own
            if name in seen:
                break
            seen.append(name)
        assert {"model", "new-chat", "toggle-settings", "toggle-engine", "log", "Edit", "Copy", "Regenerate", "input", "send"} <= set(seen)
        names = page.run("[...document.querySelectorAll('button, input, select, textarea')].filter((one) => one.checkVisibility())"
                         ".filter((one) => !(one.textContent.trim() || one.labels?.length || one.getAttribute('aria-label'))).length")  # fmt: skip
        assert names == 0  # every control has a name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A whole server; its model says what it is told."""
    arguments = ("--platform", "echo", "--max-model-len", "8192", "--num-blocks", "1200")
    with serve(*arguments, environ=install(tmp_path_factory.mktemp("echo"))) as running:
        yield running


def test_a_whole_server(page: Page, whole: Server) -> None:
    """Stop halts tokens in the engine; the map and the figures equal /metrics."""
    url = whole.url
    ready(page, url)
    long = "one two three four five " * 600  # 3,000 tokens: far from the end when a person stops it
    say(page, long)
    page.until("document.querySelector('.writing .text')?.textContent.length > 20")
    page.click("#stop-answer")
    page.until(IDLE)
    until(lambda: gauges(url)["llmx:num_requests_running"] == 0)
    said = page.text(".turn.assistant .text").strip()
    assert long.startswith(said) and 20 < len(said) < len(long.strip())
    made = _generated(url)
    assert made < 2900
    say(page, "short")
    page.until("document.querySelectorAll('.turn.assistant').length === 2 && " + IDLE)
    assert page.text(".turn.assistant .text") == "short" and _generated(url) - made < 10
    assert "cached" in page.text(".turn.assistant .figures")  # the first turn is a prefix of the second
    page.until("!/^(0%|no)/.test(document.querySelector('#prefix-all').textContent)")  # the second prompt is seen
    told = gauges(url)
    cached, free = told["llmx:kv_blocks_cached"], told["llmx:kv_blocks"] - told["llmx:kv_blocks_cached"]
    assert told["llmx:kv_blocks_held"] == 0 and cached > 10
    page.until(f"document.querySelector('#kv-cached').textContent === '{cached:.0f}' && document.querySelector('#running').textContent === '0'")
    assert page.run(CELLS) == {"cached": cached, "free": free}
    share = 100 * told["llmx:prefix_cache_hits_total"] / told["llmx:prefix_cache_queries_total"]
    assert page.text("#prefix-all") == f"{share:.1f}% of {told['llmx:prefix_cache_queries_total']:,.0f} tokens"
    assert page.text("#latency tr:first-child td").endswith("s")


def _generated(url: str) -> float:
    return gauges(url)["llmx:generation_tokens_total"]
