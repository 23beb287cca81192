"""A random Llama of 2 layers and a byte-level tokenizer whose tokens are bytes and some pieces of JSON."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

__all__ = ["EOS", "TINY_VOCAB", "write_tiny_model"]

TINY_VOCAB = 384  # of the head; the tokenizer has fewer, the rest stands for no text
EOS = "</s>"
_PIECES = ('{"', '":', '",', '"}', "}}", "[]", "{}", "tr", "true", "nu", "null", "ab", "abc", "00", "  ", "\n ", '["', "],", '"]')


def write_tiny_model(folder: Path) -> Path:
    """Writes config.json, weights and tokenizer.json; the weights are large enough that every token is likely somewhere."""
    _tokenizer().save(str(folder / "tokenizer.json"))
    torch.manual_seed(7)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=TINY_VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=512, initializer_range=0.2, bos_token_id=256, eos_token_id=257, tie_word_embeddings=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _tokenizer() -> Tokenizer:
    spelling = _alphabet()
    words = [spelling[byte] for byte in range(256)] + ["<s>", EOS, "<tool>"]
    merges = []
    for piece in _PIECES:
        spelled = [spelling[byte] for byte in piece.encode()]
        left = max((len(cut) for cut in words if cut in words and "".join(spelled).startswith(cut) and len(cut) < len(spelled)), default=1)
        pair = ("".join(spelled[:left]), "".join(spelled[left:]))
        if pair[1] in words:
            merges.append(pair)
            words.append("".join(pair))
    made = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True) for word in ("<s>", EOS, "<tool>")])
    return made


def _alphabet() -> list[str]:
    """The character of every byte, in the order of the bytes (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(rest)) for byte in range(256)]
