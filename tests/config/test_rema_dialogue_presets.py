"""The presets of dialogues compose and say what they promise; what contradicts itself is rejected."""

from __future__ import annotations

import numpy as np
import pytest
from messages import accepted, assert_refused, commands
from rema_dialogue_script import END, hold
from small_files import make_data

from marsrl_verl.algos.rema.dialogue.config import Config
from marsrl_verl.config.settings_page import page
from marsrl_verl.core.request import Sampling

MODEL = "Qwen/Qwen2.5-7B-Instruct"
SMALL = (
    "cluster=cpu",
    "marsrl.prompts.target=studies.toy_tasks.rema_task.prompts:TinyPlanPrompts",
    "marsrl.algo.message_tokens=16",
    "marsrl.roles.meta_thinking.max_prompt_tokens=60",
    "marsrl.roles.reasoning.max_prompt_tokens=90",
    "dry_run=true",
)
NO_CLIP = "With one update per step the importance ratio is exactly 1, so nothing is ever clipped."


@pytest.mark.parametrize("algo", ["rema", "rema_released"])
def test_the_plan_of_dialogues(run, algo):
    text = accepted(run, f"algo={algo}", *SMALL).text
    assert "dialogues: up to 30 turns of two messages of up to 16 tokens" in text
    assert "dialogue meta_thinking, reasoning 1 32 512 yes" in text
    assert "trained, at most 1,024" in text, "a row of each agent"
    assert (NO_CLIP in text) == (algo == "rema_released"), "a clip that can't act is reported"
    assert f"optimizer updates {4 if algo == 'rema' else 1}" in text
    assert "+ instruction 16" in text, "of the first instruction alone"
    assert "room in the lists for 2 turns of them" in text, "48 tokens: 16, and 2 x 16 before the second"


@pytest.mark.parametrize(
    ("algo", "trained"), [("rema", "1,024"), ("rema_released", "1,024"), ("rema_separate", "512")]
)
def test_the_tiny_world_has_room_for_dialogues(run, algo, trained):
    text = accepted(
        run, f"algo={algo}", "model=tiny_rema", "data=rema_task", "cluster=cpu", "dry_run=true"
    ).text
    assert "messages of up to 56 tokens" in text
    assert "room in the lists for 3 turns of them" in text
    assert f"trained, at most {trained} (" in text, "of two models in turn one agent's rows"
    assert text.count(" fits ") == 2


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (("marsrl.algo.loss.ratio=geometric",), True),
        ((), False),
        (
            (
                "marsrl.algo.loss.ratio=geometric",
                "actor_rollout_ref.actor.clip_ratio_low=3e-4",
                "actor_rollout_ref.actor.clip_ratio_high=4e-4",
            ),
            False,
        ),
    ],
    ids=["geometric", "arithmetic", "a narrow range"],
)
def test_a_clip_range_that_hardly_acts_is_reported(run, words, warned):
    text = accepted(run, "algo=rema", *SMALL, *words).text
    assert ("hardly anything is clipped" in text) == warned
    assert ("and the clip range is 0.2" in text) == warned


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ((), False),  # of the mean of ratios each is bounded
        (("marsrl.algo.loss.ratio=token", "marsrl.training.loss_mean=null"), True),
        (("marsrl.algo.loss.ratio=geometric",), True),
        (("marsrl.algo.loss.ratio=geometric", "marsrl.algo.loss.log_ratio_clip=1.0"), False),
        (("marsrl.algo.loss.ratio=geometric", "marsrl.algo.loss.log_ratio_clip=null"), False),
        (("marsrl.algo.loss.ratio=geometric", "actor_rollout_ref.actor.clip_ratio_c=30"), False),
    ],
)
def test_a_bound_that_the_clip_comes_before_is_reported(run, words, warned):
    text = accepted(run, "algo=rema", *SMALL, *words).text
    said = "marsrl.algo.loss.log_ratio_clip bounds ratios at 20.1, but they are clipped at 1.2 and 3"
    assert (said in text) == warned


