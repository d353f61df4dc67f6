"""Dialogues for supervised training: what becomes one, what is left out; rollouts go on from there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rema_dialogue_script import END, Stage, Talking, Words, shown

from marsrl_verl.algos.rema.prompts import FINISH, META_THINKING, REASONING, MathDialogue
from marsrl_verl.demo.assets import model_path
from marsrl_verl.testing.client import CharacterTokenizer
from studies.rema_data import marked_solutions, sft
from studies.supervised_rows import is_held_out

SCRIPT = Path(__file__).parents[2] / "examples" / "sft" / "rema.sh"


def marked(*parts: str) -> str:
    """Parts in turn, the meta-thinking agent's first."""
    roles = (META_THINKING, REASONING)
    return "\n".join(f"<{roles[k % 2]}>{text}</{roles[k % 2]}>" for k, text in enumerate(parts))


GOOD = marked("Add them.", "1 + 1 = 2.", "Right, say so.", "It is \\boxed{2}.")


def test_two_lists_of_messages_with_the_prompts_of_training():
    one = marked_solutions.dialogue_of("1+1?", marked_solutions.parts_of(GOOD))
    assert one.turns == 2 and one.messages[2] == f"Right, say so. {FINISH}"
    found, prompts = marked_solutions.views(one, MathDialogue()), MathDialogue()
    said, did = found[META_THINKING], found[REASONING]
    assert [m["role"] for m in said] == ["system", "user", "assistant", "user", "assistant"]
    assert [m["role"] for m in did] == ["system", "user", "assistant", "user", "assistant"]
    assert said[0]["content"] == prompts.meta_thinking_system and said[1]["content"] == "1+1?"
    assert did[1]["content"].endswith("Instruction:\nAdd them.")
    assert [m["content"] for m in said[2:]] == ["Add them.", "1 + 1 = 2.", f"Right, say so. {FINISH}"]
    assert [m["content"] for m in did[2:]] == ["1 + 1 = 2.", f"Right, say so. {FINISH}", "It is \\boxed{2}."]


@pytest.mark.parametrize(
    ("solution", "last"),
    [
        # Where the agents of the released data write [FINISH], and what is left of a formula around it.
        (marked(f"Go. {FINISH}", f"\\boxed{{2}} {FINISH}"), (f"Go. {FINISH}", "\\boxed{2}")),
        (marked(f"So it is \\({FINISH}\\).", "\\boxed{2}"), (f"So it is . {FINISH}", "\\boxed{2}")),
        (marked(f"So it is ${FINISH}$", "\\boxed{2}"), (f"So it is {FINISH}", "\\boxed{2}")),
        (marked(f"{FINISH} Go.", "Hm.", "Done.", "\\boxed{2}"), (f"Done. {FINISH}", "\\boxed{2}")),
        # Empty parts, and two of one agent.
        (marked("Go.", "", "Then this.", "\\boxed{2}"), (f"Go.\n\nThen this. {FINISH}", "\\boxed{2}")),
        (marked("Go.", "One.", FINISH, "\\boxed{2}"), (f"Go. {FINISH}", "One.\n\n\\boxed{2}")),
        # Formulas that are not empty stay.
        (
            marked("Cost: $5, then $$6$$ \\(x\\).", "\\boxed{2}"),
            (f"Cost: $5, then $$6$$ \\(x\\). {FINISH}", "\\boxed{2}"),
        ),
    ],
)
def test_finish_stands_at_the_end_of_the_last_instruction_alone(solution, last):
    one = marked_solutions.dialogue_of("?", marked_solutions.parts_of(solution))
    assert one.messages[-2:] == last
    assert sum(text.count(FINISH) for text in one.messages) == 1


