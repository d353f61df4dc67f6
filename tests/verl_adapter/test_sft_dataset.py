"""What verl's SFT trainer learns of an answer with results of tools in it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from tokenizers.normalizers import Prepend
from transformers import AutoTokenizer
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

from marsrl_verl.demo.assets import model_path
from marsrl_verl.verl_adapter.sft_dataset import ToolResultsMasked

ANSWER = (
    "<think>a</think><python>1+1</python> <result>\n2\n</result> <think>b</think><python>2+2</python>"
    "<result>4 </think></result><answer>\\boxed{4}</answer>"
)


def learnt(dataset, tmp_path, messages, tokenizer) -> str:
    """The text of the tokens that have a loss."""
    pq.write_table(pa.Table.from_pylist([{"messages": messages}]), tmp_path / "rows.parquet")
    config = OmegaConf.create({"pad_mode": "no_padding", "max_length": 4096})
    row = dataset(str(tmp_path / "rows.parquet"), tokenizer, config)[0]
    return tokenizer.decode(row["input_ids"][row["loss_mask"] == 1])


def test_results_in_an_answer_have_no_loss(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    messages = [
        {"role": "system", "content": "<result>no</result>"},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": ANSWER},
    ]
    whole = learnt(MultiTurnSFTDataset, tmp_path, messages, tokenizer)
    assert whole == f"{ANSWER}<|end|>"
    own = learnt(ToolResultsMasked, tmp_path, messages, tokenizer)
    assert own == (
        "<think>a</think><python>1+1</python> <think>b</think><python>2+2</python>"
        "<answer>\\boxed{4}</answer><|end|>"
    )


def test_a_tokenizer_that_reads_its_own_text_otherwise_is_refused(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    tokenizer.backend_tokenizer.normalizer = Prepend("x")  # before each text, also before its own
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ANSWER}]
    with pytest.raises(ValueError, match="reads its own text otherwise"):
        learnt(ToolResultsMasked, tmp_path, messages, tokenizer)
