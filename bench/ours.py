"""refold doing what the bare loop does, with everything it does besides: a log on disk, limits, the rules in force."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from refold import Config, Hook, Profile, Provider, Question, ResponsesModel, Session, exec_command, tool


@tool
def nop() -> str:
    """Does nothing."""
    return "ok"


async def approve(question: Question) -> bool:
    raise AssertionError(f"nothing here has to be asked, but was: {question}")


def guarded() -> dict[str, Any]:
    """Permissions that hold, and a host that would be asked."""
    return {"config": Config(sandbox_mode="workspace-write", approval_policy="on-request"), "approve": approve}


async def main(url: str, home: str, resume: str | None) -> None:
    provider = Provider(id="bench", name="bench", base_url=url, env_key=None)
    model = ResponsesModel(Profile(slug="bench", context_window=100_000_000), provider)
    tools = [nop, exec_command]
    settings = guarded() if os.environ.get("BENCH_GUARDED") else {}
    if resume:
        session = Session.resume(resume, model=model, tools=tools, home=home, **settings)
    else:
        session = Session.start(model=model, tools=tools, home=home, **settings)
    session.hooks += [Hook()] if settings else []
    async with session:
        await session.send("go")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None))
