"""Writes llama_ids.json: what llama.cpp makes of the strings of script_strings. Run it where llama-cpp-python is installed:

    PYTHON tests/tokens/make_llama_ids.py smollm2=SmolLM2-135M-Instruct.Q4_1.gguf gemma3=gemma-3-270m-q4_k_m.gguf

The file holds one digest for each 20 strings of a script.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path

from llama_digest import digests  # beside this file, so that llmx need not be installed
from script_strings import SCRIPTS, strings_of


def main() -> None:
    """Fill in the models that the command line names; others stay as they are."""
    from llama_cpp import Llama, __version__  # type: ignore[import-not-found]

    if unicodedata.unidata_version < "14":
        sys.exit(f"this Python knows Unicode {unicodedata.unidata_version}, 14 or newer is needed")
    for script, runs in SCRIPTS.items():
        gaps = [hex(c) for low, high in runs for c in range(low, high + 1) if unicodedata.category(chr(c)) == "Cn"]
        assert not gaps, f"{script}: not assigned: {gaps}"
    out = Path(__file__).with_name("llama_ids.json")
    table = json.loads(out.read_text()) if out.exists() else {"models": {}}
    table["llama_cpp_python"] = __version__
    for item in sys.argv[1:]:
        name, _, path = item.partition("=")
        engine = Llama(path, vocab_only=True, verbose=False)
        ids = {script: [engine.tokenize(text.encode(), add_bos=False, special=True) for text in strings_of(script)] for script in SCRIPTS}
        table["models"][name] = digests(ids)
        print(name, sum(map(len, ids.values())), "strings")
    out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
