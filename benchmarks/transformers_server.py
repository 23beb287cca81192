#!/usr/bin/env python3
"""What people write in an afternoon: transformers behind FastAPI, one request after the other. `transformers_server.py MODEL PORT`."""

import json
import sys
from threading import Lock, Thread

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
app, one_at_a_time = FastAPI(), Lock()


@app.post("/v1/completions")
async def completions(request: Request) -> StreamingResponse:
    body = await request.json()
    ids, n = torch.tensor([body["prompt"]]), body["max_tokens"]

    def stream():
        with one_at_a_time:
            pieces = TextIteratorStreamer(tokenizer, skip_prompt=True)
            Thread(target=model.generate, kwargs={"inputs": ids, "attention_mask": torch.ones_like(ids), "streamer": pieces,
                   "max_new_tokens": n, "min_new_tokens": n, "do_sample": False}).start()  # fmt: skip
            for piece in pieces:
                yield f"data: {json.dumps({'choices': [{'text': piece}]})}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