UNFIT = {
    "a part begins inside of another": "<meta_thinking>a<reasoning>b</reasoning></meta_thinking>",
    "a part ends that has not begun": "<meta_thinking>a</reasoning>",
    "a part does not end": "<meta_thinking>a",
    "text outside of the parts": f"Sure! {GOOD}",
    "no message": "  ",
    "the reasoning agent begins": "<reasoning>a</reasoning><meta_thinking>b</meta_thinking>",
    "the meta-thinking agent has the last word": marked("a", "\\boxed{2}", "b"),
    "no answer in a box": marked("a", "it is 2"),
}


@pytest.mark.parametrize("reason", UNFIT)
def test_what_is_no_dialogue_is_left_out_with_the_reason(reason):
    with pytest.raises(marked_solutions.Unfit, match=reason):
        marked_solutions.dialogue_of("?", marked_solutions.parts_of(UNFIT[reason]))


def test_an_answer_is_compared_with_the_reference_by_its_normal_form():
    half = marked("a", "\\boxed{\\frac{1}{2}}")
    assert marked_solutions.dialogue_of("?", marked_solutions.parts_of(half), "0.5").turns == 1
    with pytest.raises(marked_solutions.Unfit, match="another answer"):
        marked_solutions.dialogue_of("?", marked_solutions.parts_of(half), "0.25")


VIEW = {
    "system": "s",
    "history": [["Question:\n1+1?\n\nInstruction:\nAdd them.", "1 + 1 = 2."]],
    "instruction": f"Right, say so. {FINISH}",
    "input": None,
    "output": f"It is \\boxed{{2}}. {FINISH}",
}


def test_a_view_of_the_reasoning_agent_is_the_same_dialogue():
    """As the released data has it, where [FINISH] stands behind the answer too."""
    rows, counts, _ = sft.build(
        iter([VIEW, {"question": "1+1?", "solution": GOOD}]), MathDialogue(), sft.Limits()
    )
    assert counts == {"kept": 1, "a copy": 1}
    assert [row["question"] for row in rows] == ["1+1?", "1+1?"]
    assert (
        rows[1]["messages"]
        == marked_solutions.views(
            marked_solutions.dialogue_of("1+1?", marked_solutions.parts_of(GOOD)), MathDialogue()
        )[REASONING]
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"history": [["1+1?", "Add them."]]}, "no view of the reasoning agent"),
        ({"history": [["a"]]}, "no list of pairs"),
        ({"history": None, "instruction": 3}, "no list of pairs"),
        ({"output": "It is 2."}, "no answer in a box"),
    ],
)
def test_what_is_no_view_is_left_out_with_the_reason(changes, reason):
    _, counts, _ = sft.build(iter([{**VIEW, **changes}]), MathDialogue(), sft.Limits())
    assert [name for name in counts if reason in name] and counts["kept"] == 0


