"""The rule by which whatever may fail for a while is repeated: endpoints and calls of tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt


def repeated(
    retries: int,
    backoff_s: float,
    *,
    longest_s: float,
    share: Callable[[int], float],
    again: Callable[[RetryCallState], bool],
) -> AsyncRetrying:
    """Calls a coroutine function again and again, with pauses that double from attempt to attempt, by half at
    random, so that not all come back at once. What the last attempt returns or raises comes out.

    The first pause is at most `backoff_s`, none is above `longest_s`, not even one that an error requests
    (`wait_s`). `share` is a number from 0 to 1 for the pause after attempt 1, 2, …; `again` is tenacity's
    predicate of an attempt that may pass.
    """

    def pause(state: RetryCallState) -> float:
        asked = getattr(state.outcome and state.outcome.exception(), "wait_s", 0.0)
        number = state.attempt_number
        return min(longest_s, max(asked, backoff_s * 2.0 ** (number - 1) * (0.5 + 0.5 * share(number))))

    def last(state: RetryCallState) -> Any:
        return state.outcome and state.outcome.result()

    return AsyncRetrying(
        stop=stop_after_attempt(retries + 1), wait=pause, retry=again, retry_error_callback=last
    )
