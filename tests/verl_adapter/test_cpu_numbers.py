"""The CPU platform's replacements of upstream operations give upstream's numbers, and their gradients."""

from __future__ import annotations

import sys
import types

import pytest
import torch

pytest.importorskip("verl", reason="compares with verl's functions")


@pytest.fixture
def linear_layer(monkeypatch):
    """vLLM's functions around a linear layer, restored afterwards, and a maker of layers with its loader."""
    vllm_linear = pytest.importorskip("vllm.model_executor.layers.linear", reason="needs vLLM")
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("vLLM packs linear weights on CPU only")
    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", utils.dispatch_cpu_unquantized_gemm)
    method = vllm_linear.UnquantizedLinearMethod()

    def loaded(weight: torch.Tensor) -> torch.nn.Module:
        layer = torch.nn.Module()
        layer.register_parameter("weight", torch.nn.Parameter(weight.clone(), requires_grad=False))
        method.process_weights_after_loading(layer)
        return layer

    return utils, loaded


def test_linear_layers_multiply_with_the_weights_of_the_last_sync(linear_layer):
    """Upstream: vLLM packs the weight and empties `layer.weight`, so a sync finds nothing to load into."""
    from marsrl_verl.verl_adapter.cpu.vllm_linear import keep_linear_weights

    utils, loaded = linear_layer
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(64, 32, generator=generator) for _ in range(2))
    inputs, bias = torch.randn(5, 32, generator=generator), torch.randn(64, generator=generator)
    assert loaded(first).weight.numel() == 0, "vLLM no longer empties the weight: is our change still needed?"

    keep_linear_weights()
    layer = loaded(first)
    expected = torch.nn.functional.linear(inputs, first, bias)
    torch.testing.assert_close(utils.cpu_unquantized_gemm(layer, inputs, layer.weight, bias), expected)
    layer.weight.data.copy_(second)
    expected = torch.nn.functional.linear(inputs, second)
    torch.testing.assert_close(utils.cpu_unquantized_gemm(layer, inputs, layer.weight), expected)


def test_modules_that_imported_the_packing_function_by_name_get_ours(linear_layer, monkeypatch):
    """Upstream: vLLM may import `dispatch_cpu_unquantized_gemm` by name, and a name keeps the old one."""
    from marsrl_verl.verl_adapter.cpu.vllm_linear import keep_linear_weights

    utils, _ = linear_layer
    importer, stranger = types.ModuleType("vllm.importer"), types.ModuleType("stranger")
    for module in (importer, stranger):
        module.dispatch_cpu_unquantized_gemm = utils.dispatch_cpu_unquantized_gemm
        monkeypatch.setitem(sys.modules, module.__name__, module)
    packing = utils.dispatch_cpu_unquantized_gemm
    keep_linear_weights()
    assert importer.dispatch_cpu_unquantized_gemm is utils.dispatch_cpu_unquantized_gemm is not packing
    assert stranger.dispatch_cpu_unquantized_gemm is packing, "only vLLM's own modules are changed"


def layer_of_experts() -> torch.nn.Module:
    """Four experts of 64 on hidden states of 64, with the loader that a sync asks for."""
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Module()
    layer.activation = MoEActivation.SILU
    for name, shape in (("w13_weight", (4, 128, 64)), ("w2_weight", (4, 64, 64))):
        weight = torch.nn.Parameter(torch.randn(shape, generator=generator), requires_grad=False)
        weight.weight_loader = weight.data.copy_
        layer.register_parameter(name, weight)
    return layer


def mixed(layer: torch.nn.Module, inputs: torch.Tensor, router: torch.Tensor) -> torch.Tensor:
    """What two experts of four say to each input, by their shares."""
    shares, chosen = router.softmax(-1).topk(2)
    shares = shares / shares.sum(-1, keepdim=True)
    result = torch.zeros_like(inputs)
    for row, (parts, experts) in enumerate(zip(shares, chosen, strict=True)):
        for part, expert in zip(parts, experts, strict=True):
            gate, up = (layer.w13_weight[expert] @ inputs[row]).chunk(2)
            result[row] += part * (layer.w2_weight[expert] @ (torch.nn.functional.silu(gate) * up))
    return result


def test_experts_multiply_with_the_weights_of_the_last_sync(linear_layer, monkeypatch):
    """Upstream: vLLM packs the experts into new parameters, and a sync finds no loader."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.fused_moe.cpu_fused_moe import CPUFusedMOE

    from marsrl_verl.verl_adapter.cpu.vllm_linear import keep_expert_weights

    for name in ("check_grouped_gemm", "_pad_moe_intermediate_for_grouped_gemm"):
        monkeypatch.setattr(CPUFusedMOE, name, getattr(CPUFusedMOE, name, None), raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)  # it takes bfloat16 alone
    packed = layer_of_experts()
    CPUFusedMOE(packed)
    packs = hasattr(torch.ops._C, "prepack_moe_weight")  # vLLM's build for processors without AVX-512 can't
    assert hasattr(packed.w13_weight, "weight_loader") != packs, "is our change still needed?"

    keep_expert_weights()
    layer = layer_of_experts()
    experts = CPUFusedMOE(layer)
    generator = torch.Generator().manual_seed(1)
    inputs, router = torch.randn(5, 64, generator=generator), torch.randn(5, 4, generator=generator)
    for _ in range(2):
        with set_current_vllm_config(VllmConfig()):  # 0.24.0 makes activations on the way
            found = experts(layer, inputs.clone(), False, 2, router, True, global_num_experts=4)
        torch.testing.assert_close(found, mixed(layer, inputs, router), rtol=1e-4, atol=1e-3)
        for weight in layer.parameters():
            weight.weight_loader(torch.randn(weight.shape, generator=generator))
