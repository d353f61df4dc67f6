"""From the rollout code's `complete` to verl's LLM servers."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from marsrl_verl.core.types import FinishReason, SamplingSettings
from marsrl_verl.rollout.single_call import FINISH_REASONS, Completion, EngineUnavailableError
from marsrl_verl.verl_adapter.engine_watch import is_refusal, reason
from marsrl_verl.verl_adapter.sampling import sampling_arguments


@dataclass(slots=True)
class GroupClient:
    """Asks verl's load balancer for a server and sends it a whole group.

    Uses verl's `LLMServerClient._acquire_server` and `_release_server`, so routing stays verl's.
    """

    llm_client: Any
    """verl's `LLMServerClient`."""

    async def complete(
        self, request_id: str, prompt_ids: list[int], settings: SamplingSettings, max_tokens: int, n: int
    ) -> list[Completion]:
        """See `marsrl_verl.rollout.single_call.CompletionClient`.

        Raises:
            EngineUnavailableError: the server or its engine is gone.
        """
        sampling = sampling_arguments(settings, max_tokens)
        server_id, server = await self.llm_client._acquire_server(request_id, prompt_ids=prompt_ids, n=n)
        try:
            # A fresh engine id: groups that continue one response share the request id, and a group is asked
            # again after a resume.
            answers = await server.generate_group.remote(
                prompt_ids, sampling, f"{request_id}:{uuid.uuid4().hex[:8]}", n
            )
        except RayError as error:
            if is_refusal(error):
                raise
            raise EngineUnavailableError(f"vLLM server {server_id} is gone: {reason(error)}") from error
        finally:
            self.llm_client._release_server(server_id, request_id=request_id)
        if not answers:
            return [Completion([], [], FinishReason.ABORTED) for _ in range(n)]
        return [
            Completion(tokens, log_probs, FINISH_REASONS.get(reason, FinishReason.ABORTED), version)
            for tokens, log_probs, reason, version in answers
        ]
