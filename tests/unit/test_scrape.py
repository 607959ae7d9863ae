"""What the scraper makes of the texts that engines and the gateway give."""

import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.adapters.local.scrape import engine_samples, envoy_samples
from headway.domain import engine_series
from headway.ports import UPTIME

VLLM = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="a } b"} 0.25
vllm:num_preemptions_total{engine="0",model_name="a } b"} 0.0
vllm:num_preemptions_created{engine="0",model_name="a } b"} 1.7e+09
vllm:prompt_tokens_total{engine="0",model_name="a } b"} 70.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="a } b"} 4.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="a } b"} 5.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="a } b"} 8.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="a } b"} 1.5
vllm:time_to_first_token_seconds_count{engine="0",model_name="a } b"} 9.0
"""
OLD_VLLM = """
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_queries_total{model_name="m"} 40.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 30.0
vllm:time_per_output_token_seconds_count{model_name="m"} 12.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 0.5
vllm:time_in_queue_requests_count{model_name="m"} 6.0
vllm:cpu_cache_usage_perc{model_name="m"} 0.9
"""
RAY = (
    """
# TYPE ray_vllm_inter_token_latency_seconds histogram
ray_vllm_inter_token_latency_seconds_bucket{Component="core_worker",ReplicaId="r1",engine="0",le="0.1"} 1.0
ray_vllm_inter_token_latency_seconds_count{Component="core_worker",ReplicaId="r1",engine="0",model_name="m"} 12.0
ray_vllm_inter_token_latency_seconds_sum{Component="core_worker",ReplicaId="r1",engine="0",model_name="m"} 0.5
# TYPE ray_vllm_prompt_tokens_total counter
ray_vllm_prompt_tokens_total{Component="core_worker",ReplicaId="r1",Version="2.60.0",engine="0",model_name="m"} 7.0
ray_vllm_prompt_tokens_total{Component="core_worker",ReplicaId="r2",Version="2.60.0",engine="0",model_name="m"} 5.0
ray_vllm_kv_cache_usage_perc{Component="core_worker",ReplicaId="r1",engine="0",model_name="m"} 0.2
ray_vllm_kv_cache_usage_perc{Component="core_worker",ReplicaId="r2",engine="0",model_name="m"} 0.4
ray_vllm_num_requests_waiting{Component="core_worker",ReplicaId="r1",engine="0",model_name="m"} NaN
"""
    # Before the name: thousands of Ray's own, whose labels may say anything.
    'ray_tasks{Name="vllm:num_requests_running"} 99.0\n'
)


def read(text: str) -> dict[str, float]:
    """Return the samples of an engine's text."""
    samples = engine_samples(text, model="m", cluster="c")
    assert all(labels == {"model": "m", "cluster": "c"} for _, labels, _ in samples)
    assert len({name for name, _, _ in samples}) == len(samples)
    return {name: value for name, _, value in samples}


def test_what_vllm_says_itself() -> None:
    """Its colon names, with labels of any content; what was created is no count."""
    assert read(VLLM) == {
        "vllm_num_requests_running": 3.0,
        "vllm_kv_cache_usage_perc": 0.25,
        "vllm_num_preemptions_total": 0.0,
        "vllm_prompt_tokens_total": 70.0,
        "vllm_request_success_total": 9.0,
        "vllm_time_to_first_token_seconds_sum": 1.5,
        "vllm_time_to_first_token_seconds_count": 9.0,
    }


def test_what_old_versions_say() -> None:
    """The same figures come under the same names."""
    assert read(OLD_VLLM) == {
        "vllm_kv_cache_usage_perc": 0.25,
        "vllm_prefix_cache_queries_total": 40.0,
        "vllm_prefix_cache_hits_total": 30.0,
        "vllm_inter_token_latency_seconds_count": 12.0,
        "vllm_inter_token_latency_seconds_sum": 0.5,
        "vllm_request_queue_time_seconds_count": 6.0,
    }


def test_what_ray_says() -> None:
    """Replicas are taken together: counts added, shares averaged; what is no number is missing."""
    assert read(RAY) == pytest.approx(
        {
            "vllm_inter_token_latency_seconds_count": 12.0,
            "vllm_inter_token_latency_seconds_sum": 0.5,
            "vllm_prompt_tokens_total": 12.0,
            "vllm_kv_cache_usage_perc": 0.3,
        }
    )


