"""Developer: the instructions of the host or the user, told with everything else, not by difference (oracle §8).

They have no place in the snapshot, as in the real program: another text counts from the next compaction on.
"""

from __future__ import annotations

from typing import Any

from refold.core.fragments import KIND_DEVELOPER
from refold.core.world.section import Fragment, Section, World

ID = "developer_instructions"


def _render(world: World, before: Any) -> list[Fragment]:
    text = world.texts.get(ID, "")
    return [Fragment("developer", KIND_DEVELOPER, text)] if text.strip() else []


DEVELOPER = Section(ID, _render)
