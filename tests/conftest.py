import atexit
import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # programs that tests start share the cores
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # and none waits for others at work
os.environ["FEDFM_CACHE"] = "off"  # tests neither read nor write what was measured
os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"  # the only one is trio's, which takes long to import

import pytest

MEMORY, ENOUGH = Path("/dev/shm"), 2**31
"""Linux's folder in memory, and the bytes that it must have left."""

gc.disable()  # until everything is imported, which leaves next to no garbage
WORKER = "PYTEST_XDIST_WORKER" in os.environ
if WORKER:  # what else is registered runs before; Python would then free all objects, for seconds
    atexit.register(os._exit, 0)


def pytest_configure():
    """Let tests write their many small files to memory, if there is room and programs may run."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        found = os.statvfs(MEMORY)
        if found.f_bavail * found.f_frsize > ENOUGH and not found.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_modifyitems(items):
    """Begin with what takes longest to set up, so that no worker ends alone with it."""
    items.sort(key=lambda item: "compute_once" not in item.fixturenames)


def pytest_collection_finish():
    """Keep what was imported out of all garbage collections: it stays until the end."""
    import hypothesis  # noqa: F401  (pytest imports it in the end, and it looks at the references)

    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)  # tests are short, and leave little
    atexit.register(gc.unfreeze)  # or Triton's extension reports what was never freed


@pytest.fixture(autouse=True)
def one_thread():
    import torch  # not in the process that only distributes tests

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_plugins():
    """Let no test leave a plugin behind for later tests and the programs that they start."""
    from fedfm.methods import PIECES
    from fedfm.plugins import CODE_DIGESTS

    variable = os.environ.get("FEDFM_METHODS")
    registries: list[dict[str, Any]] = [PIECES, CODE_DIGESTS]
    before = [dict(registry) for registry in registries]
    yield
    os.environ.pop("FEDFM_METHODS", None)
    if variable is not None:
        os.environ["FEDFM_METHODS"] = variable
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.fixture
def hasty_t_sne(monkeypatch):
    """Let t-SNE end early, in tests of pictures that do not look at where the points are."""
    monkeypatch.setattr("fedfm.features.embedding.ITERATIONS", 10)


@pytest.fixture(scope="session")
def compute_once(tmp_path_factory) -> Callable[[str, Callable[[], Any]], Any]:
    """Computes a value in the first worker that needs it; the others read it from a file."""
    from fedfm.core.locks import lock

    if not WORKER:
        return lambda name, compute: compute()

    def compute_once(name: str, compute: Callable[[], Any]) -> Any:
        path = tmp_path_factory.getbasetemp().parent / name
        with path.with_suffix(".lock").open("w") as file, lock(file, wait=True):
            if not path.exists():
                path.write_bytes(pickle.dumps(compute()))
        return pickle.loads(path.read_bytes())

    return compute_once
