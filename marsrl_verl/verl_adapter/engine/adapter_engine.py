"""verl's FSDP engine with a LoRA adapter for each policy, on one frozen model.

Each adapter has an optimizer and a schedule of its own, which move when it is its policy's turn. The selected
adapter is the one that computes and trains; all others stay as they are, bit for bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, get_peft_model_state_dict
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import offload_fsdp_optimizer
from verl.utils.py_functional import convert_to_regular_types

from marsrl_verl.core.seeding import derive_seed
from marsrl_verl.verl_adapter.checkpoint.trained_weights import ADAPTERS
from marsrl_verl.verl_adapter.engine.warmup_engine import WarmupFSDPEngine

AdapterFiles = dict[str, bytes]
"""A PEFT folder's files by name."""


class PerAdapter:
    """Optimizers or schedules by adapter, as verl's checkpoint manager takes one: with a state."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = dict(parts)

    def state_dict(self) -> dict[str, Any]:
        """Their states, by adapter."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with saved states; ValueError if they are of other adapters."""
        if state.keys() != self.parts.keys():
            raise ValueError(
                f"the checkpoint has optimizers of the adapters {sorted(state)}, this run trains "
                f"{sorted(self.parts)}"
            )
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


class AdapterFSDPEngine(WarmupFSDPEngine):
    """Upstream behaviour: a model with LoRA has one adapter, named `default`, and one optimizer over all
    parameters; where its matrices begin depends on what was drawn before them."""

    adapters: ClassVar[tuple[str, ...]] = ()
    """The policies of this process's engine, where the model has adapters (`lora_rank`)."""
    learning_rates: ClassVar[Mapping[str, float]] = MappingProxyType({})
    """Learning rates of policies that have one of their own."""

    _selected: str | None = None
    _optimizers: Mapping[str, Optimizer] = MappingProxyType({})
    _schedules: Mapping[str, LambdaLR] = MappingProxyType({})

    def initialize(self) -> None:
        """Initializes as upstream; a checkpoint has the optimizers of all adapters."""
        super().initialize()
        if self._is_lora and self._optimizers:
            self.checkpoint_manager.optimizer = PerAdapter(self._optimizers)
            self.checkpoint_manager.lr_scheduler = PerAdapter(self._schedules)

    def _build_lora_module(self, module: torch.nn.Module) -> PeftModel:
        """The model with an adapter for each policy, B = 0, A drawn by seed and name."""
        if not self.adapters:
            raise ValueError("lora_rank is above 0, and no policy was named that has an adapter")
        module.enable_input_require_grads()  # type: ignore[operator]
        dtype = next(module.parameters()).dtype
        adapted: Any = None
        for name in self.adapters:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_seed(int(self.engine_config.seed), "adapter", name))
                if adapted is None:
                    adapted = get_peft_model(module, self._lora_config(), adapter_name=name)
                else:
                    adapted.add_adapter(name, self._lora_config())
        for name in self.adapters:
            for parameter in _parameters(adapted, name).values():
                parameter.data = parameter.data.to(dtype)  # FSDP shards one number format
                parameter.requires_grad_(True)
        return adapted

    def _lora_config(self) -> LoraConfig:
        """verl's LoRA settings of the model, as upstream."""
        model = self.model_config
        return LoraConfig(
            base_model_name_or_path=model.path,
            task_type=TaskType.CAUSAL_LM,
            r=model.lora_rank,
            lora_alpha=model.lora_alpha,
            target_modules=convert_to_regular_types(model.target_modules),
            target_parameters=convert_to_regular_types(model.target_parameters),
            exclude_modules=convert_to_regular_types(model.exclude_modules),
            bias="none",
        )

    def _build_optimizer(self, module: torch.nn.Module) -> Optimizer:
        if not self._is_lora:
            return super()._build_optimizer(module)
        self._optimizers = {
            name: super(AdapterFSDPEngine, self)._build_optimizer(
                torch.nn.ParameterList(_parameters(module, name).values())
            )
            for name in self.adapters
        }
        for name, rate in self.learning_rates.items():
            for group in self._optimizers[name].param_groups:
                group["lr"] = rate  # from which the schedule takes it
        return self._optimizers[self.adapters[0]]

    def _build_lr_scheduler(self, optimizer: Optimizer) -> LambdaLR:
        if not self._is_lora:
            return super()._build_lr_scheduler(optimizer)
        self._schedules = {
            name: super(AdapterFSDPEngine, self)._build_lr_scheduler(one)
            for name, one in self._optimizers.items()
        }
        return self._schedules[self.adapters[0]]

    def select_adapter(self, policy: str) -> None:
        """Lets this policy's adapter compute and train from now on; ValueError if it has none. Nothing to do
        where all weights are one policy's."""
        if not self._is_lora:
            return
        if policy not in self.adapters:
            raise ValueError(
                f"policy {policy!r} has no adapter here, those that do: {', '.join(self.adapters)}"
            )
        if policy != self._selected:
            self.module.set_adapter(policy)
            self._selected = policy
            if self._optimizers:  # none where nothing is trained
                self.optimizer, self.lr_scheduler = self._optimizers[policy], self._schedules[policy]
        # peft freezes the other adapters, and all of them around a pass without any. FSDP looks at it when it
        # gathers a weight; what has no gradient is not moved anyway.
        for parameters in (_parameters(self.module, name) for name in self.adapters):
            for parameter in parameters.values():
                parameter.requires_grad_(True)

    def optimizers(self) -> list[tuple[Optimizer, LambdaLR]]:
        """Each optimizer with its schedule."""
        if not self._is_lora:
            return [(self.optimizer, self.lr_scheduler)]
        return [(self._optimizers[name], self._schedules[name]) for name in self.adapters]

    def export_adapter(self, policy: str) -> AdapterFiles | None:
        """The files of a PEFT folder that transformers and vLLM load; None on all ranks but the first.
        Collective over the ranks."""
        parameters = {name: _full_tensor(one) for name, one in _parameters(self.module, policy).items()}
        if self.rank != 0:
            return None
        from safetensors.torch import save_file

        state = get_peft_model_state_dict(self.module, state_dict=parameters, adapter_name=policy)
        weights = {name: value.contiguous() for name, value in state.items()}
        with tempfile.TemporaryDirectory() as folder:
            save_file(weights, Path(folder) / "adapter_model.safetensors")
            self.module.peft_config[policy].save_pretrained(folder)
            return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Loads as upstream, and offloads all optimizers; upstream offloads the selected one alone."""
        super().load_checkpoint(*args, **kwargs)
        if self._is_lora and self._is_offload_optimizer:
            for optimizer, _ in self.optimizers():
                offload_fsdp_optimizer(optimizer)

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Saves as upstream, and each adapter as a PEFT folder."""
        super().save_checkpoint(local_path, *args, **kwargs)
        for name in self.adapters if self._is_lora else ():
            files = self.export_adapter(name)
            folder = Path(local_path) / ADAPTERS / name
            for file, content in (files or {}).items():
                folder.mkdir(parents=True, exist_ok=True)
                (folder / file).write_bytes(content)


def _parameters(module: torch.nn.Module, adapter: str) -> dict[str, torch.nn.Parameter]:
    """An adapter's parameters, by their names in the model."""
    found = {}
    for name, parameter in module.named_parameters():
        parts = name.split(".")  # …, q_proj, lora_A, <adapter>, weight
        if any(kind.startswith("lora_") and whose == adapter for kind, whose in pairwise(parts)):
            found[name] = parameter
    return found


def _full_tensor(parameter: torch.Tensor) -> torch.Tensor:
    """The whole of a sharded parameter, in main memory. An offloaded one is gathered on the device, too,
    since the ranks' messages need it there."""
    tensor = parameter.detach().to(get_device_id())
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu().clone()
