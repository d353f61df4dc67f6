"""`marsrl.watch`: conditions that a run watches for, and whether it ends on them."""

from __future__ import annotations

from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import Settings, limits


class Action(Choice):
    """Action on something that a run watches for."""

    END = "end"
    """It says why and ends; unless the weights are spoiled, they are saved first."""
    WARN = "warn"
    """It says so once, when it begins and when it is over, and goes on."""


class WatchConfig(Settings):
    """Conditions that a run watches for ([what to do](../help/troubleshooting.md#collapse)): for each, `end`
    the run, or `warn` once when it begins and once when it is over."""

    steps: int = limits(
        5, ge=1, le=1000, why="a step decides at the earliest, and a watch has to end in a run"
    )
    """Steps in a row that decide, except for what a single step shows: numbers that are not finite, failed
    requests, the gap of log-probabilities. Steps in which a role has no group are passed over, and so are
    those that can't train."""
    not_finite: Action = Action.END
    """A loss or gradient norm is NaN or infinite, in the step itself. With `warn` verl skips such an update
    and the run goes on. Where log-probabilities or weights are not finite it ends in any case."""
    log_probs_diff: Action = Action.WARN
    """Engine and trainer differ by at least 0.05 nats a token on average under the same weights
    (`rollout/log_probs_diff_mean`), in the step itself."""
    nothing_trained: Action = Action.END
    """No group was trained: in all of at least 256 responses' groups the rewards were equal. Groups that are
    all right for the most part are warned of only."""
    zero_std_groups: Action = Action.WARN
    """At least 85 % of a role's groups have equal rewards."""
    one_outcome: Action = Action.WARN
    """A role decides alike in at least 98 % of cases, such as a Verifier with one verdict, although another
    decision was right in some."""
    truncated: Action = Action.WARN
    """At least 95 % of a role's responses reach the token limit."""
    failed_requests: Action = Action.WARN
    """At least 10 % of a role's responses in one step have no regular end: an engine, endpoint or program
    failed, or a prompt was too long."""
