"""FSDP2's offloading on a machine without pinned memory."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("verl")


@pytest.fixture
def group():
    """A process group of this process alone."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(policy: object | None) -> torch.Tensor:
    """A weight after two steps of two micro-batches, the first without a message, in bfloat16."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    settings = {
        "mesh": init_device_mesh("cpu", (1,)),
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        **({} if policy is None else {"offload_policy": policy}),
    }
    for module in (network[0], network):
        fully_shard(module, **settings)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for _ in range(2):
        for part in (1, 2):
            network.set_requires_gradient_sync(part == 2)
            network(torch.full((3, 8), float(part))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return network[0].weight.full_tensor().detach()


def test_verl_asks_for_pinned_memory_and_the_processor_trains_without(group, monkeypatch):
    from torch.distributed.fsdp import CPUOffloadPolicy
    from verl.workers.engine.fsdp import transformer_impl

    from marsrl_verl.verl_adapter.cpu.ranks import offload_without_pinned_memory

    monkeypatch.setattr(transformer_impl, "CPUOffloadPolicy", CPUOffloadPolicy)
    offload_without_pinned_memory()
    policy = transformer_impl.CPUOffloadPolicy(pin_memory=True)
    assert isinstance(policy, CPUOffloadPolicy) and not policy.pin_memory
    assert torch.equal(trained(policy), trained(None))
