"""What Forward Context Influence adds to a model's forward pass: time and memory of the pass for
log-probabilities without it and with it.

    python -m benchmarks.fci_forward                              # 1.5B in bf16 on the GPU
    python -m benchmarks.fci_forward --lengths 8192 --sequences 4 --json rows.json
    python -m benchmarks.fci_forward --shape small                # on the processor
    python -m benchmarks.fci_forward --layers 4 --lengths 1024    # the same with 1.5B's layers, in float32

The model has the shape of DeepSeek-R1-Distill-Qwen-1.5B or -7B and random weights, which take as long as
trained ones. The pass is that of old log-probabilities: a packed row of sequences, no key-value cache, and
the log-probability of every token from the logits of a chunk of tokens at a time. With FCI it is the same
pass inside `collect_influence`, and the layout of the steps is built too. Passes without and with FCI take
turns, so that a machine that slows down slows down both; a ratio is that of two neighbours.

With sdpa a row of several sequences has a mask of all its tokens by all its tokens. flash-attention, with
which runs train on GPUs, does without.

With `--layers` fewer layers are built. Then the logits have a larger share of the pass than in the whole
model, and what FCI adds to the layers alone is what counts (`of_layers`: the ratio of the times without the
logits). The whole model's ratio lies between the two.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.fci import DELTA, PROMPT, STEP, layout_of
from benchmarks.record import options, write_json
from benchmarks.timing import milliseconds, peak_memory, tensor_machine
from marsrl_verl.attention.choices import FciBackend
from marsrl_verl.attention.collector import collect_influence
from marsrl_verl.config.model_shapes import PUBLISHED

SHAPES: dict[str, dict[str, Any]] = {
    "1.5B": PUBLISHED["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"],
    "7B": PUBLISHED["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"],
    "small": {
        "model_type": "qwen2",
        "num_hidden_layers": 4,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 1000,
        "tie_word_embeddings": False,
    },
}
LOGITS_CHUNK = 1024
"""Tokens whose logits are held at a time: 0.6 GB in float32 with a vocabulary of 152k."""


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    shape: str
    layers: int
    all_layers: int
    """Layers of the whole model."""
    attention: str
    dtype: str
    backend: str
    sequences: int
    tokens: int
    """Tokens of a sequence."""


@dataclass
class Spread:
    """Ratios of neighbouring passes, with FCI over without."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Spread:
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        low, middle, high = (f"{100 * (one - 1):.1f}" for one in (self.low, self.median, self.high))
        return f"{middle} % ({low} to {high})"


@dataclass
class Row:
    """One measured setting. Times are medians over the repeats."""

    setting: Setting
    plain_ms: float
    influence_ms: float
    logits_ms: float
    """Of either pass: from the last hidden states to the log-probabilities. FCI does not touch it."""
    of_pass: Spread
    """Of the whole pass."""
    of_layers: Spread
    """Without the logits."""
    plain_peak_mib: float | None
    influence_peak_mib: float | None


class ForwardPass:
    """A model with random weights and a packed row of random tokens."""

    def __init__(self, setting: Setting, device: str) -> None:
        shape = {key: value for key, value in SHAPES[setting.shape].items() if value is not None}
        shape["num_hidden_layers"] = setting.layers
        config = AutoConfig.for_model(
            **shape, max_position_embeddings=setting.tokens, use_cache=False, dtype=setting.dtype
        )
        torch.manual_seed(0)
        with torch.device(device):
            self.model = AutoModelForCausalLM.from_config(
                config, attn_implementation=setting.attention, dtype=getattr(torch, setting.dtype)
            ).eval()
        row = setting.sequences * setting.tokens
        self.ids = torch.randint(0, config.vocab_size, (1, row), device=device)
        # Positions that begin anew tell the attention where a sequence ends.
        self.positions = torch.arange(setting.tokens, device=device).repeat(setting.sequences)[None]
        self._setting, self._device = setting, device

    @torch.no_grad()
    def hidden(self) -> torch.Tensor:
        """(N, hidden) of the last layer."""
        return self.model.model(input_ids=self.ids, position_ids=self.positions).last_hidden_state[0]

    @torch.no_grad()
    def token_log_probs(self, hidden: torch.Tensor) -> torch.Tensor:
        """(N,) float32 log-probability of the token that follows; at the row's end of its first token."""
        following = self.ids[0].roll(-1)
        parts = []
        for low in range(0, len(following), LOGITS_CHUNK):
            logits = self.model.lm_head(hidden[low : low + LOGITS_CHUNK]).float()
            chosen = logits.gather(1, following[low : low + LOGITS_CHUNK, None])[:, 0]
            parts.append(chosen - logits.logsumexp(1))
        return torch.cat(parts)

    def hidden_and_influence(self) -> tuple[torch.Tensor, torch.Tensor]:
        """With FCI: beside the hidden states (N, hidden) the influence (N,) of every token's step."""
        layout = layout_of(self._setting.tokens, self._device, self._setting.sequences)
        with collect_influence(self.model, layout, self._setting.backend) as collector:
            hidden = self.hidden()
        return hidden, collector.by_token()


