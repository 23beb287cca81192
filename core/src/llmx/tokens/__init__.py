"""Text and tokens: tokenizer, incremental detokenizer, stop strings, chat templates."""
