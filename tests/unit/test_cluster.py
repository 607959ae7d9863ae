"""What Ray Serve is told, and what headway makes of what vLLM says."""

from pathlib import Path

import pytest

from headway.adapters.local.engine_log import last_line, root_cause
from headway.domain.cluster import ClusterSpec, deployment_name, serve_config
from headway.domain.engine_error import last_error
from headway.domain.profile import Engine, Replicas
from headway.units import GIB
from tests.factories import make_plan


def spec(**changes: object) -> ClusterSpec:
    """A cluster of the small profile."""
    return make_plan().cluster.model_copy(update=changes)


def test_a_changed_floor_changes_nothing_but_the_override() -> None:
    """Anything else that differed would rebuild every replica (measured: one of 200 probes lost)."""
    before = serve_config(spec(), cpu=True, http_port=1)
    after = serve_config(spec(replicas=Replicas(min=2, max=3)), cpu=True, http_port=1)

    (app_before,), (app_after,) = before["applications"], after["applications"]
    (override_before,), (override_after,) = app_before.pop("deployments"), app_after.pop("deployments")

    assert before == after
    assert override_before.keys() == override_after.keys()
    assert override_before["name"] == override_after["name"]
    assert override_after["autoscaling_config"]["min_replicas"] == 2


def test_a_release_changes_nothing_of_what_serve_runs() -> None:
    """The release's id is not part of the cluster, so a second release of the same plan adopts it."""
    assert serve_config(spec(release="r1"), cpu=True, http_port=1) == serve_config(
        spec(release="r2"), cpu=True, http_port=1
    )


def test_the_override_names_the_deployment_as_ray_does() -> None:
    """Ray replaces what its names may not hold; an override for a deployment that is not there fails the deploy."""
    assert deployment_name("org/llama-3.1") == "LLMServer:org--llama-3_1"


def test_clients_see_the_models_name_and_not_its_folder() -> None:
    """One served name (design rule 13.8)."""
    (llm,) = serve_config(spec(), cpu=False, http_port=1)["applications"][0]["args"]["llm_configs"]

    assert llm["model_loading_config"] == {"model_id": "tiny", "model_source": spec().model_dir}


def test_on_cpu_the_cache_has_the_profiles_size_and_no_accelerator_is_asked_for() -> None:
    """A fraction of a GiB counts; vLLM's environment variable takes whole ones only."""
    config = serve_config(spec(engine=Engine(kv_cache_gib=0.25)), cpu=True, http_port=1)
    (llm,) = config["applications"][0]["args"]["llm_configs"]

    assert llm["engine_kwargs"]["kv_cache_memory_bytes"] == GIB // 4
    assert "gpu_memory_utilization" not in llm["engine_kwargs"]
    assert "accelerator_type" not in llm


@pytest.mark.parametrize("cpu", [True, False])
def test_the_engine_asks_whether_every_weight_was_there(cpu: bool) -> None:
    """Of a quantized checkpoint vLLM does not by itself. It changes no cluster's name: those are made of the plan."""
    (llm,) = serve_config(spec(), cpu=cpu, http_port=1)["applications"][0]["args"]["llm_configs"]

    assert llm["engine_kwargs"]["model_loader_extra_config"] == {"enable_weights_track": True}


def test_serve_keeps_connections_longer_than_the_gateway() -> None:
    """Or requests die at random in connections that Serve is closing."""
    assert serve_config(spec(), cpu=True, http_port=1)["http_options"]["keep_alive_timeout_s"] == 90


def test_the_cause_is_found_where_vllm_logged_it(tmp_path: Path) -> None:
    """Not the consequence that the other processes report (a real log, shortened)."""
    (tmp_path / "worker-1.err").write_text(
        "(Worker pid=7) ERROR 11-30 12:22:54 [multiproc_executor.py:944] safetensors.SafetensorError: "
        "Error while deserializing header: incomplete metadata, file not fully covered\n"
        "(EngineCore pid=6) ERROR 11-30 12:22:55 [core.py:1376] Exception: WorkerProc initialization failed ...\n"
    )

    assert root_cause(tmp_path).startswith("SafetensorError: Error while deserializing header: incomplete metadata")
    assert root_cause(tmp_path / "nothing") == ""


def test_missing_weights_are_named() -> None:
    """A real log of vLLM 0.29, shortened: the API server's last words do not say it."""
    log = [
        "(Worker pid=9) ERROR 11-30 16:00:46 [x.py:944] ValueError: Following weights were not initialized from {...}",
        "(EngineCore pid=7) ERROR 11-30 16:00:50 [core.py:1374] Exception: WorkerProc initialization failed due to ...",
        "(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above.",
    ]

    assert last_error(log).startswith("ValueError: Following weights were not initialized")
    assert last_error(log[1:]).startswith("RuntimeError: Engine core initialization failed")
    assert last_error(["usage: api_server.py", "", "unrecognized arguments: --no-such"]).startswith("unrecognized")
    assert last_error([]) == "it said nothing"


def test_of_a_traceback_the_error_is_said() -> None:
    """A person reads one line in a table."""
    assert last_line("Traceback:\n  File x.py\nRuntimeError: no room\n\n") == "RuntimeError: no room"
