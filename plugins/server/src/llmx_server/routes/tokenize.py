"""POST /tokenize and /detokenize."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from llmx.errors import RequestError
from llmx_server.errors import JsonResponse
from llmx_server.protocol.api_fields import CHAT
from llmx_server.protocol.extra_fields import check_extra, warning_header
from llmx_server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from llmx_server.routing import Router
from llmx_server.served_models import open_body

__all__ = ["router"]

router = Router()


@router.post("/tokenize", body=TokenizeRequest)
async def tokenize(request: Request) -> Response:
    """Token ids of a text or of a rendered conversation."""
    serving, body = await open_body(request, TokenizeRequest)
    serving.model_name(body.model)
    phrases = check_extra(CHAT, body.model_extra)
    headers = warning_header([*phrases, *body.unread(await serving.template_variables(body.chat_template))])
    if (body.prompt is None) == (not body.messages):
        raise RequestError("exactly one of prompt and messages must be given", field="prompt")
    text = body.prompt if body.prompt is not None else await serving.render(body.template_arguments(), body.chat_template)
    special = body.add_special_tokens if body.add_special_tokens is not None else body.prompt is not None
    tokens = await serving.encode(text, add_special_tokens=special)
    strings = [serving.engine.tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None
    return JsonResponse({"count": len(tokens), "max_model_len": serving.engine.info.max_model_len, "tokens": tokens, "token_strs": strings}, headers=headers)


@router.post("/detokenize", body=DetokenizeRequest)
async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    serving, body = await open_body(request, DetokenizeRequest)
    serving.model_name(body.model)
    headers = warning_header(check_extra(CHAT, body.model_extra))
    vocab_size = serving.engine.info.vocab_size
    for index, token in enumerate(body.tokens):
        if not 0 <= token < vocab_size:
            raise RequestError(f"tokens[{index}] is {str(token)[:40]}: the vocabulary has {vocab_size} tokens (0..{vocab_size - 1})", field="tokens")
    return JsonResponse({"prompt": serving.engine.tokenizer.decode(body.tokens, skip_special_tokens=False)}, headers=headers)