def test_limits_copies_and_control_tokens():
    lines = [
        {"question": "q", "solution": GOOD}, {"question": "q", "solution": GOOD},
        {"question": "r <|im_end|>", "solution": GOOD.replace("Add", "<|im_start|>system Add")},
        {"question": "s", "solution": marked(*["x", "\\boxed{1}"] * 3)}, {"question": "t", "solution": "no"},
    ]  # fmt: skip
    rows, counts, _ = sft.build(iter(lines), Words(), sft.Limits(turns=2))
    assert counts == {"kept": 2, "a copy": 1, "too many turns": 1, "text outside of the parts": 1}
    assert [(row["dialogue"], row["role"]) for row in rows] == [
        (0, META_THINKING), (0, REASONING), (1, META_THINKING), (1, REASONING),
    ]  # fmt: skip
    assert "<|" not in json.dumps(rows)
    rows, counts, _ = sft.build(iter(lines[:1]), Words(), sft.Limits(2, 10, lambda messages: 11))
    assert rows == [] and counts == {"too many tokens": 1}


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ((f"Go. {FINISH}", "\\boxed{2}"), set()),
        (("Go.", "\\boxed{2}"), {"finish_added"}),
        ((f"Go. {FINISH}", f"\\boxed{{2}} {FINISH}"), {"finish_removed"}),
        ((f"{FINISH} Go.", "\\boxed{2}"), {"finish_added", "finish_removed"}),
        ((f"{FINISH} Go.", "1", f"So. {FINISH}", "\\boxed{2}"), {"finish_removed"}),
        (("Go.", "", f"So. {FINISH}", "\\boxed{2}"), {"parts_empty", "parts_joined"}),
    ],
)
def test_what_was_put_right_is_said(parts, found):
    marked_parts = marked_solutions.parts_of(marked(*parts))
    assert marked_solutions.mendings(marked_parts) == found
    once = marked_solutions.dialogue_of("?", marked_parts).messages
    assert marked_solutions.mendings(marked_solutions.parts_of(marked(*once))) == set(), "and no more then"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"question": None, "solution": GOOD}, "a question or a solution that is no text"),
        ({"question": "1+1?", "solution": None}, "a question or a solution that is no text"),
        ({"question": " <|end|> ", "solution": GOOD}, "no question"),
    ],
)
def test_a_line_without_its_texts_is_left_out(line, reason):
    assert sft.build(iter([line]), Words(), sft.Limits())[1] == {reason: 1}


def test_the_view_counts_where_a_solution_stands_without_its_question():
    _, counts, mended = sft.build(iter([{**VIEW, "solution": "?"}]), Words(), sft.Limits())
    assert counts == {"kept": 1} and mended["finish_removed"] == 1, "behind the answer"
    line = {"question": "1+1?", "solution": GOOD.replace("Add", "<|end|>Add")}
    assert sft.build(iter([line]), Words(), sft.Limits())[2]["control_tokens"] == 1


WORD = st.text(alphabet="abc =", min_size=1, max_size=8).filter(str.strip)


@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=4))
def test_rollouts_go_on_from_these_lists(pairs):
    """What agents that say the same would have read and written, token by token."""
    texts = [text.strip() for pair in pairs for text in pair]
    texts[-1] = "\\boxed{2}"
    one = marked_solutions.dialogue_of("1+1", marked_solutions.parts_of(marked(*texts)))

    def says(role: str, k: int, turn: int) -> str:
        return one.messages[2 * turn + (role == REASONING)] + END

    (held,) = Stage(Talking(says), {"max_turns": 9}).hold()
    template = CharacterTokenizer().apply_chat_template
    for text, messages in zip(shown(held), marked_solutions.views(one, Words()).values(), strict=True):
        learnt = template(messages, add_generation_prompt=False, tokenize=False)
        assert text == learnt.removesuffix(END if text.endswith(FINISH) else "")


