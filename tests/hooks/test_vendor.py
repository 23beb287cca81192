"""A vendor's distribution, found by its metadata, changes what an engine run does through each hook."""

from __future__ import annotations

from pathlib import Path

import pluggy
import pytest

from llmx import LLM, SamplingParams
from llmx.engine.explain import explain
from llmx.engine.start import prepare
from llmx.errors import ConfigError, PlatformError, PluginError
from llmx.resolve import resolve
from tests.hooks.vendor import install, install_acme

PARAMS = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


def _llm(**options: object) -> LLM:
    return LLM(platform="acme", num_blocks=600, **options)


def test_platform_executor_caps_and_defaults_reach_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_acme(tmp_path, monkeypatch)
    with _llm() as llm:
        assert (llm.info.platform, llm.info.device) == ("acme", "acme1")  # llmx_platform_info, llmx_device_caps
        assert (llm.info.max_num_seqs, llm.info.max_num_batched_tokens) == (3, 48)  # llmx_config_defaults
        assert any("three lanes" in change for change in llm.info.changes)
        assert llm.info.warnings == ["the cube rounds"]  # llmx_config_check, a warning
        outputs = llm.generate(["a b c d"] * 5, PARAMS)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [3] * 5
        assert type(llm._engine.executor).__name__ == "AcmeExecutor" and llm._engine.executor.steps > 3  # llmx_executor


def test_the_user_overrides_a_platform_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_acme(tmp_path, monkeypatch)
    with _llm(max_num_seqs=2) as llm:
        assert llm.info.max_num_seqs == 2


def test_a_config_error_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_acme(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="no fp32"):
        _llm(dtype="float32")


def test_kernel_choice_records_every_rejection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_acme(tmp_path, monkeypatch)
    config, _ = resolve({"platform": "acme"}, environ={})
    rows = explain(config).rows
    linears = {row.spec: row for row in rows if row.spec.startswith("linear")}
    small = next(row for spec, row in linears.items() if "576x576" in spec)
    assert small.provider == "acme.cube"  # llmx_gemm_kernels
    reasons = {provider: (stage, why) for provider, stage, why in small.rejected}
    assert reasons["acme.broken"][0] == "import" and "acme_llmx.absent" in reasons["acme.broken"][1]
    assert reasons["acme.tensor"][0] == "capabilities" and "vendor.acme.tensor" in reasons["acme.tensor"][1]
    assert reasons["acme.base"][0] == "priority"
    head = next(row for spec, row in linears.items() if "49152" in spec)
    assert head.provider == "acme.base"
    assert ("acme.cube", "supports", "49152 rows: the cube takes fewer than 10000") in head.rejected
    assert {row.provider for row in rows if row.spec.startswith("attention")} == {"acme.fa"}  # llmx_attention_backends
    assert {row.provider for row in rows if row.spec.startswith("norm")} == {"acme.base"}  # llmx_op_kernels


def test_a_fusion_yields_to_a_better_single_and_wins_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_acme(tmp_path, monkeypatch)
    for disabled, provider in ((None, "acme.cube"), (["acme.cube"], "acme.fused")):
        config, _ = resolve({"platform": "acme", "disable_kernel": disabled}, environ={})
        gate_up = next(row for row in explain(config).rows if row.spec.startswith("linear 3072x576"))
        assert gate_up.provider == provider
        if disabled is None:
            fusion = next(entry for entry in gate_up.rejected if entry[0].startswith("acme.fused"))
            assert fusion[1] in ("order", "priority")


def test_forcing_a_kernel_that_is_rejected_is_an_error_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_acme(tmp_path, monkeypatch)
    config, _ = resolve({"platform": "acme", "kernel": ["linear=acme.tensor"]}, environ={})
    with pytest.raises(PlatformError, match=r"although it was forced.*vendor\.acme\.tensor"):
        prepare(config)
    config, _ = resolve({"platform": "acme", "kernel": ["linear=acme.unheard"]}, environ={})
    with pytest.raises(PlatformError, match="no provider 'acme.unheard'"):
        prepare(config)


