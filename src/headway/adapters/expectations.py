"""The port `Checks` by great-expectations: tables are checked before anything is decided from them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.errors import BackendError, ConfigError

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "block", "side", "index", "prompt_sha256", "scheduled_s", "sent_s", "release", "first_token_s", "ended_s",
    "prompt_tokens", "output_tokens", "served_model", "served_release", "error", "itl_ms", "injected_ms",
)  # fmt: skip
ALWAYS = ("block", "side", "index", "prompt_sha256", "scheduled_s", "sent_s", "ended_s", "release")
"""Columns that every request has, however it ended."""
CLOCK_SLACK_S = 0.001
MODEL = "model"
"""Column that says whose a row is, where a table has the rows of many models."""
TRAFFIC_LIMITS: Mapping[str, float] = {
    "requests_per_s": 1e6, "prompt_tokens": 1e7, "output_tokens": 1e7, "cached_share": 1.0,
    "busy": 1e6, "asked": 1e6, "reactive": 1e6, "cron": 1e6,
}  # fmt: skip
"""Columns of a history and the most that each can be; none is below zero."""


class ExpectationChecks:
    """Checks tables against the suites of this module, in an ephemeral context that writes nothing anywhere."""

    def check(self, suite: str, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return one sentence for each expectation that the rows break; empty when all hold.

        Raises:
            ConfigError: If there is no such suite.
            BackendError: The library itself failed.
        """
        if suite not in SUITES:
            raise ConfigError(f"there is no suite {suite!r}; there are: {', '.join(SUITES)}")
        if not rows:
            return [f"the table for {suite} has no rows"]
        # Slow to import (seconds), and needed by one step only.
        import great_expectations as gx
        import pandas as pd

        logging.getLogger("great_expectations").setLevel(logging.ERROR)
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = gx.data_context.types.base.ProgressBarsConfig(globally=False)
        broken: list[str] = []
        for name, frame, expectations in SUITES[suite](pd.DataFrame(list(rows)), gx.expectations):
            if frame.empty:
                continue
            batch = (
                context.data_sources.add_pandas(name)
                .add_dataframe_asset(name)
                .add_batch_definition_whole_dataframe(name)
            )
            try:
                found = batch.get_batch(batch_parameters={"dataframe": frame}).validate(
                    gx.ExpectationSuite(name=name, expectations=expectations), result_format=_format(frame)
                )
            except gx.exceptions.GreatExpectationsError as error:
                raise BackendError(f"great-expectations could not check {name}: {error}", suite=suite) from error
            for result in found.results:
                if not result.success:
                    broken += [_sentence(f"{name} of {model}" if model else name, result) for model in _models(result)]
        return broken


def _format(frame: "pd.DataFrame") -> dict[str, Any]:
    """Return what a result has to hold: where rows have a model, whose rows are wrong."""
    if MODEL not in frame.columns:
        return {"result_format": "SUMMARY"}
    return {"result_format": "COMPLETE", "unexpected_index_column_names": [MODEL]}


def _models(result: Any) -> list[str]:
    """Return whose rows are wrong; one without a name where that is not known."""
    wrong = {str(row[MODEL]) for row in result.result.get("unexpected_index_list") or () if MODEL in row}
    return sorted(wrong) or [""]


def _traffic(frame: "pd.DataFrame", e: Any) -> list[tuple[str, "pd.DataFrame", list[Any]]]:
    """Build the suite of collected traffic, of any number of models: what no traffic can be."""
    missing = [column for column in (MODEL, "at_s", *TRAFFIC_LIMITS) if column not in frame.columns]
    if missing:
        return [("traffic", frame, [e.ExpectColumnToExist(column=column) for column in missing])]
    # A column that nobody measured holds nothing but none, which is no number to compare.
    limits = {column: most for column, most in TRAFFIC_LIMITS.items() if frame[column].notna().any()}
    return [
        (
            "traffic",
            frame,
            [
                e.ExpectColumnValuesToNotBeNull(column="at_s"),
                e.ExpectCompoundColumnsToBeUnique(column_list=[MODEL, "at_s"]),
                *(
                    e.ExpectColumnValuesToBeBetween(column=column, min_value=0, max_value=most)
                    for column, most in limits.items()
                ),
            ],
        )
    ]


