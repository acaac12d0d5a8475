"""Connected: work that is done for as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.types import Receive


async def while_connected(gone: Callable[[], Coroutine[Any, Any, None]], work: Callable[[], Awaitable[None]]) -> bool:
    """Do the work; when `gone` returns first, cancel it. Whether it was done. Raises what the work raises."""
    failure: list[Exception] = []

    async def doing() -> bool:
        try:
            await work()
        except Exception as error:  # told as it is, not in a group
            failure.append(error)
        return True

    async with asyncio.TaskGroup() as group:
        task = group.create_task(doing())
        watching = group.create_task(_watched(gone, task))
        task.add_done_callback(lambda _: watching.cancel())
    if failure:
        raise failure[0]
    return not task.cancelled()


async def _watched(gone: Callable[[], Coroutine[Any, Any, None]], task: asyncio.Task[bool]) -> None:
    await gone()
    task.cancel()


def disconnect_of(receive: Receive) -> Callable[[], Coroutine[Any, Any, None]]:
    """What waits until the client of an HTTP request has left; the request's body has been read."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    return gone