def test_env_vars_and_diagnostics_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmx.engine.platforms import list_platforms

    install_acme(tmp_path, monkeypatch)
    monkeypatch.setenv("LLMX_ACME_LANES", "2")
    config, _ = resolve({"platform": "acme"})
    assert ("LLMX_ACME_LANES", "2") in config.platform.options
    acme = next(row for row in list_platforms(config) if row.name == "acme")
    assert acme.chosen and acme.env_vars[0].name == "LLMX_ACME_LANES"
    assert acme.diagnostics[0].value == "12.3"


def test_an_unknown_platform_variable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_acme(tmp_path, monkeypatch)
    config, _ = resolve({"platform": "acme"}, environ={"LLMX_ACME_LANE": "2"})
    with pytest.raises(ConfigError, match="LLMX_ACME_LANE.*LLMX_ACME_LANES"):
        prepare(config)


def test_a_plugin_brings_a_model_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = """
from dataclasses import replace
from llmx.hooks import hookimpl
from llmx.models.llama import llama_models

@hookimpl
def llmx_models():
    return [replace(llama_models()[0], name="zoo", architectures=("ZooForCausalLM",), model_types=("zoo",), gguf=("zoo",))]
"""
    from llmx.hooks.loader import PluginLoader
    from llmx.models.plugin import CoreModels, registry_from

    install(tmp_path, monkeypatch, "llmx-zoo", {"zoo_llmx.py": plugin}, "[llmx.plugins]\nzoo = zoo_llmx\n")
    config, _ = resolve({}, environ={})
    registry = registry_from(PluginLoader.discover(config.platform).activate(None, builtin=[CoreModels()]))
    assert "ZooForCausalLM" in registry.architectures() and "LlamaForCausalLM" in registry.architectures()


@pytest.mark.parametrize(("api", "fits"), [("(1, 0)", True), ("(1, 1)", True), ("(1, 2)", False), ("(2, 0)", False), ("(0, 9)", False)])
def test_api_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: str, fits: bool) -> None:
    install_acme(tmp_path, monkeypatch, api=api)
    config, _ = resolve({"platform": "acme"}, environ={})
    if fits:
        assert prepare(config).selection.name == "acme"
    else:
        with pytest.raises(PluginError, match="hook API"):
            prepare(config)


def test_no_pluggy_call_while_stepping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_acme(tmp_path, monkeypatch)
    calls: list[str] = []
    real = pluggy.HookCaller.__call__

    def counted(self: pluggy.HookCaller, **arguments: object) -> object:
        if self.name.startswith("llmx_"):
            calls.append(self.name)
        return real(self, **arguments)

    monkeypatch.setattr(pluggy.HookCaller, "__call__", counted)
    with _llm() as llm:
        assert "llmx_executor" in calls  # the counter counts
        calls.clear()
        llm.generate(["a b c"] * 4, SamplingParams(temperature=0.0, max_tokens=110, ignore_eos=True))
        assert llm._engine.stats().steps >= 100
    assert calls == []


STRUCTURED = '''
"""A vendor's grammar backend: every answer counts up from the length of the choice, three tokens long; it takes choices only."""
from llmx.errors import GrammarError
from llmx.hooks import StructuredBackendDef, hookimpl


@hookimpl
def llmx_structured_backends(config):
    return [StructuredBackendDef("acme", "counting_llmx:Counting", priority=90)]


class Place:
    def __init__(self, first):
        self.next, self.left, self.error = first, 3, None


class Compiled:
    def __init__(self, first):
        self.first = first

    def matcher(self):
        return Place(self.first)


class Counting:
    name = "acme"

    def __init__(self, table):
        self.eos = table.eos_ids[0]

    def compile(self, spec):
        if spec.kind != "choice":
            raise GrammarError("acme counts choices only")
        return Compiled(len(spec.text))

    def fill(self, matchers, tokens, rows, mask):
        for place, new, row in zip(matchers, tokens, rows):
            place.next += len(new)
            place.left -= len(new)
            bit = place.next if place.left else self.eos
            mask[row] = 0
            mask[row, bit >> 5] = 1 << (bit & 31)
'''