def _bench_records(frame: "pd.DataFrame", e: Any) -> list[tuple[str, "pd.DataFrame", list[Any]]]:
    """Build the suite of the benchmark's records: failures are data, answers that claim success must be consistent."""
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        return [("all requests", frame, [e.ExpectColumnToExist(column=column) for column in missing])]
    everything = _with_steps(frame)
    good = _with_gaps(frame[frame["error"].isna()])
    return [
        (
            "all requests",
            everything,
            [
                *(e.ExpectColumnValuesToNotBeNull(column=column) for column in ALWAYS),
                e.ExpectColumnValuesToBeInSet(column="side", value_set=["stable", "candidate"]),
                e.ExpectColumnValuesToBeBetween(column="sent_after_scheduled_s", min_value=-CLOCK_SLACK_S),
                e.ExpectColumnValuesToBeBetween(column="due_after_previous_s", min_value=0),
                e.ExpectColumnPairValuesAToBeGreaterThanB(column_A="ended_s", column_B="sent_s", or_equal=True),
                e.ExpectCompoundColumnsToBeUnique(column_list=["block", "side", "index"]),
                e.ExpectColumnValuesToBeBetween(column="injected_ms", min_value=0),
            ],
        ),
        (
            "answered requests",
            good,
            [
                *(
                    e.ExpectColumnValuesToNotBeNull(column=column)
                    for column in ("first_token_s", "output_tokens", "served_model")
                ),
                e.ExpectColumnPairValuesAToBeGreaterThanB(column_A="first_token_s", column_B="sent_s", or_equal=True),
                e.ExpectColumnPairValuesAToBeGreaterThanB(column_A="ended_s", column_B="first_token_s", or_equal=True),
                e.ExpectColumnValuesToBeBetween(column="output_tokens", min_value=1),
                e.ExpectColumnUniqueValueCountToBeBetween(column="served_model", max_value=1),
                e.ExpectColumnValuesToBeBetween(column="least_itl_ms", min_value=0),
                e.ExpectColumnValuesToBeBetween(column="answer_beyond_itl_s", min_value=-CLOCK_SLACK_S),
                e.ExpectColumnValuesToBeBetween(column="tokens_beyond_itl", min_value=0),
            ],
        ),
        (
            "requests of stable",
            frame[frame["side"] == "stable"],
            [
                e.ExpectColumnUniqueValueCountToBeBetween(column="release", max_value=1),
                e.ExpectColumnValuesToBeInSet(column="injected_ms", value_set=[0.0]),
            ],
        ),
        (
            "requests of candidate",
            frame[frame["side"] == "candidate"],
            [e.ExpectColumnUniqueValueCountToBeBetween(column="release", max_value=1)],
        ),
        *(
            (
                f"answers of {side}",
                good[(good["side"] == side) & good["served_release"].notna()],
                [
                    e.ExpectColumnUniqueValueCountToBeBetween(column="served_release", max_value=1),
                    e.ExpectColumnPairValuesToBeEqual(column_A="served_release", column_B="release"),
                ],
            )
            for side in ("stable", "candidate")
        ),
    ]


def _with_steps(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Add how long after its due time each request left, and how long after the one before it was due."""
    ordered = frame.sort_values(["block", "side", "index"], kind="stable")
    steps = ordered.groupby(["block", "side"])["scheduled_s"].diff().fillna(0.0)
    return frame.assign(
        sent_after_scheduled_s=frame["sent_s"] - frame["scheduled_s"], due_after_previous_s=steps.reindex(frame.index)
    )


def _with_gaps(good: "pd.DataFrame") -> "pd.DataFrame":
    """Add what the gaps between chunks (lists, which no expectation reads) come to against times and tokens."""
    gaps = good["itl_ms"]
    answer_s = good["ended_s"].astype(float) - good["first_token_s"].astype(float)
    return good.assign(
        least_itl_ms=gaps.map(lambda found: min(found, default=0.0)).astype(float),
        answer_beyond_itl_s=answer_s - gaps.map(sum).astype(float) / 1e3,
        # Text that a server held back may come with the end, after the last token.
        tokens_beyond_itl=good["output_tokens"].astype(float) - gaps.map(len).astype(float),
    )


LEAST_CHARACTERS, MOST_CHARACTERS = 80, 1_000_000
"""A shorter calibration text moves few activations; a longer one is a book, of which the first page is used."""
LONG_ENOUGH = 0.9
"""Share of the rows that must reach the least length: a chat may have a greeting in it."""
LEAST_UNIQUE = 0.9
"""A text that is there many times weighs as often."""


def _calibration(frame: "pd.DataFrame", e: Any) -> list[tuple[str, "pd.DataFrame", list[Any]]]:
    """Build the suite of calibration texts, as `headway.domain.calibration.check_rows` tables them."""
    wanted = [column.removeprefix("least_") for column in frame.columns if column.startswith("least_")]
    return [
        (
            "calibration texts",
            frame,
            [
                e.ExpectColumnValuesToBeBetween(column="characters", min_value=1, max_value=MOST_CHARACTERS),
                e.ExpectColumnValuesToBeBetween(column="characters", min_value=LEAST_CHARACTERS, mostly=LONG_ENOUGH),
                e.ExpectColumnProportionOfUniqueValuesToBeBetween(column="sha256", min_value=LEAST_UNIQUE),
                *(
                    e.ExpectColumnMeanToBeBetween(
                        column=f"is_{language}", min_value=float(frame[f"least_{language}"].iloc[0])
                    )
                    for language in wanted
                ),
            ],
        )
    ]


SUITES: Mapping[str, Callable[["pd.DataFrame", Any], list[tuple[str, "pd.DataFrame", list[Any]]]]] = {
    "bench_records": _bench_records,
    "calibration": _calibration,
    "traffic": _traffic,
}


def _sentence(name: str, result: Any) -> str:
    kind = result.expectation_config.type
    columns = {k: v for k, v in result.expectation_config.kwargs.items() if k.startswith("column")}
    where = ", ".join(str(v) for v in columns.values())
    if result.exception_info and result.exception_info.get("raised_exception"):
        return f"{name}: {kind} of {where} could not be checked: {result.exception_info.get('exception_message')}"
    found = result.result
    count = found.get("unexpected_count")
    seen = found.get("partial_unexpected_list") or found.get("observed_value")
    how_many = f"{count} of {found.get('element_count')} rows" if count is not None else "the table"
    return f"{name}: {how_many} break {kind} of {where} (such as {str(seen)[:80]})"
