"""Waiting with a limit, and ending tasks, so that a cancellation is never lost.

``asyncio.wait_for`` before Python 3.12 swallows a cancellation that arrives together with the result
(python/cpython issue 86296): the task then lives on, and whoever waits for its end waits in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")

_CANCEL_AGAIN_S = 1.0


async def within(work: Coroutine[Any, Any, _T], timeout_s: float | None) -> _T:
    """Return the result of ``work``.

    Raises:
        asyncio.TimeoutError: It took longer than ``timeout_s``; it is cancelled then.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        await end(task)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and return once they are over; what they raise is theirs."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()
