"""TokenizerView: a model's tokenizer under the names that scripts know from transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmx.errors import RequestError
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["TokenizerView"]


class TokenizerView:
    """What get_tokenizer gives. Anything that is not named here is asked of `tokenizer`."""

    def __init__(self, tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self._template = chat_template

    def __getattr__(self, name: str) -> Any:
        if name == "tokenizer":  # not set yet, as while it is copied
            raise AttributeError(name)
        return getattr(self.tokenizer, name)

    def __len__(self) -> int:
        return self.tokenizer.vocab_size

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> Mapping[str, Any]:
        """{"input_ids": ids, "attention_mask": ones}, lists of them for several texts. Nothing is padded or cut."""
        ids: Any = self.encode(text, add_special_tokens) if isinstance(text, str) else [self.encode(one, add_special_tokens) for one in text]
        ones: Any = [1] * len(ids) if isinstance(text, str) else [[1] * len(one) for one in ids]
        return {"input_ids": ids, "attention_mask": ones}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of the ids; special tokens are shown unless they are to be skipped."""
        return self.tokenizer.decode([token_ids] if isinstance(token_ids, int) else list(token_ids), skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        """Texts of several lists of ids."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Id of a token as the vocabulary writes it, None without one; a list for several."""
        return self.tokenizer.token_id(tokens) if isinstance(tokens, str) else [self.tokenizer.token_id(token) for token in tokens]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> Any:
        """The prompt of one conversation, or of each of several: token ids, or its text with tokenize=False."""
        if "chat_template" in variables:
            raise RequestError("chat_template is no variable: give another template to LLM.chat or LLM(chat_template=...)", field="chat_template")
        options = {"tools": tools, "add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message, **variables}
        if conversation and not isinstance(conversation[0], Mapping):
            return [self.apply_chat_template(one, tokenize=tokenize, **options) for one in conversation]
        text = self._template.render(conversation, **options)
        return self.tokenizer.encode(text, add_special_tokens=False) if tokenize else text

    @property
    def chat_template(self) -> str | None:
        """The template's source, None without one."""
        return next(iter(self._template.sources.values()), None)

    @property
    def eos_token_id(self) -> int | None:
        """The first id that ends an answer."""
        return next(iter(self.tokenizer.eos_ids), None)

    @property
    def bos_token_id(self) -> int | None:
        """The id that begins a text, None without one."""
        return self.tokenizer.bos_id

    @property
    def eos_token(self) -> str | None:
        """Its text."""
        return self.tokenizer.names.get("eos_token")

    @property
    def bos_token(self) -> str | None:
        """Its text."""
        return self.tokenizer.names.get("bos_token")

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of all control tokens, ascending."""
        return sorted(self.tokenizer.special_ids)
