"""The paged KV cache: what a page holds (spec), who owns it (block_pool, block_table), what is reused (prefix_cache)."""
