"""Templates: every text that a model may see, one file each; the only place in core that reads files.

`handoff` and `summary_prefix` are constants of the protocol (NOTICE): not a byte of them may change.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["template"]

FOLDER = Path(__file__).parent


@cache
def template(name: str) -> str:
    """The text of `name`.md exactly as the file has it; every one but `summary_prefix` ends with a newline.

    Raises FileNotFoundError when there is no such template.
    """
    return (FOLDER / f"{name}.md").read_bytes().decode()
