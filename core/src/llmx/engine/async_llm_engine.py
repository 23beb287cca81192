"""AsyncLLMEngine: AsyncEngine with the names and arguments of other engines' asynchronous face, started when first used."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmx.engine.answer_formats import with_thinking_budget
from llmx.engine.async_pooling import pool
from llmx.engine.engine_args import EngineArgs
from llmx.engine.find_adapter import find_adapter
from llmx.engine.output_processor import only_new
from llmx.engine.outputs import RequestOutput
from llmx.engine.pooling_input import pooling_input
from llmx.engine.pooling_outputs import PoolingRequestOutput
from llmx.engine.request_input import Prompt, cut_prompt, parse_prompt, request_params
from llmx.errors import EngineDead, RequestError
from llmx.lora.request import LoRARequest, adapter_name
from llmx.pooling_params import PoolingParams
from llmx.sampling_params import RequestOutputKind, SamplingParams
from llmx.tokens.tokenizer_view import TokenizerView

if TYPE_CHECKING:
    from llmx.engine.async_engine import AsyncEngine

__all__ = ["AsyncLLMEngine"]


class AsyncLLMEngine:
    """The engine in a process of its own, for asyncio. Use: `engine = AsyncLLMEngine.from_engine_args({...})`, `async for output in engine.generate(...)`.

    The process starts at once; the first call that needs it waits for it, and raises what stopped the start. engine: the AsyncEngine.
    """

    def __init__(self, engine: AsyncEngine, *, max_logprobs: int | None = None) -> None:
        self.engine = engine
        self.max_logprobs = max_logprobs
        self._starting: asyncio.Task[None] | None = None

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs | Mapping[str, Any]) -> AsyncLLMEngine:
        """An engine from AsyncEngineArgs, or from options by name. Raises ConfigError for a wrong option."""
        from llmx.engine.async_engine import AsyncEngine  # whoever only names the class needs none of it

        args = EngineArgs.of(engine_args)
        return cls(AsyncEngine.launch(*args.resolve()), max_logprobs=args.max_logprobs)

    async def ready(self) -> None:
        """Wait until requests are taken. Raises what stopped the start."""
        if self._starting is None:
            self._starting = asyncio.create_task(self.engine.start(), name="llmx-engine-start")
        await asyncio.shield(self._starting)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they come, as sampling_params.output_kind says; the last has finished True. Leaving the loop aborts it.

        request_id: None makes one. Other arguments as in LLM.generate. Raises RequestError before the first output, EngineDead when
        the engine ends first.
        """
        await self.ready()
        lora = await self._adapter(lora_request)
        engine = self.engine
        parsed = parse_prompt(prompt, engine.tokenizer, tokenization_kwargs)
        params = request_params(
            sampling_params, engine.tokenizer, engine.info.vocab_size, tokenization=tokenization_kwargs, max_logprobs=self.max_logprobs
        )
        self._check_priority(priority or params.priority)
        ids = cut_prompt(parsed.ids, params, engine.info.max_model_len)
        params = with_thinking_budget(params, engine.config, engine.chat_template, engine.tokenizer, ids)
        request_id = request_id or f"llm-{uuid.uuid4().hex}"
        async for output in engine.generate(ids, params, request_id, priority=priority, cache_salt=parsed.cache_salt, lora=lora):
            output = replace(output, prompt=parsed.text, lora_request=lora_request)
            if params.output_kind is RequestOutputKind.DELTA:
                yield only_new(output)
            elif output.finished or params.output_kind is RequestOutputKind.CUMULATIVE:
                yield replace(output, outputs=[replace(answer, token_ids=list(answer.token_ids)) for answer in output.outputs])

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """The one output of a request to a model that gives vectors or scores. Arguments as in LLM.encode. Raises as `generate` does."""
        await self.ready()
        lora = await self._adapter(lora_request)
        self._check_priority(priority)
        ids, second, params = pooling_input(prompt, pooling_params, self.engine.tokenizer, self.engine.info.max_model_len, tokenization_kwargs)
        yield await pool(self.engine, ids, params, request_id or f"llm-{uuid.uuid4().hex}", second_text=second, priority=priority, lora=lora)

    async def _adapter(self, request: LoRARequest | None) -> str:
        """The name of its adapter, loaded if it is not yet: from its path, or from where --lora-dir and --lora-hub find it."""
        asked: list[tuple[str, bool]] = []
        name = adapter_name(request, lambda name, path, in_place: asked.append((path, in_place)))
        for path, in_place in asked:
            known = self.engine.steering.adapters.get(name)
            if known is None or in_place or known["path"] != path:
                await self.engine.steering.load_adapter(name, path, in_place=in_place)
        if name and not asked and name not in self.engine.steering.adapters and self.engine.config.lora.on:
            await find_adapter(self.engine.config, self.engine.steering, name)  # where there is none, the engine says what it has
        return name

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter before a request names it. Raises RequestError with what is wrong with it."""
        await self.ready()
        return bool(await self._adapter(lora_request))

    async def remove_lora(self, lora_name: str) -> bool:
        """Forget an adapter; requests that had begun keep it. Raises ModelNotFound."""
        await self.ready()
        await self.engine.steering.unload_adapter(lora_name)
        return True

    async def list_loras(self) -> list[str]:
        """Names of the adapters that are loaded."""
        await self.ready()
        return list(self.engine.steering.adapters)

    def _check_priority(self, priority: int) -> None:
        if priority and self.engine.config.scheduler.policy != "priority":
            why = f"priority is {priority}, but requests run in the order of arrival"
            raise RequestError(f'{why}: start with scheduling_policy="priority", or leave it out', field="priority")

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their streams get a last output with finish_reason "abort". Unknown ids are fine."""
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            await self.engine.abort(one)

    async def check_health(self) -> None:
        """Raises EngineDead, with the reason, unless the engine lives and answers."""
        await self.ready()
        healthy, why = await self.engine.health()
        if not healthy:
            raise EngineDead(why)

    async def get_tokenizer(self) -> TokenizerView:
        """The model's tokenizer, also under the names that transformers uses."""
        await self.ready()
        return TokenizerView(self.engine.tokenizer, self.engine.chat_template)

    async def get_default_sampling_params(self) -> SamplingParams:
        """A new SamplingParams() with what the model's generation_config.json sets."""
        await self.ready()
        return SamplingParams(**self.engine.sampling_defaults)

    def shutdown(self) -> None:
        """End the engine process at once; streams that still run get EngineDead. `close` does the same and waits for its end."""
        self.engine.kill()

    async def close(self) -> None:
        """End the engine process and wait until it is gone."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self.engine.close()