def test_agents_that_are_trained_in_turn(run):
    words = ("policies=lora_per_role", "marsrl.algo.alternate.enabled=true")
    done = accepted(run, "algo=rema", *SMALL, *words, "marsrl.algo.alternate.first=reasoning")
    assert "trained in turn: reasoning, then meta_thinking, 10 steps each" in done.text


def test_the_preset_of_separate_agents(run):
    """D.2.2: two models, ten steps each, the meta-thinking agent first."""
    done = accepted(run, "algo=rema_separate", *SMALL)
    assert "trained in turn: meta_thinking, then reasoning, 10 steps each" in done.text
    text = " ".join(done.out.split())
    assert "meta_thinking model meta_thinking" in text and "reasoning model reasoning" in text
    assert "optimizer updates 4" in text, "otherwise as algo=rema"


def test_the_preset_of_separate_agents_with_other_policies(run):
    """A named option takes precedence over the preset's models; one model has nobody to take turns with."""
    text = accepted(run, "algo=rema_separate", *SMALL, "policies=lora_per_role").text
    assert "meta_thinking lora meta_thinking" in text and "reasoning lora reasoning" in text
    assert_refused(
        run("algo=rema_separate", *SMALL, "policies=shared"),
        "marsrl.algo.alternate.enabled = True",
        "have one policy (shared)",
    )


RAY = "ray_kwargs.ray_init.address=auto"
PUBLISHED = ("model=custom", f"actor_rollout_ref.model.path={MODEL}", "data=parquet", "cluster=8xgpu", RAY)


@pytest.mark.parametrize(
    ("training", "message", "steps"),
    [("rema_published", 512, 500), ("rema_ablation_256", 256, 300), ("rema_ablation_1024", 1024, 300)],
)
def test_published_settings(run, training, message, steps):
    """arXiv 2503.09501, D.2: lists of 4,096 tokens, or 3,072, before a message."""
    done = accepted(run, "algo=rema", *PUBLISHED, f"training={training}")
    config = done.launched
    actor, algo = config.actor_rollout_ref.actor, config.marsrl.algo
    assert (config.data.train_batch_size, algo.group_size, algo.max_turns) == (128, 16, 30)
    assert (algo.message_tokens, config.trainer.total_training_steps) == (message, steps)
    longest = (3072 if message == 1024 else 4096) + message
    assert config.actor_rollout_ref.rollout.max_model_len == longest
    for role in config.marsrl.roles.values():
        assert (role.max_sequence_tokens, role.temperature, role.top_p) == (longest, 1.0, 1.0)
    assert (actor.optim.lr, actor.use_kl_loss, actor.entropy_coeff) == (1e-6, False, 0)
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.2, 0.2, 3.0)
    assert (algo.loss.ratio, algo.loss.log_ratio_clip) == ("arithmetic", 3.0)
    assert config.marsrl.training.loss_mean == "seq-mean-turn-mean-token-mean"
    assert config.marsrl.pipeline.updates_per_step == 4
    assert (config.trainer.save_freq, config.trainer.max_actor_ckpt_to_keep) == (50, 1)
    evaluation = config.marsrl.evaluation
    assert (evaluation.every, evaluation.greedy, evaluation.samples_per_problem) == (10, True, 0)


def test_an_adapter_does_not_keep_the_rate_of_whole_models(run):
    words = ("algo=rema", *PUBLISHED, "training=rema_published", "policies=lora_per_role")
    assert run(*words).launched.actor_rollout_ref.actor.optim.lr == 1e-5
    own = run(*words, "actor_rollout_ref.actor.optim.lr=3e-6").launched
    assert own.actor_rollout_ref.actor.optim.lr == 3e-6


