"""Published files by name: where a row's parts stand, and what kind of problem it is.

A source is one declaration in `SOURCES`. Nothing is downloaded and no file is part of the package: `origin`
says where its user gets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marsrl_verl.data.columns import Columns
from marsrl_verl.data.problems import DAPO_INSTRUCTION, Instruction
from marsrl_verl.rewards.by_ability import MATH, QA

BOX_INSTRUCTION = Instruction(after="Let's think step by step and output the final answer within \\boxed{}.")
"""What verl's examples of mathematics, and files made like them, put behind every problem."""
_ARPO_SETS = "github.com/RUC-NLPIR/ARPO"
_ARPO_LICENCE = "README: MIT"


@dataclass(frozen=True, slots=True)
class Source:
    """A published file, or several of one form."""

    origin: str
    """Repository and file."""
    licence: str
    """As its origin states it; empty: it states none that we know of."""
    columns: Columns
    """Where a row's parts stand; `Columns.ability` is None where the rows say their own."""
    instruction: Instruction | None = None
    """Taken off wherever it stands around a problem; the prompts' class words its own."""
    max_bad_frac: float = 0.01
    """Most bad rows, as a share of all, that are left out; more are refused: then it is another file."""


def _plain(
    name: str | None, ability: str, question: str = "question", answer: str = "answer", **more: Any
) -> Columns:
    """Columns of plain text; `name` is every row's data source."""
    # A list of accepted answers is common among questions; in mathematics `[1, 2]` is an interval.
    lists = ability == QA
    return Columns(question, answer, data_source=name, ability=ability, answer_lists=lists, **more)


def _arpo_questions(name: str, folder: str, licence: str) -> Source:
    """A test set of ARPO's evaluation: {question, answer}, the answer a text or a list of aliases."""
    return Source(f"{_ARPO_SETS}: evaluation/data/{folder}/test.jsonl", licence, _plain(name, QA))


def _arpo_mathematics(name: str, folder: str, licence: str) -> Source:
    return Source(f"{_ARPO_SETS}: evaluation/data/{folder}/test.jsonl", licence, _plain(name, MATH))


SOURCES: Mapping[str, Source] = {
    # --- ARPO ---------------------------------------------------------------------------------------
    "arpo_train": Source(
        f"{_ARPO_SETS}: ARPO/rl_datasets/train_10k.parquet, valid.parquet (Hugging Face: "
        "dongguanting/ARPO-RL-Reasoning-10K)",
        _ARPO_LICENCE,
        Columns(),  # the rows name `math` or `qa`
    ),
    "arpo_deep_search": Source(
        f"{_ARPO_SETS}: ARPO/rl_datasets/hard_search_1k.parquet, gaia_test.parquet, hle_test.parquet "
        "(Hugging Face: dongguanting/ARPO-RL-DeepSearch-1K)",
        f"{_ARPO_LICENCE}; GAIA and HLE are not to be shared on",
        Columns(ability=QA, answer_lists=True),  # the column `ability` is null
    ),
    "arpo_hotpotqa": _arpo_questions("hotpotqa", "hotpotqa", "CC BY-SA 4.0"),
    "arpo_2wiki": _arpo_questions("2wiki", "2wiki", "Apache-2.0"),
    "arpo_musique": _arpo_questions("musique", "musique", "CC BY 4.0"),
    "arpo_bamboogle": _arpo_questions("bamboogle", "bamboogle", "MIT"),
    "arpo_simpleqa": _arpo_questions("simpleqa", "SimpleQA", "MIT"),
    "arpo_webwalker": _arpo_questions("webwalker", "webwalker", "MIT"),
    "arpo_xbench": _arpo_questions("xbench", "xbench", "not to be shared on"),
    "arpo_gaia": _arpo_questions("gaia", "gaia", "not to be shared on"),
    "arpo_hle": _arpo_questions("hle", "hle", "not to be shared on"),
    "arpo_gsm8k": _arpo_mathematics("gsm8k", "gsm8k", "MIT"),
    "arpo_math500": _arpo_mathematics("math500", "math500", "MIT"),
    "arpo_aime24": _arpo_mathematics("aime24", "aime24", "problems © MAA"),
    "arpo_aime25": _arpo_mathematics("aime25", "aime25", "problems © MAA"),
    # --- ReMA ---------------------------------------------------------------------------------------
    "rema_math": Source(
        "github.com/ziyuwan/ReMA-public: data/MATH/*.parquet, data/overall_math/test.parquet",
        "Apache-2.0; MATH: MIT",
        # `prompt` asks for a box; the released code reads `question`. `subset` tells test sets apart.
        Columns(
            question="question",
            ability=MATH,
            data_source_column="subset",
            extra=("level", "type", "subject"),
        ),
    ),
    # --- AttnRL -------------------------------------------------------------------------------------
    "attnrl": Source(
        "github.com/RyanLiu112/AttnRL: data/train/dapo+math_train.parquet, data/eval/*.parquet "
        "(of the copies in `_4` and `_64` one stays)",
        "Apache-2.0; AIME, AMC: problems © MAA",
        Columns(ability=MATH),
        BOX_INSTRUCTION,
    ),
    "deepscaler": Source(
        "huggingface.co/datasets/agentica-org/DeepScaleR-Preview-Dataset: deepscaler.json",
        "MIT",
        _plain("deepscaler", MATH, "problem"),
    ),
    # --- training and test sets of many papers --------------------------------------------------------
    "dapo_math": Source(
        "huggingface.co/datasets/BytedTsinghua-SIA/DAPO-Math-17k: data/dapo-math-17k.parquet; "
        "huggingface.co/datasets/BytedTsinghua-SIA/AIME-2024: data/aime-2024.parquet",
        "Apache-2.0",
        Columns(ability=MATH),
        DAPO_INSTRUCTION,
    ),
    "gsm8k": Source(
        "github.com/openai/grade-school-math: grade_school_math/data/train.jsonl, test.jsonl",
        "MIT",
        _plain("gsm8k", MATH, answer_after="####"),
    ),
    "math": Source(
        "huggingface.co/datasets/EleutherAI/hendrycks_math: */train-*.parquet, */test-*.parquet",
        "MIT",
        _plain("math", MATH, "problem", "solution", answer_boxed=True, extra=("level", "type")),
    ),
    "hotpotqa": Source(
        "hotpotqa.github.io: hotpot_train_v1.1.json, hotpot_dev_distractor_v1.json",
        "CC BY-SA 4.0",
        _plain("hotpotqa", QA, extra=("level", "type")),
    ),
    "2wiki": Source(
        "github.com/Alab-NII/2wikimultihop: train.json, dev.json",
        "Apache-2.0",
        _plain("2wiki", QA, extra=("type",)),
    ),
    "musique": Source(
        "github.com/StonyBrookNLP/musique: musique_ans_v1.0_train.jsonl, musique_ans_v1.0_dev.jsonl",
        "CC BY 4.0",
        _plain("musique", QA, aliases="answer_aliases"),
    ),
    "bamboogle": Source(
        "huggingface.co/datasets/chiayewken/bamboogle: data/test-*.parquet",
        "MIT",
        _plain("bamboogle", QA, "Question", "Answer"),
    ),
}
