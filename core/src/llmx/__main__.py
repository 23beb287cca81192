"""The `llmx` command: checks the machine, then hands over to llmx_cli."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line; the exit status."""
    if not sys.platform.startswith("linux"):
        sys.stderr.write(f"llmx runs on Linux (x86-64 or aarch64; WSL2 works), not on {sys.platform}\n")
        return 2
    try:
        from llmx_cli.entry import run
    except ModuleNotFoundError as error:
        if error.name != "llmx_cli":
            raise
        sys.stderr.write("the command line is not installed: pip install llmx-cli\n")
        return 2
    return int(run() or 0)


if __name__ == "__main__":
    sys.exit(main())