@pytest.mark.parametrize(
    ("training", "before", "length", "turns"),
    [
        ("rema_published", 4096, 300, 7),
        ("rema_ablation_256", 4096, 200, 10),
        ("rema_ablation_1024", 3072, 300, 5),
    ],
)
def test_messages_are_begun_where_the_paper_begins_them(run, training, before, length, turns):
    """arXiv 2503.09501, D.2: where the whole list has at most `max_prompt_length` tokens, however many of
    them are the question's. Here a token is a character and the question has 3, so that the list of the
    reasoning agent has a message and a few tokens before its first answer, and two messages more before each
    further one: 310 + 4 x 600 tokens are below 3,072, with 600 more they are above."""
    config = run("algo=rema", *PUBLISHED, f"training={training}").launched.marsrl
    limits = {
        role: Sampling(
            max_new_tokens=one.max_new_tokens,
            max_prompt_tokens=one.max_prompt_tokens,
            max_sequence_tokens=one.max_sequence_tokens,
        )
        for role, one in config.roles.items()
    }
    says = {
        "says": lambda role, k, turn: f"{turn}" * length + END,
        "message_tokens": config.algo.message_tokens,
    }
    (one,) = hold(**says, limits=limits)
    assert (one.detail, one.events[-1]["turns"]) == ("list_full", turns)
    for sequence in one.sequences:
        numbers = sequence.annotations["turn"]
        begins = [int(np.argmax(numbers == turn)) for turn in range(int(numbers.max()) + 1)]
        assert begins == sorted(begins) and len(sequence.prompt_ids) + begins[-1] <= before
    waiting = one.sequences[0 if len(one.events) % 2 else 1]
    assert len(waiting.prompt_ids) + len(waiting) > before


def test_released_settings(run):
    done = accepted(run, "algo=rema_released", *PUBLISHED, "training=rema_published")
    algo, pipeline = done.launched.marsrl.algo, done.launched.marsrl.pipeline
    assert (algo.loss.ratio, algo.finish_stops, pipeline.updates_per_step) == ("geometric", "both", 1)
    assert (algo.mask_unfinished, algo.stop_when_truncated) == (True, True)


ENDPOINT = (
    "marsrl.policies.far.kind=endpoint", "marsrl.policies.far.endpoint.base_urls=[http://host:8000/v1]",
    "marsrl.policies.far.endpoint.model=m",
)  # fmt: skip
REFUSED = commands("""
    a prompt that fills the list | marsrl.roles.meta_thinking.max_sequence_tokens=60
        | marsrl.roles.meta_thinking.max_sequence_tokens = 60 | leaves none for a response
    a list shorter than what follows
        | marsrl.roles.meta_thinking.max_sequence_tokens=61 marsrl.roles.meta_thinking.max_new_tokens=62
        | marsrl.roles.meta_thinking.max_sequence_tokens = 61 | which it never reaches
    a list that is never so long | marsrl.roles.reasoning.max_sequence_tokens=138
        | marsrl.roles.reasoning.max_sequence_tokens = 138 | 90 + 48 = 138
    no room behind the first prompt | marsrl.roles.reasoning.max_sequence_tokens=105
        | marsrl.algo.message_tokens = 16 | has room for 15 (max_sequence_tokens 105)
    no room for a message | marsrl.algo.message_tokens=49 | marsrl.algo.message_tokens = 49
        | n turns of such messages take up to 98 n tokens
    a penalty over more than a list | marsrl.algo.overlong.enabled=true marsrl.algo.overlong.tokens=49
        | marsrl.algo.overlong.tokens = 49 | has 48 tokens
    a penalty that is off | marsrl.algo.overlong.penalty=0.5 | algo.overlong.penalty | enabled
    a mean that knows no turns | marsrl.training.loss_mean=null | marsrl.algo.loss.ratio = arithmetic
        | have one ratio
    turns of shared weights | marsrl.algo.alternate.enabled=true | marsrl.algo.alternate.enabled
        | have one policy (shared)
    turns that are off | marsrl.algo.alternate.interval=3 | marsrl.algo.alternate.interval | enabled
    a discount of turns without returns | marsrl.algo.gamma_turn=0.9 | marsrl.algo.gamma_turn = 0.9
        | estimator=reinforce_pp
    a discount of tokens beside a ratio of turns | marsrl.algo.estimator=reinforce_pp marsrl.algo.gamma=0.99
        | marsrl.algo.gamma = 0.99 | marsrl.algo.loss.ratio=token
    KL of tokens beside a ratio of turns | marsrl.algo.estimator=reinforce_pp algorithm.use_kl_in_reward=true
        | algorithm.use_kl_in_reward = True | gradient of no published loss
    a message twice at least | marsrl.algo.guards.same_messages=1 | same_messages = 1 | at least 2
    answers from a file | marsrl.policies.far.kind=jsonl marsrl.policies.far.jsonl.path=a.jsonl
        marsrl.roles.meta_thinking.policy=far | marsrl.policies.far.kind = jsonl
        | each message answers another one
    two kinds of stop strings
        | marsrl.policies.far.kind=endpoint marsrl.policies.far.endpoint.base_urls=[http://host:8000/v1]
        marsrl.policies.far.endpoint.model=m marsrl.roles.meta_thinking.policy=far
        marsrl.policies.far.endpoint.send_stop=true marsrl.policies.far.endpoint.extra_body.stop=[x]
        | marsrl.policies.far.endpoint.extra_body.stop | own strings are sent (send_stop)
    nobody learns
        | marsrl.policies.far.kind=endpoint marsrl.policies.far.endpoint.base_urls=[http://host:8000/v1]
        marsrl.policies.far.endpoint.model=m marsrl.roles.meta_thinking.policy=far
        marsrl.roles.reasoning.policy=far | marsrl.roles.meta_thinking.policy = far | nothing is trained
    prompts that know no dialogue | marsrl.prompts.target=marsrl_verl.core.prompts:ProblemPrompts
        | marsrl.prompts.target | DialoguePrompts
""")


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_itself_is_refused(run, name):
    words, key, hint = REFUSED[name]
    replaced = {word.split("=")[0] for word in words}
    overrides = [word for word in SMALL if word.split("=")[0] not in replaced]
    assert_refused(run("algo=rema", *overrides, *words), key, hint)


