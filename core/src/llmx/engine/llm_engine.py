"""LLMEngine: the engine in this process, with text in and text out; one call of `step` is one turn. LLM stands on it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from llmx.config import EngineConfig
from llmx.engine.answer_formats import with_thinking_budget
from llmx.engine.engine_args import EngineArgs
from llmx.engine.hub_adapters import adapter_folder
from llmx.engine.messages import Abort, Add, EngineInfo
from llmx.engine.metrics_snapshot import Metric, snapshot
from llmx.engine.output_processor import OutputProcessor, only_new
from llmx.engine.outputs import RequestOutput
from llmx.engine.pooling_outputs import PoolingProcessor
from llmx.engine.prefix_reset import reset_prefix_cache
from llmx.engine.request_input import ParsedPrompt, Prompt, cut_prompt, parse_prompt, request_params
from llmx.errors import RequestError, RequestFailed
from llmx.hooks.types import ConfigPatch
from llmx.lora.request import LoRARequest, adapter_name
from llmx.pooling_params import PoolingParams, check_pooling, gives_rows
from llmx.resolve import apply_patches
from llmx.sampling_params import RequestOutputKind, SamplingParams, sampling_defaults
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.source import TokenizerSource
from llmx.tokens.tokenizer import Tokenizer
from llmx.tokens.tokenizer_view import TokenizerView

if TYPE_CHECKING:
    from llmx.engine.engine import Engine

__all__ = ["LLMEngine"]

OFFLINE = (
    ConfigPatch("scheduler.interactive", False, "nobody watches tokens come"),
    ConfigPatch("scheduler.max_queued_requests", None, "all prompts of a call are queued at once"),
)


class LLMEngine:
    """Requests in by `add_request`, outputs out by `step`, in the order in which they have news. One thread calls it.

    sampling_defaults: what the model's generation_config.json sets, by SamplingParams field.
    """

    info: EngineInfo
    engine: Engine
    tokenizer: Tokenizer
    tokenizer_source: TokenizerSource
    chat_template: ChatTemplate
    sampling_defaults: dict[str, Any]

    def __init__(self, engine_args: EngineArgs) -> None:
        config, changes = engine_args.resolve()
        user_set = [change.path for change in changes]
        self.config, _ = apply_patches(config, OFFLINE, user_set)
        self.max_logprobs = engine_args.max_logprobs
        self._processors: dict[str, OutputProcessor | PoolingProcessor] = {}
        self._kinds: dict[str, RequestOutputKind] = {}
        self._adapters: dict[str, LoRARequest] = {}
        self._held: list[Any] = []  # outputs that came with an error, for the next step
        self._failed: dict[str, RequestFailed] = {}  # pooling requests that the engine ended, by id, until they are told
        self._start(user_set)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs | Mapping[str, Any]) -> LLMEngine:
        """An engine from EngineArgs, or from options by name."""
        return cls(EngineArgs.of(engine_args))

    def _start(self, user_set: list[str]) -> None:
        from llmx.engine.model_fetch import TransferLine, fetch_model  # imported where an engine starts: whoever only names the class needs none of it
        from llmx.engine.start import start_engine

        with TransferLine(sys.stderr) as line:
            self.config = fetch_model(self.config, line.show)
        self.engine, self.info = start_engine(self.config, _silent, user_set)
        self._load_text(self.config)

    def _load_text(self, config: EngineConfig) -> None:
        from llmx.hooks.loader import PluginLoader
        from llmx.models.load import read_model_info
        from llmx.models.plugin import CoreModels, registry_from

        registry = registry_from(PluginLoader.discover(config.platform).activate(None, builtin=[CoreModels()]))
        summary = read_model_info(config.model, registry)
        self.tokenizer_source = summary.tokenizer
        self.tokenizer = Tokenizer.load(summary.tokenizer)
        self.chat_template = ChatTemplate.load(summary.tokenizer, self.tokenizer.names, config.model.chat_template)
        self.sampling_defaults = sampling_defaults(summary.generation)

    # -- requests ------------------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: Prompt | ParsedPrompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        limited: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> str:
        """Queue a request; its id. Raises RequestError when it cannot be served; then nothing changed.

        priority: lower runs earlier, 0 takes that of params; needs scheduling_policy="priority". tokenization_kwargs: add_special_tokens,
        truncate_prompt_tokens, truncation_side. lora_request: the adapter, loaded if it is not yet. limited False: max_logprobs does not hold.
        """
        priority = priority or params.priority
        if priority and self.config.scheduler.policy != "priority":
            why = f"priority is {priority}, but requests run in the order of arrival"
            raise RequestError(f'{why}: start with scheduling_policy="priority", or leave it out', field="priority")
        parsed = prompt if isinstance(prompt, ParsedPrompt) else parse_prompt(prompt, self.tokenizer, tokenization_kwargs)
        limit = self.max_logprobs if limited else None
        params = request_params(params, self.tokenizer, self.info.vocab_size, tokenization=tokenization_kwargs, max_logprobs=limit)
        ids = cut_prompt(parsed.ids, params, self.info.max_model_len)
        params = with_thinking_budget(params, self.config, self.chat_template, self.tokenizer, ids)
        self.engine.add(Add(request_id, ids, params, priority, parsed.cache_salt, lora=self.adapter_of(lora_request)))
        self._processors[request_id] = OutputProcessor(request_id, parsed.text, ids, params, self.tokenizer)
        self._kinds[request_id] = params.output_kind
        if lora_request is not None:
            self._adapters[request_id] = lora_request
        return request_id

    def adapter_of(self, lora_request: object) -> str:
        """The name of a LoRARequest's adapter, loaded if it is not yet; "" for None. Raises RequestError."""
        running = self.engine.scheduler.running
        name = adapter_name(lora_request, partial(self.engine.adapters.load, running=running))
        if name and not self.engine.adapters.resolve(name, running) and (path := adapter_folder(self.config, name)) is not None:
            self.engine.adapters.load(name, path, running)
        return name

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter before a request names it. Raises RequestError with what is wrong with it."""
        return bool(self.adapter_of(lora_request))

    def remove_lora(self, lora_name: str) -> bool:
        """Forget an adapter; requests that had begun keep it. Raises ModelNotFound."""
        self.engine.adapters.unload(lora_name, self.engine.scheduler.running)
        return True

    def pin_lora(self, lora_name: str) -> bool:
        """Keep an adapter in a device slot. Raises ModelNotFound, RequestError when no slot is free for that."""
        return bool(self.engine.adapters.pin(lora_name, self.engine.scheduler.running))

    def list_loras(self) -> list[str]:
        """Names of the adapters that are loaded."""
        return [str(one["name"]) for one in self.engine.adapters.facts()]

    def add_pooling_request(self, request_id: str, token_ids: list[int], params: PoolingParams, *, second_text: int = -1, lora: str = "") -> str:
        """Queue a text for a model that gives vectors or scores; its id. second_text: where the second of a pair begins. lora: an adapter's name.

        Raises RequestError when it cannot be served; then nothing changed.
        """
        check_pooling(self.info.pooling, params)
        self.engine.add(Add(request_id, token_ids, SamplingParams(max_tokens=0), pooling=params, second_text=second_text, lora=lora))
        self._processors[request_id] = PoolingProcessor(request_id, token_ids, whole=gives_rows(self.info.pooling, params))
        self._kinds[request_id] = RequestOutputKind.FINAL_ONLY
        return request_id

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests; they give no further output. Unknown ids are fine."""
        ended = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._held = [output for output in self._held if output.request_id not in ended]
        for request_id in ended:
            self._adapters.pop(request_id, None)
            self._failed.pop(request_id, None)
            if self._processors.pop(request_id, None) is not None:
                self.engine.abort(Abort(request_id))

    def has_unfinished_requests(self) -> bool:
        """True while a request waits or runs, or its end is not told yet."""
        return bool(self._processors or self._held or self._failed)

    def get_num_unfinished_requests(self) -> int:
        """Requests that wait or run."""
        return len(self._processors)

    # -- one turn ------------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """One turn of the engine: an output for each request that has news, as its output_kind says; the last has finished True.

        Raises RequestFailed for a pooling request that the engine ended; what the others gave comes with the next call.
        """
        touched: dict[str, OutputProcessor | PoolingProcessor] = {}
        for item in self.engine.step():
            processor = self._processors.get(item.id)
            if processor is not None:
                touched[item.id] = processor
                abort = processor.take(item)
                if abort is not None:
                    self.engine.abort(abort)
        for name, error in self.engine.expire():
            if (processor := self._processors.get(name)) is not None:
                touched[name] = processor
                processor.fail(str(error))
        outputs, self._held = self._held, []  # RequestOutput, of pooling requests PoolingRequestOutput
        for request_id, processor in touched.items():
            kind, finished = self._kinds[request_id], processor.finished
            if finished:
                del self._processors[request_id], self._kinds[request_id]
            if finished or (processor.news and kind is not RequestOutputKind.FINAL_ONLY):
                try:
                    output = processor.drain()
                except RequestFailed as error:
                    self._failed[request_id] = error
                    continue
                if (adapter := self._adapters.get(request_id)) is not None and isinstance(output, RequestOutput):
                    output.lora_request = adapter
                outputs.append(only_new(output) if kind is RequestOutputKind.DELTA and isinstance(output, RequestOutput) else output)
            if finished:
                self._adapters.pop(request_id, None)
        if self._failed:
            self._held = outputs
            raise self._failed.pop(next(iter(self._failed)))
        return outputs

    # -- the whole -----------------------------------------------------------------------------------------------------

    def get_tokenizer(self) -> TokenizerView:
        """The model's tokenizer, also under the names that transformers uses."""
        return TokenizerView(self.tokenizer, self.chat_template)

    def get_metrics(self) -> Sequence[Metric]:
        """Counters and gauges as of now, by the names that /metrics has."""
        return snapshot(self.engine.stats(), self.info.name)

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget the prefix cache. False, and nothing is changed, while requests run; unless these shall start anew."""
        return reset_prefix_cache(self.engine, reset_running_requests=reset_running_requests)

    def close(self) -> None:
        """Free the model."""
        self.engine.close()


def _silent(what: str, fraction: float) -> None:
    """Progress that nobody watches."""