def test_a_plugin_brings_a_grammar_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmx.structured_params import StructuredOutputsParams

    install(tmp_path, monkeypatch, "llmx-counting", {"counting_llmx.py": STRUCTURED}, "[llmx.plugins]\ncounting = counting_llmx\n")

    def params(**form: object) -> SamplingParams:
        return SamplingParams(temperature=0.0, max_tokens=20, structured_outputs=StructuredOutputsParams(**form))

    with LLM(platform="null", num_blocks=600) as llm:
        (mine,) = llm.generate("a b c", params(choice=["abc"]))
        assert mine.outputs[0].token_ids == [7, 8, 9, 2] and mine.outputs[0].finish_reason == "stop"  # '["abc"]' has 7 characters; 2 is EOS
        (other,) = llm.generate("a b c", params(regex="[0-9]{4}"))  # acme refuses it, the next backend takes it
        assert len(other.outputs[0].text) == 4 and other.outputs[0].text.isdigit()
    with LLM(platform="null", num_blocks=600, structured_outputs_backend="llguidance") as llm:
        assert llm.generate("a b c", params(choice=["abc"]))[0].outputs[0].text == "abc"
    with pytest.raises(ConfigError, match="'emca'.*acme, llguidance"):
        LLM(platform="null", structured_outputs_backend="emca")


DRAFTER = '''
"""A vendor's drafter: guesses one token for ever, and counts who asks."""
from llmx.errors import ConfigError
from llmx.hooks import DrafterDef, hookimpl


@hookimpl
def llmx_drafters(config):
    return [DrafterDef("parrot", "parrot_llmx:Parrot", ("word",), num_tokens=3)]


class Parrot:
    made = []

    def __init__(self, settings):
        if not isinstance(settings.get("word", 7), int):
            raise ConfigError("word must be a token id")
        self.word, self.asked, self.closed = settings.get("word", 7), 0, 0
        Parrot.made.append(self)

    def begin(self, tokens, *, private):
        return self

    def propose(self, limit):
        self.asked += 1
        return [self.word] * limit, 9

    def close(self):
        self.closed += 1
'''


def test_a_plugin_brings_a_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "llmx-parrot", {"parrot_llmx.py": DRAFTER}, "[llmx.plugins]\nparrot = parrot_llmx\n")
    words = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, allowed_token_ids=(9,))  # the answer is 9, forty times
    steps = {}
    for word in (None, 8, 9):
        spec = {"method": "parrot", "num_speculative_tokens": 3, "word": word} if word else None
        with LLM(platform="null", num_blocks=600, speculative_config=spec) as llm:
            if word:
                llm._engine.scheduler.drafting.fixed = True
            (output,) = llm.generate("a b c", words)
            assert output.outputs[0].token_ids == [9] * 40
            steps[word] = llm._engine.stats().steps
            assert output.outputs[0].num_accepted_tokens == (29 if word == 9 else 0)
    assert steps == {None: 40, 8: 40, 9: 11}  # the prompt's step gives one, then nine give four each and the last what is left
    import parrot_llmx  # type: ignore[import-not-found]

    assert [one.closed for one in parrot_llmx.Parrot.made] == [2, 2]  # the warm-up's request and ours
    there = "custom_class, draft_model, eagle, eagle3, medusa, mlp_speculator, ngram, pard, parrot, suffix"
    with pytest.raises(ConfigError, match=rf"method is 'dflash' \(a block-diffusion drafter\).*{there}"):
        LLM(platform="null", speculative_config={"method": "dflash", "model": "x"})
    with pytest.raises(ConfigError, match="speed is no setting of 'parrot', which has method, num_speculative_tokens, word"):
        LLM(platform="null", speculative_config={"method": "parrot", "speed": 2})
