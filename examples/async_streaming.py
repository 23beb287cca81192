"""Streams of an engine in a process of its own: several at once, and one that is given up.

    python examples/async_streaming.py
"""

from __future__ import annotations

import asyncio

from llmx import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from llmx.sampling_params import RequestOutputKind


async def stream(engine: AsyncLLMEngine, prompt: str, request_id: str) -> None:
    """Print an answer when it is done, made of what each output added."""
    sampling_params = SamplingParams(max_tokens=12, temperature=0.8, seed=42, output_kind=RequestOutputKind.DELTA)
    pieces: list[str] = []
    async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=sampling_params):
        pieces += [completion.text for completion in output.outputs]
        if output.finished:
            print(f"{request_id}: {''.join(pieces)!r} in {len(pieces)} pieces")


async def give_up(engine: AsyncLLMEngine) -> None:
    """Abort a long answer after its third token."""
    async for output in engine.generate("Once upon a time", SamplingParams(max_tokens=500, ignore_eos=True), "long"):
        if len(output.outputs[0].token_ids) == 3:
            await engine.abort("long")
    print(f"long: {output.outputs[0].finish_reason}")


async def main() -> None:
    """Run them together."""
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="smollm2-135m-instruct", enforce_eager=True))
    await engine.check_health()
    prompts = ["The future of artificial intelligence is", "In a galaxy far, far away", "The key to happiness is"]
    await asyncio.gather(*(stream(engine, prompt, f"stream-{index}") for index, prompt in enumerate(prompts)), give_up(engine))
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