def measure(setting: Setting, device: str, repeats: int) -> Row:
    """One setting, after a pass of each kind that is not measured."""
    work = ForwardPass(setting, device)
    kinds: list[Callable[[], torch.Tensor]] = [work.hidden, lambda: work.hidden_and_influence()[0]]
    for kind in kinds:
        whole_pass(work, kind)
    peaks = [peak_memory(partial(whole_pass, work, kind), device) for kind in kinds]
    layers: list[list[float]] = [[], []]
    logits: list[list[float]] = [[], []]
    for turn in range(repeats):
        for index in (0, 1) if turn % 2 == 0 else (1, 0):
            layers_ms, logits_ms = timed(work, kinds[index], device)
            layers[index].append(layers_ms)
            logits[index].append(logits_ms)
    totals = [[sum(both) for both in zip(*parts, strict=True)] for parts in zip(layers, logits, strict=True)]
    return Row(
        setting,
        plain_ms=statistics.median(totals[0]),
        influence_ms=statistics.median(totals[1]),
        logits_ms=statistics.median(logits[0] + logits[1]),
        of_pass=Spread.of([with_fci / plain for plain, with_fci in zip(*totals, strict=True)]),
        of_layers=Spread.of([with_fci / plain for plain, with_fci in zip(*layers, strict=True)]),
        plain_peak_mib=peaks[0],
        influence_peak_mib=peaks[1],
    )


def whole_pass(work: ForwardPass, kind: Callable[[], torch.Tensor]) -> torch.Tensor:
    """(N,) log-probabilities from what `kind` gives as hidden states."""
    return work.token_log_probs(kind())


def timed(work: ForwardPass, kind: Callable[[], torch.Tensor], device: str) -> tuple[float, float]:
    """Milliseconds of the layers and of the logits of one pass."""
    hidden: list[torch.Tensor] = []
    layers = milliseconds(lambda: hidden.append(kind()), device)
    return layers, milliseconds(lambda: work.token_log_probs(hidden[0]), device)


def line(row: Row) -> str:
    """A row as text."""
    one = row.setting
    text = (
        f"{one.shape:5s} {one.layers} of {one.all_layers} layers, {one.sequences} x {one.tokens:,d} tokens: "
        f"{row.plain_ms:,.1f} ms, with FCI {row.influence_ms:,.1f} ms (logits {row.logits_ms:,.1f} ms); "
        f"FCI adds {row.of_pass}, to the layers alone {row.of_layers}"
    )
    if row.plain_peak_mib is None or row.influence_peak_mib is None:
        return text
    return f"{text}; peak {row.plain_peak_mib:,.0f} MiB, with FCI {row.influence_peak_mib:,.0f} MiB"


def main(arguments: Sequence[str] | None = None) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    gpu, flash = device != "cpu", importlib.util.find_spec("flash_attn") is not None
    parser = options(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="1.5B")
    parser.add_argument("--layers", type=int, help="build so many layers only")
    parser.add_argument("--lengths", nargs="+", type=int, default=[2048, 4096, 8192] if gpu else [1024])
    parser.add_argument("--sequences", type=int, default=4 if gpu else 1, help="in the packed row")
    parser.add_argument(
        "--attention",
        choices=("sdpa", "flash_attention_2"),
        default="flash_attention_2" if gpu and flash else "sdpa",
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16" if gpu else "float32")
    parser.add_argument("--backend", choices=[one.value for one in FciBackend], default="auto")
    parser.add_argument("--repeats", type=int, default=20 if gpu else 5)
    parsed = parser.parse_args(arguments)
    if parsed.attention == "flash_attention_2" and not (gpu and flash):
        parser.error("--attention flash_attention_2 needs a GPU and flash-attn: use --attention sdpa")
    num_layers = SHAPES[parsed.shape]["num_hidden_layers"]
    layers = num_layers if parsed.layers is None else parsed.layers
    if not 0 < layers <= num_layers:
        parser.error(f"--layers is {layers}, expected 1 to {num_layers}, which {parsed.shape} has")
    least = PROMPT + (DELTA + 2) * STEP
    if min(parsed.lengths) < least:
        parser.error(
            f"--lengths has {min(parsed.lengths)}, expected {least} or more: no step would be measured"
        )

    head = tensor_machine(device)
    print(f"{head}\n{parsed.attention}, {parsed.dtype}, FCI by {parsed.backend}", flush=True)
    print(
        f"prompt {PROMPT}, steps of {STEP} tokens, delta {DELTA}, {parsed.repeats} repeats; medians (range)"
    )
    if layers < num_layers:
        print(
            f"{layers} of {num_layers} layers: what FCI adds to the layers alone is what counts", flush=True
        )
    rows = []
    for tokens in parsed.lengths:
        setting = Setting(
            parsed.shape,
            layers,
            num_layers,
            parsed.attention,
            parsed.dtype,
            parsed.backend,
            parsed.sequences,
            tokens,
        )
        rows.append(measure(setting, device, parsed.repeats))
        print(line(rows[-1]), flush=True)
    write_json(parsed.json, {"machine": head, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