def test_a_frozen_agent_is_planned(run):
    done = accepted(run, "algo=rema", *SMALL, *ENDPOINT, "marsrl.roles.meta_thinking.policy=far")
    assert "Frozen policy far (meta_thinking)" in done.text
    text = " ".join(done.out.split())
    assert "trained, at most 512 (" in text, "of 512 dialogues the reasoning agent's row"
    both = run("algo=rema", *SMALL, "data.train_batch_size=32")
    assert "tokens, at most 49,152 in a step" in " ".join(both.out.split()), "512 x two lists of 48 tokens"
    assert "tokens, at most 24,576 in a step" in text, "nobody here generates the frozen agent's"


def test_the_settings_page_has_them():
    text = page(["rema"])
    assert '| `finish_stops` | one of meta_thinking, both | `"meta_thinking"` |' in text
    assert "| `loss.log_ratio_clip` | a number above 0 or null | `3.0` |" in text
    assert Config.model_fields["group_size"].default == 16


def test_a_problem_that_asks_the_planner_for_a_boxed_answer_is_warned_of(run, tmp_path):
    """As the `prompt` of the released files does."""
    path = make_data(tmp_path / "asking.jsonl", ["2"] * 256, r"1 + 1? Answer within \boxed{}.")
    for algo in ("algo=rema", "algo=rema_single_turn", "algo=vrp_rl"):
        words = [algo, "cluster=cpu", f"data.train_files={path}", f"data.val_files={path}", "dry_run=true"]
        words += [f"actor_rollout_ref.model.path={MODEL}", "model=custom", "data=parquet"]
        done = run(*words)
        assert (done.status, done.err) == (0, ""), algo
        asked = "The role meta_thinking is not to answer, and is shown problems that ask for a boxed answer"
        assert (asked in " ".join(done.out.split())) == (algo != "algo=vrp_rl")


@pytest.mark.parametrize(
    "words",
    [
        ("marsrl.algo.gamma_turn=0.9",),
        ("marsrl.algo.gamma=0.99", "marsrl.algo.loss.ratio=token", "marsrl.training.loss_mean=null"),
    ],
    ids=["a discount of turns", "ratios of tokens"],
)
def test_returns_go_with_a_ratio_where_what_shares_it_shares_an_advantage(run, words):
    accepted(run, "algo=rema", *SMALL, "marsrl.algo.estimator=reinforce_pp", *words)
