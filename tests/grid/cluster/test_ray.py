"""A table on a Ray cluster of this machine: `make test-ray`.

Ray listens on all interfaces, so it is started in a network of its own that has but loopback.
"""

import subprocess
import sys

from tests.cli.tools import sets
from tests.grid.grids import found, timeless

SHORT = sets("executor=stacked", "rounds=2", "epochs=1", "batch_size=32")
ARGUMENTS = ("table", "anchors", "--quick", "--seeds", "2", *SHORT)
MAIN = "from fedfm.cli import main; main()"


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