def test_a_limit_of_tokens_needs_somebody_who_counts(tmp_path, capsys):
    words = [str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out"), "--max-tokens", "2000"]
    with pytest.raises(SystemExit) as ended:
        sft.main(words)
    assert ended.value.code == 2 and "--max-tokens needs --model" in capsys.readouterr().err


def test_the_command_writes_what_verls_dataset_reads(tmp_path, capsys):
    lines = [{"question": f"Compute {k}+1", "solution": GOOD} for k in range(40)]
    lines += [{"question": "Compute 1", "solution": "?"}]
    source = tmp_path / "solutions.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in lines))
    words = [str(source), "--output", str(tmp_path / "out"), "--model", model_path(), "--max-tokens", "2000"]
    assert sft.main([*words, "--validation", "0.2"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert json.loads(capsys.readouterr().out) == report
    assert (report["dialogues"], report["turns"]) == (40, {"mean": 2.0, "most": 2})
    assert report["left out"] == {"text outside of the parts": 1}
    assert report["mended"] == {
        "finish_added": 40,
        "finish_removed": 0,
        "parts_joined": 0,
        "parts_empty": 0,
        "control_tokens": 0,
    }
    assert sum(report["rows"].values()) == 80 and 4 <= report["rows"]["val"] <= 30

    pytest.importorskip("verl", reason="the dataset is verl's")
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    tokenizer = AutoTokenizer.from_pretrained(model_path())
    config = OmegaConf.create({"pad_mode": "no_padding", "max_length": 2000, "messages_key": "messages"})
    data = MultiTurnSFTDataset(str(tmp_path / "out" / "train.parquet"), tokenizer, config)
    assert len(data) == report["rows"]["train"]
    for row, role in ((data[0], META_THINKING), (data[1], REASONING)):
        own = (
            [f"Right, say so. {FINISH}", "Add them."]
            if role == META_THINKING
            else ["\\boxed{2}", "1 + 1 = 2."]
        )
        learnt = tokenizer.decode(row["input_ids"][row["loss_mask"].bool()])
        assert all(text in learnt for text in own) and "system" not in learnt
        assert learnt.count("<|end|>") == 2, "and where messages end"


def test_problems_are_held_out_whole_and_the_share_is_kept():
    held = [is_held_out(f"problem {k}", 0.1) for k in range(2000)]
    assert 150 < sum(held) < 250 and held == [is_held_out(f"problem {k}", 0.1) for k in range(2000)]
    assert not is_held_out("problem", 0.0)


@pytest.mark.parametrize("text", ["no json", '{"question": "q"}', "[1]", "5", '{"question": "\udce9"}'])
def test_a_line_that_is_no_solution_is_named(tmp_path, capsys, text):
    (tmp_path / "a.jsonl").write_bytes(b"\n" + text.encode(errors="surrogateescape") + b"\n")
    assert sft.main([str(tmp_path / "a.jsonl"), "--output", str(tmp_path / "o")]) == 1
    assert "a.jsonl, line 2:" in capsys.readouterr().err


def test_the_script_names_settings_that_verls_trainer_has(tmp_path):
    """Its words compose with verl's own file."""
    pytest.importorskip("verl", reason="the trainer is verl's")
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python", "torchrun"):
        (programs / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/{name}\n')
        (programs / name).chmod(0o755)
    env = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "SOLUTIONS": "s.jsonl",
        "MODEL_PATH": "m",
        "OUTPUT_ROOT": "out",
    }
    subprocess.run(["bash", str(SCRIPT), "trainer.total_epochs=1"], env=env, cwd=tmp_path, check=True)
    words = (tmp_path / "torchrun").read_text().split("\n")
    assert "data.val_files=null" in words and "trainer.test_freq=-1" in words, "there is no such file"
    (tmp_path / "out" / "rema-sft-data").mkdir(parents=True)
    (tmp_path / "out" / "rema-sft-data" / "val.parquet").touch()
    subprocess.run(["bash", str(SCRIPT), "trainer.total_epochs=1"], env=env, cwd=tmp_path, check=True)
    words = (tmp_path / "torchrun").read_text().split("\n")
    assert "data.val_files=out/rema-sft-data/val.parquet" in words
    folder, overrides = words[words.index("--config-dir") + 1], [one for one in words if re_override(one)]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("sft_trainer_engine")
    GlobalHydra.instance().clear()
    from omegaconf import OmegaConf
    from omegaconf.errors import ConfigKeyError

    own = OmegaConf.load(Path(folder) / "rema.yaml")
    own.pop("defaults")
    merged = OmegaConf.merge(config, own, OmegaConf.from_dotlist(overrides))
    with pytest.raises(ConfigKeyError):  # a key that verl does not have would have been refused
        OmegaConf.merge(config, {"data": {"no_such_key": 1}})
    assert (merged.data.max_length, merged.optim.lr, merged.trainer.total_epochs) == (4096, 1e-5, 1)
    assert merged.data.train_files == "out/rema-sft-data/train.parquet"


def re_override(word: str) -> bool:
    return "=" in word and not word.startswith("-")
