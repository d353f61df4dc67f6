"""verl's router of requests, for requests that are groups."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer


class GroupLoadBalancer(GlobalRequestLoadBalancer):
    """Counts the responses of a group, so that engines with unfinished groups are not taken for full ones.
    Upstream behaviour: every request counts as one. A group is one request of `n` responses, of which later
    rounds request those that are unfinished."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sizes: dict[tuple[str, str | None], list[int]] = {}
        """Sizes of the requests on their way, by server and request id, which continuations share."""

    def require_acquire_fields(self) -> list[str]:
        """Names of the facts that `ServerClient` gives about a group beside its id."""
        return ["n"]

    def require_release_fields(self) -> list[str]:
        """Names of the facts that identify the group whose responses are no longer on their way."""
        return ["request_id"]

    def acquire_server(self, request_id: str, n: int = 1) -> tuple[str, Any]:
        """The server of this request id, or the one with the fewest responses on their way."""
        server_id, server = super().acquire_server(request_id)
        self._inflight_requests[server_id] += n - 1
        self._sizes.setdefault((server_id, request_id), []).append(n)
        return server_id, server

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Counts a request of this id as answered."""
        sizes = self._sizes.get((server_id, request_id))
        n = sizes.pop() if sizes else 1
        if not sizes:
            self._sizes.pop((server_id, request_id), None)
        if server_id in self._inflight_requests:
            self._inflight_requests[server_id] = max(0, self._inflight_requests[server_id] - n)


class OneServerClient(LLMServerClient):
    """Reaches the only server there is, its id and its actor, without a router. Upstream behaviour:
    choosing a server and giving it back are two calls of an actor for every request, with short requests as
    much work as the request itself."""

    def __init__(self, *args: Any, server: tuple[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._server = server

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        return self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Does nothing: its requests are not counted."""
