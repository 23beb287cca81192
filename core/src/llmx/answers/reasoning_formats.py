"""The ways in which model families mark their reasoning, by the names that users of other engines know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmx.record import record

__all__ = ["REASONING_FORMATS", "ReasoningFormat"]


@record
class ReasoningFormat:
    """How a family marks its reasoning.

    start and end mark it. at_once: an answer begins inside it, whether or not the start marker comes (some templates, and some models, leave
    it out). noise: markers of the content that a reader shall not see. in_content: the reasoning stays in the content as it is. hints: texts
    that tell the family in a chat template. A prompt that ends with `start` opens the reasoning, one that ends with `end` has closed it.
    """

    name: str
    start: str
    end: str
    at_once: bool = False
    noise: Sequence[str] = ()
    in_content: bool = False
    hints: Sequence[str] = ()


def _table() -> dict[str, ReasoningFormat]:
    think = ReasoningFormat("qwen3", "<think>", "</think>", hints=("<think>", "</think>"))
    early = replace(think, at_once=True, hints=())
    names = "mimo glm45 glm47 ling3 nemotron_v3 minicpmv granite_thinking_parser holo2 deepseek_v3 deepseek_v4 deepseek_v41 poolside_v1 olmo3 hy_v3 hy_v4"
    formats = [
        think,
        *(replace(think, name=name, hints=()) for name in names.split()),
        *(replace(early, name=name) for name in ("deepseek_r1", "kimi_k2", "step3p5", "step3", "minimax_m2")),
        replace(think, name="minimax_m2_append_think", in_content=True, hints=()),
        replace(early, name="ernie45", noise=("<response>", "</response>"), hints=("<think>", "<response>")),
        replace(think, name="hunyuan_a13b", noise=("<answer>", "</answer>"), hints=("<think>", "<answer>")),
        ReasoningFormat("minimax_m3", "<mm:think>", "</mm:think>", hints=("<mm:think>",)),
        ReasoningFormat("granite", "Here is my thought process:", "Here is my response:", hints=("Here is my thought process:",)),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]", hints=("[THINK]",)),
        ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>", hints=("<seed:think>",)),
        ReasoningFormat("gemma4", "<|channel>thought", "<channel|>", hints=("<|channel>",)),
        ReasoningFormat(
            "cohere_command3", "<|START_THINKING|>", "<|END_THINKING|>", noise=("<|START_RESPONSE|>", "<|END_RESPONSE|>"), hints=("<|START_THINKING|>",)
        ),
        ReasoningFormat(
            "cohere_command4", "<|START_THINKING|>", "<|END_THINKING|>", noise=("<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")
        ),
        ReasoningFormat("kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>", hints=("<|open|>think",)),
        ReasoningFormat("k2_horizon", "<ifm|think>", "</ifm|think>", hints=("<ifm|think>",)),
        ReasoningFormat("inkling", "<|content_thinking|>", "<|end_message|>", hints=("<|content_thinking|>",)),
        ReasoningFormat("openai_gptoss", "", "", hints=("<|channel|>",)),  # read with its calls, by a machine of its own (harmony)
    ]
    return {form.name: form for form in formats}


REASONING_FORMATS: Mapping[str, ReasoningFormat] = _table()
