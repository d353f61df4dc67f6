"""`marsrl.evaluation`: what every method's evaluation has."""

from __future__ import annotations

from pydantic import Field

from marsrl_verl.settings.declaration import Settings, limits, temperature, top_p


class InBetweenConfig(Settings):
    """Evaluations in between (`marsrl.evaluation.every`): like the others but for these."""

    problems: int | None = limits(None, ge=1, why="null is as many as the others")
    """Use only the first N of `marsrl.evaluation.problems`; null: all of these."""
    samples_per_problem: int | None = limits(None, ge=1, why="null is as many as the others")
    """Runs per problem; null: as many as the others."""


class BenchmarkConfig(Settings):
    """A benchmark of the table (`data/benchmarks.yaml`), by its name."""

    file: str | None = None
    """Your own copy, .parquet, .jsonl or .json; null: the Hugging Face hub's."""
    problems: int | None = limits(None, ge=1, why="null is all of them")
    """Use only the first N; null: all."""
    samples_per_problem: int | None = limits(None, ge=1, why="null is as many as of the others")
    """Sampled runs per problem; null: `marsrl.evaluation.samples_per_problem`."""


class EvaluationConfig(Settings):
    """Evaluations on held-out problems, when and how; a method adds the settings of its own system
    (`Method.Evaluation`)."""

    before: bool = True
    """Evaluate before the first training step of a fresh run."""
    after: bool = True
    """Evaluate after the last step."""
    every: int = limits(0, ge=0, why="0 is never in between")
    """Evaluate every so many steps; 0: never in between."""
    in_between: InBetweenConfig = Field(default_factory=InBetweenConfig)
    """Settings in which evaluations in between differ."""
    problems: int | None = limits(None, ge=1, why="null is all of them")
    """Use only the first N held-out problems; null: all."""
    samples_per_problem: int = limits(1, ge=0, why="0 evaluates greedily alone")
    """Independent runs per problem at temperature `temperature`; 0: greedy ones alone (`greedy`), and
    `temperature` and `top_p` have no effect."""
    temperature: float = temperature("greedy decoding is evaluated beside it (marsrl.evaluation.greedy=true)")
    """Sampling temperature of the evaluation, above 0."""
    top_p: float | None = top_p(None, fix="null takes the roles' own.")
    """Smallest probability mass that is kept in the evaluation's sampled pass; null: the roles' own."""
    repetition_penalty: float = limits(1.0, gt=0.0, fix="1 is no penalty; 1.1 is a usual one.")
    """Penalty of the evaluation's tokens, sampled and greedy: above 1, tokens that prompt or response have
    already become less likely."""
    greedy: bool = True
    """Evaluate at temperature 0 too."""
    benchmarks: dict[str, BenchmarkConfig] = Field(default_factory=dict)
    """Benchmarks that are evaluated in place of `data.val_files`, by name (docs/guides/evaluation.md)."""
    only: list[str] = Field(default_factory=list)
    """Names of those of `benchmarks` that are evaluated; empty: all."""
    published: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Figures of a paper by benchmark, in per cent, which the report shows beside those of the run; by what
    they are of."""
    published_rows: list[str] = Field(default_factory=list)
    """Benchmarks of which the paper took rows of its own: their figures are shown where `file` names a copy
    of these."""
    confidence: float = limits(0.95, gt=0.0, lt=1.0, fix="0.95 is the usual choice.")
    """Coverage of the reported intervals."""

    def samples_of(self, source: str) -> int:
        """Sampled runs of each problem of a data source."""
        own = self.benchmarks.get(source)
        return (own.samples_per_problem if own is not None else None) or self.samples_per_problem

    def between(self) -> EvaluationConfig:
        """The settings of evaluations in between."""
        own = self.in_between
        changed = {
            "problems": self.problems if own.problems is None else own.problems,
            "samples_per_problem": own.samples_per_problem or self.samples_per_problem,
        }
        return self.model_copy(update=changed)
