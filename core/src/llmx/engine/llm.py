"""LLM: offline use, the engine in this process. Prompts in, RequestOutputs out, in the order of the prompts."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from llmx.engine.bad_words import with_bad_word_ids
from llmx.engine.engine import Engine
from llmx.engine.messages import Abort, Add, EngineInfo
from llmx.engine.model_store import TransferLine, fetch_model
from llmx.engine.output_processor import OutputProcessor
from llmx.engine.outputs import RequestOutput
from llmx.engine.start import start_engine
from llmx.errors import RequestError
from llmx.hooks.loader import PluginLoader
from llmx.hooks.types import ConfigPatch
from llmx.models.load import read_model_info
from llmx.models.plugin import CoreModels, registry_from
from llmx.resolve import apply_patches, resolve
from llmx.sampling_params import SamplingParams, sampling_defaults
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["LLM", "Prompt"]

Prompt = str | Sequence[int] | Mapping[str, Any]  # text, token ids, or {"prompt": text} / {"prompt_token_ids": ids}
Messages = Sequence[Mapping[str, Any]]
OFFLINE = (
    ConfigPatch("scheduler.interactive", False, "nobody watches tokens come"),
    ConfigPatch("scheduler.max_queued_requests", None, "all prompts of a call are queued at once"),
)


class LLM:
    """A model to generate with. Options are those of `llmx serve` by name: LLM("model.gguf", max_model_len=2048, threads=2).

    Not thread-safe: one thread uses it. Close it, or use it as a context manager.
    """

    info: EngineInfo

    def __init__(self, model: str = "smollm2-135m-instruct", **options: Any) -> None:
        config, changes = resolve({"model": model, **options})
        user_set = [change.path for change in changes]
        config, _ = apply_patches(config, OFFLINE, user_set)
        with TransferLine(sys.stderr) as line:
            config = fetch_model(config, line.show)
        self._engine: Engine
        self._engine, self.info = start_engine(config, _silent, user_set)
        registry = registry_from(PluginLoader.discover(config.platform).activate(None, builtin=[CoreModels()]))
        summary = read_model_info(config.model, registry)
        self.tokenizer = Tokenizer.load(summary.tokenizer)
        self.chat_template = ChatTemplate.load(summary.tokenizer, self.tokenizer.names, config.model.chat_template)
        self._defaults = SamplingParams(**sampling_defaults(summary.generation))
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """One RequestOutput per prompt, in order. A single prompt may be given without a list.

        sampling_params: one for all, or one per prompt; None: get_default_sampling_params(). use_tqdm: a progress line on a terminal.
        Raises RequestError for a prompt that cannot be served, before anything runs.
        """
        batch: list[Prompt] = [prompts] if isinstance(prompts, str | Mapping) or _is_ids(prompts) else list(prompts)  # type: ignore[arg-type, list-item]
        params = _per_prompt(sampling_params if sampling_params is not None else self._defaults, len(batch))
        processors = [self._add(prompt, one) for prompt, one in zip(batch, params, strict=True)]
        self._run({processor.request_id: processor for processor in processors}, use_tqdm and sys.stderr.isatty())
        return [processor.drain() for processor in processors]

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answers to one conversation, or to each of several, rendered by the model's chat template."""
        conversations: list[Any] = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        prompts: list[Prompt] = []
        for conversation in conversations:
            text = self.chat_template.render(
                conversation, add_generation_prompt=add_generation_prompt, continue_final_message=continue_final_message, **template_kwargs
            )
            prompts.append(self.tokenizer.encode(text, add_special_tokens=False))
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Outputs of one prompt as they come; leaving the loop early aborts it."""
        processor = self._add(prompt, sampling_params or self._defaults)
        try:
            while not processor.finished:
                self._step({processor.request_id: processor})
                if processor.news:
                    yield processor.drain()
        finally:
            if not processor.finished:
                self._engine.abort(Abort(processor.request_id))

    def _add(self, prompt: Prompt, params: SamplingParams) -> OutputProcessor:
        text, ids = self._encode(prompt)
        request_id = f"llm-{next(self._ids)}"
        self._engine.add(Add(request_id, ids, with_bad_word_ids(params, self.tokenizer)))
        return OutputProcessor(request_id, text, ids, params, self.tokenizer)

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        value: Any = prompt
        if isinstance(prompt, Mapping):
            known = set(prompt) & {"prompt", "prompt_token_ids"}
            if len(known) != 1 or set(prompt) != known:
                raise RequestError(f"a prompt dict must hold 'prompt' or 'prompt_token_ids', found {sorted(prompt)}", field="prompt")
            value = prompt[known.pop()]
        if isinstance(value, str):
            return value, self.tokenizer.encode(value)
        return None, list(value)

    def _run(self, processors: dict[str, OutputProcessor], show: bool) -> None:
        began, done = monotonic(), 0
        while any(not processor.finished for processor in processors.values()):
            self._step(processors)
            finished = sum(processor.finished for processor in processors.values())
            if show and finished != done:
                done = finished
                tokens = sum(len(answer.token_ids) for processor in processors.values() for answer in processor.drain().outputs)
                rate = tokens / max(monotonic() - began, 1e-9)
                sys.stderr.write(f"\r{done}/{len(processors)} prompts, {rate:.0f} tokens/s" + ("\n" if done == len(processors) else ""))
                sys.stderr.flush()

    def _step(self, processors: dict[str, OutputProcessor]) -> None:
        for item in self._engine.step():
            processor = processors.get(item.id)
            abort = processor.take(item) if processor is not None else None
            if abort is not None:
                self._engine.abort(abort)

    def get_default_sampling_params(self) -> SamplingParams:
        """SamplingParams() with what the model's generation_config.json sets."""
        return self._defaults

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.tokenizer

    def close(self) -> None:
        """Free the model."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _per_prompt(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    wrong = next((one for one in params if not isinstance(one, SamplingParams)), None)
    if wrong is not None:
        raise RequestError(f"sampling_params holds a {type(wrong).__name__}: give a SamplingParams, or a list of them", field="sampling_params")
    if len(params) != count:
        raise RequestError(f"{count} prompts but {len(params)} sampling_params: give one, or one per prompt", field="sampling_params")
    return list(params)


def _is_ids(prompts: object) -> bool:
    return isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], int)


def _silent(what: str, fraction: float) -> None:
    """Progress that nobody watches."""

