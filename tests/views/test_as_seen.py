"""What a person sees of a command's output: what a terminal would have shown, and nothing that acts on theirs."""

from __future__ import annotations

import pytest

from refold.views.shown import as_seen


@pytest.mark.parametrize(
    ("output", "seen"),
    [
        ("a\x1b[31mred\x1b[0m\n", "ared\n"),
        ("\x1b[2J\x1b[1;1Hx\x9b1my", "xy"),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "textlink"),
        ("\x1b]0;never ends\nnext", "\nnext"),
        ("\x1b(Bplain\x1b7\x1b8\x1bc", "plain"),
        ("10%\r50%\r100%\r\ndone\r\n", "100%\ndone\n"),
        ("\rfirst\r", "first"),
        ("tab\there \x07\x08\x7f\u202e", "tab\there "),
        ("no escape at all", "no escape at all"),
    ],
)
def test_output_is_shown_as_a_terminal_would(output: str, seen: str) -> None:
    assert as_seen(output) == seen
