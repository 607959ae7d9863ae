"""What an older headway wrote must stay readable (design rule 13.12)."""

from headway.domain.bench import BenchJob, BenchResult
from headway.domain.release import Check, QualityFigures, Reference
from headway.pods.bench_quality import of_job
from headway.pods.reference import top_uri

FIGURES = {
    "prompt_set_digest": "p",
    "engine": "transformers 5.17.0 float32",
    "tokens": 2,
    "nll": 4.0,
    "per_text_nll": [4.0],
    "per_text_tokens": [2],
}
OLD = {"schema_version": 1, "source_digest": "s", "figures": FIGURES, "token_ids": [[1, 2, 3]]}


def test_a_reference_of_version_1_is_read_and_known_to_lack_something() -> None:
    reference = Reference.model_validate(OLD)

    assert not reference.complete
    assert reference.answers == ()
    assert (reference.figures.kl, reference.figures.top1) == (None, None)


def test_a_job_that_carries_its_reference_is_still_understood() -> None:
    """Of a benchmark that was submitted before headway was updated."""
    job = BenchJob.model_validate(
        {
            "release": "r",
            "targets": [{"side": "candidate", "base_url": "http://x", "served_model": "m", "release": "r"}],
            "canary": {},
            "seed": 1,
            "reference": FIGURES,
            "reference_token_ids": [[1, 2, 3]],
        }
    )
    yardstick = of_job(job)

    assert yardstick is not None
    assert (list(yardstick.token_ids), yardstick.top) == ([(1, 2, 3)], None)
    assert job.scheme == "none", "whose limit is the one that there was"


def test_a_result_and_a_check_of_before_are_read() -> None:
    result = BenchResult.model_validate(
        {
            "release": "r",
            "paired": False,
            "blocks": [],
            "served": FIGURES,
            "answers": [{"side": "candidate", "prompt": "q", "text": "a", "finish_reason": "stop"}],
            "records_path": "x",
            "records_sha256": "0",
        }
    )
    check = Check.model_validate({"name": "n", "measured": 1.0, "limit": 2.0, "passed": True, "sentence": "s"})

    assert result.noise is None
    assert result.answers[0].prompt_tokens is None
    assert (check.low, check.high, check.noise) == (None, None, None)


def test_figures_are_means_over_tokens_and_not_over_texts() -> None:
    """A short text counts less."""
    figures = QualityFigures.model_validate(
        {
            **FIGURES,
            "tokens": 100,
            "per_text_nll": [1.0, 3.0],
            "per_text_tokens": [10, 90],
            "per_text_kl": [1.0, 1.0],
            "per_text_top1": [9, 81],
        }
    )

    assert (figures.kl, figures.top1) == (0.02, 0.9)


def test_the_head_of_the_distributions_lies_beside_its_reference() -> None:
    assert top_uri("s3://b/references/s/p.json", "a" * 64) == f"s3://b/references/s/p.top-{'a' * 16}.json"
