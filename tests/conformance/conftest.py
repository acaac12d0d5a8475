"""Says at the end of a run how many recorded scenarios are equal, and which are not yet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from test_scenarios import NOT_YET, ON_PURPOSE, SAME

    terminalreporter.write_line(
        f"conformance: {len(SAME)} recorded scenarios equal, {len(ON_PURPOSE)} differ on purpose, not yet: "
        + ("; ".join(f"{name} ({why})" for name, why in NOT_YET.items()) or "none")
    )
