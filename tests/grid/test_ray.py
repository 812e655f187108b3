"""What is asked of Ray; `make test-ray` starts a cluster."""

import sys
from types import SimpleNamespace

import pytest

from fedfm.core.errors import UserError
from fedfm.grid.budget import Budget
from fedfm.grid.job_pools import RayPool


def test_without_ray_the_message_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install '\.\[ray\]'"):
        RayPool(tmp_path, Budget())


@pytest.mark.parametrize(
    ("there", "asked", "slots", "device"),
    [
        ({"CPU": 8.0, "GPU": 2.0}, {"num_gpus": 1}, 2, "cuda"),
        ({"CPU": 8.0}, {"num_cpus": 1}, 8, "cpu"),
    ],
)
def test_a_task_asks_for_a_gpu_where_there_are_any(
    monkeypatch, tmp_path, there, asked, slots, device
):
    wanted: dict[str, object] = {}

    def remote(**resources: object):
        wanted.update(resources)
        return lambda function: function

    cluster = SimpleNamespace(
        init=lambda **_: None, cluster_resources=lambda: there, remote=remote, shutdown=lambda: None
    )
    monkeypatch.setitem(sys.modules, "ray", cluster)
    engine = RayPool(tmp_path, Budget())
    assert wanted == {"max_retries": 0, **asked}
    assert (engine.slots, engine.device) == (slots, device)