@pytest.mark.parametrize("series", engine_series.TABLE, ids=lambda series: series.name)
def test_every_name_in_the_table_is_understood(series: engine_series.Series) -> None:
    """What the error of the metric contract lists is what the scraper takes."""
    for alias in series.aliases():
        assert next(iter(read(f'{alias}{{engine="0"}} 2.0'))) in series.stored
    assert series.aliases()[0].startswith("vllm:")


@pytest.mark.parametrize("series", [s for s in engine_series.TABLE if s.kind != "histogram"], ids=lambda s: s.name)
def test_a_series_under_several_of_its_names_is_counted_once(series: engine_series.Series) -> None:
    """A version that deprecates a name gives both; old Ray gave counters with and without `_total`."""
    text = "\n".join(f'{alias}{{engine="0"}} 0.5' for alias in series.aliases() if alias.startswith("vllm:"))

    assert read(text) == {series.name: 0.5}


@given(st.text(alphabet=string.printable, max_size=200))
def test_no_text_breaks_the_scraper(text: str) -> None:
    """An engine that dies while it answers leaves half a line."""
    for cut in (text, f"vllm:{text}", f'vllm:num_requests_running{{engine="0"}}{text}'):
        assert all(math.isfinite(value) for _, _, value in engine_samples(cut, model="m", cluster="c"))
    for name in ("envoy_cluster_upstream_rq_total", "envoy_cluster_upstream_rq_time_bucket"):
        cut = f'{name}{{envoy_cluster_name="m_stable",le="{text}"}} 4\n{name}{{envoy_cluster_name="m_stable"}} 3{text}'
        assert all(math.isfinite(value) for _, _, value in envoy_samples(cut, ["m"]))


ENVOY = """
envoy_cluster_upstream_rq_total{envoy_cluster_name="tiny_stable"} 12
envoy_cluster_upstream_rq_total{envoy_cluster_name="tiny_stable_only"} 500
envoy_cluster_upstream_rq{envoy_response_code="200",envoy_cluster_name="tiny_stable"} 11
envoy_cluster_upstream_rq_xx{envoy_response_code_class="2",envoy_cluster_name="tiny_stable"} 11
envoy_cluster_upstream_rq_xx{envoy_response_code_class="5",envoy_cluster_name="tiny_stable"} 1
envoy_cluster_upstream_rq_retry{envoy_cluster_name="tiny_stable"} 2
envoy_cluster_outlier_detection_ejections_enforced_total{envoy_cluster_name="tiny_stable"} 1
envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name="tiny_stable",le="10"} 0
envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name="tiny_stable",le="13"} 4
envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name="tiny_stable",le="16"} 4
envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name="tiny_stable",le="2500"} 9
envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name="tiny_stable",le="+Inf"} 9
envoy_cluster_upstream_rq_time_sum{envoy_cluster_name="tiny_stable"} 2500
envoy_cluster_upstream_rq_time_count{envoy_cluster_name="tiny_stable"} 9
envoy_server_uptime{} 77
"""


def test_what_the_gateway_says() -> None:
    """Its own names become ours, in seconds; buckets that add nothing are left out, and the benchmark's traffic too."""
    samples = envoy_samples(ENVOY, ["tiny"])

    stable = {"model": "tiny", "side": "stable"}
    assert sorted(samples, key=repr) == sorted(
        [
            (UPTIME, {}, 77.0),
            ("headway_requests_total", stable, 12.0),
            ("headway_request_errors_total", stable, 3.0),
            ("headway_ejections_total", stable, 1.0),
            ("headway_request_seconds_bucket", {**stable, "le": "0.013"}, 4.0),
            ("headway_request_seconds_bucket", {**stable, "le": "2.5"}, 9.0),
            ("headway_request_seconds_bucket", {**stable, "le": "+Inf"}, 9.0),
            ("headway_request_seconds_sum", stable, 2.5),
            ("headway_request_seconds_count", stable, 9.0),
        ],
        key=repr,
    )
    assert not [name for name, _, _ in envoy_samples(ENVOY, ["tiny"], buckets=False) if name.endswith("_bucket")]
