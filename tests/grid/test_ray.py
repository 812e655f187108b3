"""Cells on a Ray cluster of this machine.

Ray listens on all interfaces, so it is started in a network of its own that has but loopback.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from fedfm.core.errors import UserError
from fedfm.grid.budget import Budget
from fedfm.grid.workers import RayWorkers
from tests.cli.tools import sets
from tests.grid.grids import found, timeless

SHORT = sets("executor=stacked", "rounds=2", "epochs=1", "batch_size=32")
ARGUMENTS = ("table", "anchors", "--quick", "--seeds", "2", *SHORT)
MAIN = "from fedfm.cli import main; main()"


def test_without_ray_the_message_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install '\.\[ray\]'"):
        RayWorkers(tmp_path, Budget())


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
    engine = RayWorkers(tmp_path, Budget())
    assert wanted == {"max_retries": 0, **asked}
    assert (engine.slots, engine.device) == (slots, device)


@pytest.mark.skipif(find_spec("ray") is None, reason="pip install '.[ray]'")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare of util-linux")
def test_a_table_on_a_local_cluster(tmp_path):
    command = [sys.executable, "-c", MAIN, *ARGUMENTS]
    subprocess.run([*command, "--results", str(tmp_path / "local")], check=True, timeout=120)
    alone = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    on_ray = ["--results", str(tmp_path / "ray"), "--engine", "ray"]
    done = subprocess.run(
        [*alone, *command, *on_ray], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(found(tmp_path / "ray")) == 6
    assert timeless(tmp_path / "ray") == timeless(tmp_path / "local")
