"""LLM: offline use, the engine in this process. Prompts in, RequestOutputs out, in the order of the prompts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmx.engine.asleep import sleep, wake
from llmx.engine.beam_search import BeamSearcher, BeamSearchOutput
from llmx.engine.engine_args import DEFAULT_MODEL, EngineArgs
from llmx.engine.llm_engine import LLMEngine
from llmx.engine.llm_pooling import PoolingCalls
from llmx.engine.messages import EngineInfo
from llmx.engine.metrics_snapshot import Metric
from llmx.engine.outputs import RequestOutput
from llmx.engine.pooling_outputs import ClassificationRequestOutput, EmbeddingRequestOutput, PoolingRequestOutput, ScoringRequestOutput
from llmx.engine.progress import ProgressBar
from llmx.engine.refused_methods import refuse_methods
from llmx.engine.request_input import ParsedPrompt, Prompt, as_batch, one_per_prompt, parse_prompt
from llmx.errors import RequestError
from llmx.lora.request import LoRARequest, adapters_per_prompt
from llmx.pooling_params import PoolingParams
from llmx.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.tokenizer import Tokenizer
from llmx.tokens.tokenizer_view import TokenizerView

if TYPE_CHECKING:
    from llmx.engine.engine import Engine

__all__ = ["LLM", "Prompt"]

Messages = Sequence[Mapping[str, Any]]
Params = SamplingParams | Sequence[SamplingParams] | None
Bar = bool | Callable[..., Any]
Adapters = LoRARequest | Sequence[LoRARequest | None] | None


@refuse_methods
class LLM:
    """A model to generate with. Options are those of `llmx serve` by name: LLM("model.gguf", max_model_len=2048, threads=2).

    Not thread-safe: one thread uses it. Close it, or use it as a context manager.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        self.llm_engine = LLMEngine(EngineArgs(model, **options))
        self._ids = itertools.count()
        self._pooling = PoolingCalls(self.llm_engine, self._collect, self._next_id)
        self._waiting: dict[str, RequestOutput | None] = {}  # enqueued, with the output where it has come

    @property
    def info(self) -> EngineInfo:
        """What the engine is: platform, sizes, limits."""
        return self.llm_engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm_engine.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's chat template."""
        return self.llm_engine.chat_template

    @property
    def _engine(self) -> Engine:
        return self.llm_engine.engine

    # -- generate ------------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: Bar = True,
        lora_request: Adapters = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """One RequestOutput per prompt, in order. A single prompt may be given without a list.

        sampling_params: one for all, or one per prompt; None: get_default_sampling_params(). use_tqdm: a progress bar on a terminal, or
        what makes one (called like tqdm). priority: one number per prompt, lower runs earlier; needs scheduling_policy="priority".
        tokenization_kwargs: add_special_tokens, truncate_prompt_tokens, truncation_side. lora_request: an adapter for all, or one (or None) per
        prompt; it is loaded when it is first named. Raises RequestError for a prompt or argument that cannot be served, before anything runs.
        """
        _refuse_text_only(mm_processor_kwargs)
        return self._collect(self._submit(prompts, sampling_params, priority, tokenization_kwargs, lora_request), use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params = None,
        use_tqdm: Bar = True,
        lora_request: Adapters = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answers to one conversation, or to each of several, rendered by the model's chat template.

        chat_template: another one, a file or the template itself. continue_final_message: go on inside the last message; needs
        add_generation_prompt=False. tools: shown to the template; calls come as text. chat_template_kwargs: further variables.
        The other arguments are those of generate.
        """
        _refuse_text_only(mm_processor_kwargs)
        prompts = self._render(
            messages,
            chat_template,
            chat_template_content_format,
            {"tools": tools, "add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message, **(chat_template_kwargs or {})},
        )
        return self._collect(self._submit(prompts, sampling_params, priority, tokenization_kwargs, lora_request), use_tqdm)

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: Bar = True,
        lora_request: Adapters = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
    ) -> list[str]:
        """Queue prompts and return at once, with one request id per prompt; wait_for_completion gives the outputs.

        Arguments as in generate; use_tqdm shows how the prompts are taken in.
        """
        _refuse_text_only(mm_processor_kwargs)
        return self._enqueue(self._submit(prompts, sampling_params, priority, tokenization_kwargs, lora_request), use_tqdm)

    def enqueue_chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params = None,
        use_tqdm: Bar = True,
        lora_request: Adapters = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[str]:
        """Like enqueue, for conversations; arguments as in chat."""
        _refuse_text_only(mm_processor_kwargs)
        prompts = self._render(
            messages,
            chat_template,
            chat_template_content_format,
            {"tools": tools, "add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message, **(chat_template_kwargs or {})},
        )
        return self._enqueue(self._submit(prompts, sampling_params, priority, tokenization_kwargs, lora_request), use_tqdm)

    def wait_for_completion(self, *, use_tqdm: Bar = True) -> list[RequestOutput]:
        """Outputs of everything that was enqueued, in that order; [] when nothing was."""
        ids = list(self._waiting)
        outputs = self._collect(ids, use_tqdm)
        for request_id in ids:
            del self._waiting[request_id]
        return outputs

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, lora_request: LoRARequest | None = None
    ) -> Iterator[RequestOutput]:
        """Outputs of one prompt as they come, as output_kind says; leaving the loop early aborts it. lora_request: its adapter."""
        params = sampling_params or self.get_default_sampling_params()
        request_id = self.llm_engine.add_request(self._next_id(), prompt, params, lora_request=lora_request)
        finished = False
        try:
            while not finished:
                for output in self._step():
                    if output.request_id == request_id:
                        finished = output.finished
                        yield output
        finally:
            if not finished:
                self.llm_engine.abort_request(request_id)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: LoRARequest | None = None,
        use_tqdm: Bar = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The beam_width most likely answers to each prompt, best first. concurrency_limit: prompts that are searched at the same time; None: all."""
        searcher = BeamSearcher(self.llm_engine, self._step, self._next_id, lora_request)
        return searcher.run(as_batch(prompts), params, concurrency_limit, ProgressBar(use_tqdm, "Beam search"))

    # -- vectors and scores ------------------------------------------------------------------------------------------

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: Bar = True,
        lora_request: LoRARequest | None = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput]:
        """What the model gives for each prompt, as arrays. pooling_task: embed, classify, token_embed or token_classify; None: the model's own."""
        return self._pooling.using(lora_request).encode(prompts, pooling_params, pooling_task, tokenization_kwargs, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: Bar = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """A vector per prompt, of an embedding model."""
        return self._pooling.using(lora_request).embed(prompts, pooling_params, tokenization_kwargs, use_tqdm)

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: Bar = True,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """A number per label and prompt, of a classifier."""
        return self._pooling.using(lora_request).classify(prompts, pooling_params, tokenization_kwargs, use_tqdm)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: Bar = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well texts go together: one against one or many, or as many against as many. Cosine of vectors, or a one-label classifier's score."""
        return self._pooling.using(lora_request).score(data_1, data_2, pooling_params, use_tqdm)

    # -- how -----------------------------------------------------------------------------------------------------------

    def _next_id(self) -> str:
        return f"llm-{next(self._ids)}"

    def _render(self, messages: Any, source: str | None, content_format: str, options: dict[str, Any]) -> list[Prompt]:
        if content_format != "auto":
            why = "whether a template takes texts or parts is found out from the template"
            raise RequestError(f"chat_template_content_format is {content_format!r}: {why}; give 'auto', or leave it out", field="chat_template_content_format")
        engine = self.llm_engine
        template = self.chat_template if source is None else ChatTemplate.load(engine.tokenizer_source, engine.tokenizer.names, source)
        conversations: list[Any] = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        texts = [template.render(conversation, **options) for conversation in conversations]
        return [{"prompt": text, "prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)} for text in texts]

    def _submit(
        self, prompts: Prompt | Sequence[Prompt], params: Params, priority: Sequence[int] | None, tokenization: Mapping[str, Any] | None, lora: Adapters
    ) -> list[str]:
        """Add all requests of one call, or none of them."""
        batch = as_batch(prompts)
        each = one_per_prompt("sampling_params", params, len(batch), SamplingParams, self.get_default_sampling_params())
        order = one_per_prompt("priority", priority, len(batch), int, 0)
        parsed: list[ParsedPrompt] = [parse_prompt(prompt, self.tokenizer, tokenization) for prompt in batch]
        adapters = adapters_per_prompt(lora, len(batch))
        ids: list[str] = []
        try:
            for prompt, one, place, adapter in zip(parsed, each, order, adapters, strict=True):
                final = replace(one, output_kind=RequestOutputKind.FINAL_ONLY)
                more: dict[str, Any] = {"priority": place, "tokenization_kwargs": tokenization, "lora_request": adapter}
                ids.append(self.llm_engine.add_request(self._next_id(), prompt, final, **more))
        except BaseException:
            self.llm_engine.abort_request(ids)
            raise
        return ids

    def _enqueue(self, ids: list[str], use_tqdm: Bar) -> list[str]:
        with ProgressBar(use_tqdm, "Adding requests").over(len(ids)) as bar:
            for request_id in ids:
                self._waiting[request_id] = None
                bar.count()
        return ids

    def _collect(self, ids: list[str], use_tqdm: Bar) -> list[RequestOutput]:
        """Step until these requests are done; interrupted, they are aborted."""
        done = {request_id: output for request_id in ids if (output := self._waiting.get(request_id)) is not None}
        wanted = set(ids)
        try:
            with ProgressBar(use_tqdm, "Processed prompts").over(len(ids)) as bar:
                for output in done.values():
                    bar.count(output)
                while len(done) < len(ids):
                    for output in self._step():
                        if output.request_id in wanted:
                            done[output.request_id] = output
                            bar.count(output)
        except BaseException:
            self.llm_engine.abort_request(ids)
            for request_id in ids:
                self._waiting.pop(request_id, None)
            raise
        return [done[request_id] for request_id in ids]

    def _step(self) -> list[RequestOutput]:
        """One turn; what was enqueued and is done is kept for wait_for_completion."""
        outputs = self.llm_engine.step()
        for output in outputs:
            if output.request_id in self._waiting:
                self._waiting[output.request_id] = output
        return outputs

    # -- the whole -----------------------------------------------------------------------------------------------------

    def get_default_sampling_params(self) -> SamplingParams:
        """A new SamplingParams() with what the model's generation_config.json sets; change it as you like."""
        return SamplingParams(**self.llm_engine.sampling_defaults)

    def get_tokenizer(self) -> TokenizerView:
        """The model's tokenizer, also under the names that transformers uses."""
        return self.llm_engine.get_tokenizer()

    def get_metrics(self) -> Sequence[Metric]:
        """Counters and gauges as of now, by the names that /metrics has."""
        return self.llm_engine.get_metrics()

    def get_world_size(self, include_dp: bool = True) -> int:
        """Ranks that work together (tensor_parallel_size); there is no data parallelism to add."""
        return self.llm_engine.config.platform.tensor_parallel_size

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget the prefix cache; False, and nothing is changed, while enqueued requests run, unless these shall start anew."""
        if reset_connector:
            raise RequestError("reset_connector is True: KV is not shared with other engines, leave it out", field="reset_connector")
        return self.llm_engine.reset_prefix_cache(reset_running_requests=reset_running_requests)

    def sleep(self, level: int = 1) -> None:
        """Give the device's memory back until wake_up: weights wait in host memory, KV and prefix cache are forgotten. Only level 1; nothing may run."""
        sleep(self._engine, level)

    def wake_up(self) -> None:
        """Take the memory again after sleep, with the weights."""
        wake(self._engine)

    def collective_rpc(
        self, method: str | Callable[..., Any], timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """[result] of a method of the executor by name, or of a function called with the executor first."""
        if timeout is not None:
            raise RequestError(f"timeout is {timeout}: the call runs in this thread and cannot be left, leave it out", field="timeout")
        executor = self._engine.executor
        call = getattr(executor, method, None) if isinstance(method, str) else lambda *given, **named: method(executor, *given, **named)
        if not callable(call):
            raise RequestError(f"method is {method!r}: the executor {type(executor).__name__} has no such method", field="method")
        return [call(*args, **(kwargs or {}))]

    def close(self) -> None:
        """Free the model."""
        self.llm_engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _refuse_text_only(mm_processor_kwargs: object) -> None:
    if mm_processor_kwargs is not None:
        raise RequestError("mm_processor_kwargs is set: models take text only here, leave it out", field="mm_processor_kwargs")
