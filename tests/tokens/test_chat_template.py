"""Chat templates render as transformers renders them, and cannot leave their sandbox."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llmx.errors import ConfigError, ModelError, RequestError
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.source import TokenizerSource
from llmx.tokens.tokenizer import Tokenizer

USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "Hello th"}
TOOL = {"type": "function", "function": {"name": "ping", "description": "é", "parameters": {"type": "object", "properties": {}}}}
CHATML = (
    "{%- for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content | trim }}"
    "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|end|>{% endfor %}"
)


def template(source: str, **names: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, names)


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return template(source, bos_token="<s>", eos_token="</s>").render(messages or [USER], **options)


@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}{% for m in messages %}\n  {% if loop.first %}F{{ loop.length }}{% endif %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}",
        "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.content }}{% if loop.last %}!{% break %}{% endif %}{% endfor %}",
        "{{ tools | tojson }}{{ tools | tojson(indent=2) }}{{ messages[0] | tojson }}{{ messages | length }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}",
        "{% generation %}a{{ messages[-1].content }}{% endgeneration %}b{% if add_generation_prompt %}<assistant>{% endif %}",
        "{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(messages[0].content) }}{{ missing }}{{ '%s-%05.2f' | format('a', 2) }}{{ '%(x)s' % {'x': 1} }}",
        "{{ '{:>4}|{x}'.format(1, x=2) }}{{ 'ab' * 3 }}{{ 7 % 4 }}{{ 2 ** 8 }}{{ 'x' | center(5) }}{{ 'a\nb' | indent(2) }}",
        "{{ range(3) | list }}{{ dict(a=1) }}{{ messages | map(attribute='role') | join(',') }}{{ messages | selectattr('role', 'eq', 'user') | list }}",
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
        "{% for c in messages[0].content if c != 'h' %}{{ c }}{{ loop.index0 }}{% else %}-{% endfor %}",
        "{%- for m in messages recursive %}{{ m.role }}{% if m.children %}{{ loop(m.children) }}{% endif %}{% endfor %}",
        CHATML,
    ],
)
def test_renders_what_transformers_renders(source: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [USER, ASSISTANT]
    wanted, _ = utils.render_jinja_template([messages], chat_template=source, tools=[TOOL], add_generation_prompt=True, bos_token="<s>", eos_token="</s>")
    assert render(source, messages, tools=[TOOL]) == wanted[0]


def test_the_template_of_smollm2(smollm2_source: TokenizerSource, smollm2: Tokenizer) -> None:
    chat = ChatTemplate.load(smollm2_source, smollm2.names)
    text = chat.render([USER])
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert text == system + "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert smollm2.encode(text, add_special_tokens=False).count(1) == 3  # <|im_start|> is BOS too: as often as the template writes it
    assert chat.render([USER, ASSISTANT], add_generation_prompt=False, continue_final_message=True).endswith("<|im_start|>assistant\nHello th")
    assert chat.available and chat.variables() == {"messages", "add_generation_prompt"}


# --- messages --------------------------------------------------------------------------------------------------------


def test_parts_are_joined_where_a_template_takes_strings() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("user", "system", "assistant", "tool"):
        for source in ("{{ messages[0].content }}", "{{ '<' + messages[0].content + '>' }}"):
            assert render(source, [{"role": role, "content": parts}]).strip("<>") == "a\nb"
    assert render(CHATML, [{"role": "user", "content": parts}]) == "<|user|>ab<|end|>"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([{"type": "image_url", "image_url": {}}], r"messages\[0\].content\[0\] has type 'image_url'"),
        ([{"text": "a"}], "type None"),
        (["a"], "type None"),
        (7, "a int"),
    ],
)
def test_other_parts_are_refused(content: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        render("{{ messages[0].content }}", [{"role": "user", "content": content}])


def test_history_of_tool_calls() -> None:
    calls = "{% if m.tool_calls is defined %}{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}"
    source = "{% for m in messages %}{{ m.role }}{{ m.content }}" + calls + ";{% endfor %}"

    def call(arguments: Any, **extra: Any) -> str:
        return render(source, [USER, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}], **extra}])

    assert call('{"a": "é"}') == call({"a": "é"}) == 'userhi;assistant{"a": "é"};'
    assert call("") == call(None) == "userhi;assistant{};"
    assert call("{}", tool_calls=[]) == call("{}", tool_calls=None) == render(source, [USER, {"role": "assistant", "content": ""}])
    for bad in ("{", "[1]", 3):
        with pytest.raises(RequestError, match="arguments"):
            call(bad)


@pytest.mark.parametrize("messages", [[], None, "hi", [3], [{"content": "x"}], [{"role": 3, "content": "x"}]])
def test_messages_of_another_shape_are_refused(messages: Any) -> None:
    with pytest.raises(RequestError, match="messages"):
        template("{{ messages }}").render(messages)


def test_a_refusal_carries_the_templates_own_message() -> None:
    with pytest.raises(RequestError, match="^roles must alternate$") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.field == "messages" and caught.value.status == 400
    for source in ("{{ messages[0].content + 1 }}", "{{ nothing.here }}", "{{ messages[5].content }}", "{{ 1 // 0 }}", "{% include 'x' %}"):
        with pytest.raises(RequestError, match="cannot take these messages"):
            render(source)


def test_continuing_the_final_message() -> None:
    chat = template(CHATML)
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert chat.render([USER, ASSISTANT], **options) == "<|user|>hi<|end|><|assistant|>Hello th"
    trailing = {"role": "assistant", "content": "The answer is: "}
    assert chat.render([USER, trailing], **options) == "<|user|>hi<|end|><|assistant|>The answer is:"  # the template trims
    assert template("{{ messages[-1].content }}.").render([USER, trailing], **options) == "The answer is: "
    with pytest.raises(RequestError, match="exclude each other"):
        chat.render([USER, ASSISTANT], continue_final_message=True)
    with pytest.raises(RequestError, match="does not show"):
        template("{{ messages[0].content }}").render([USER, ASSISTANT], **options)
    with pytest.raises(RequestError, match="no text"):
        chat.render([USER, {"role": "assistant", "content": []}], **options)


def test_variables_reach_the_template_but_cannot_replace_its_inputs() -> None:
    assert render("{{ enable_thinking }}{{ bos_token }}", enable_thinking=False) == "False<s>"
    for name in ("chat_template",):
        with pytest.raises(RequestError, match=f"'{name}' cannot be given"):
            render("x", **{name: "y"})
    assert "enable_thinking" in template("{{ enable_thinking }}").variables()


# --- the sandbox -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ ('{0.__class__}' | attr('format'))(messages) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ (1).__class__.__base__.__subclasses__() }}",
        "{{ lipsum.__globals__ }}",
    ],
)
def test_nothing_leaves_the_sandbox(source: str) -> None:
    messages = [dict(USER)]
    try:
        assert render(source, messages) == ""  # an unsafe attribute is undefined, and prints as nothing
    except RequestError:
        pass
    assert messages == [USER]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ range(10 ** 12) }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 10 ** 100000 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{% set _budget = namespace() %}{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(2000) %}{{ 'a' * 10000 }}{% endfor %}",
    ],
)
def test_work_is_bounded(source: str) -> None:
    start = time.perf_counter()
    with pytest.raises(RequestError):
        render(source)
    assert time.perf_counter() - start < 20  # 1 s of its own, and one for the first look at the template


def test_threads_do_not_share_a_budget() -> None:
    chat = template("{% for i in range(60000) %}{% endfor %}{{ messages[0].content }}")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: chat.render([{"role": "user", "content": str(i)}]), range(8))) == [str(i) for i in range(8)]


# --- where templates come from ---------------------------------------------------------------------------------------


def load(directory: Path, override: str | None = None) -> ChatTemplate:
    return ChatTemplate.load(TokenizerSource(str(directory)), {}, override)


def test_sources_in_order(tmp_path: Path, write_tokenizer: Callable[..., Path]) -> None:
    write_tokenizer(None, {"chat_template": "config"})
    assert load(tmp_path).render([USER]) == "config"
    (tmp_path / "chat_template.jinja").write_text("own file é", encoding="utf-8")
    assert load(tmp_path).render([USER]) == "own file é"
    (tmp_path / "other.jinja").write_text("other {{ messages[0].role }}")
    assert load(tmp_path, str(tmp_path / "other.jinja")).render([USER]) == "other user"
    assert load(tmp_path, "inline {{ messages[0].role }}").render([USER]) == "inline user"
    with pytest.raises(ConfigError, match="chat_template is 'nowhere.jinja'"):
        load(tmp_path, "nowhere.jinja")


def test_named_templates(tmp_path: Path, write_tokenizer: Callable[..., Path]) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools {{ tools | length }}"}]
    chat = load(write_tokenizer(None, {"chat_template": named}))
    assert chat.render([USER]) == "plain" and chat.render([USER], tools=[TOOL]) == "tools 1"


def test_named_templates_of_gguf() -> None:
    metadata = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools", "tokenizer.chat_templates": ["tool_use"]}
    chat = ChatTemplate.load(TokenizerSource("x.gguf", metadata), {})
    assert chat.render([USER]) == "plain" and chat.render([USER], tools=[TOOL]) == "tools"


def test_a_model_without_template_says_what_to_do(tmp_path: Path) -> None:
    chat = load(tmp_path)
    assert not chat.available and chat.variables() == frozenset()
    with pytest.raises(RequestError, match="no chat template.*--chat-template"):
        chat.render([USER])


def test_a_template_that_is_no_jinja_is_refused_at_load(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "a\n{% if %}"}))
    with pytest.raises(ModelError, match="'default', line 2 is not valid jinja"):
        load(tmp_path)
