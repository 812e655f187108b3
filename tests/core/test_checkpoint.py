"""Checkpoints: what is saved comes back bit by bit, and a crash never leaves half of one."""

import ast
import json
import re
import string
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedfm
from fedfm.core.checkpoint import MANIFEST, Damaged, load_checkpoint, save_checkpoint, to_bytes
from fedfm.core.errors import UserError
from fedfm.core.files import write_atomically
from fedfm.core.trees import Tree, flatten
from tests.folders import FullDisk, PowerFailure, contents, failing

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def tensors() -> st.SearchStrategy[Tensor]:
    """Tensors of any bits, NaN and Inf among them, of any layout."""
    shapes = st.lists(st.integers(1, 4), max_size=3)

    def build(dtype: torch.dtype, shape: list[int], seed: int, transposed: bool) -> Tensor:
        bits = torch.Generator().manual_seed(seed)
        size = 1 if dtype == torch.bool else dtype.itemsize
        top = 2 if dtype == torch.bool else 256
        raw = torch.randint(top, (*shape, size), generator=bits, dtype=torch.uint8)
        tensor = raw.view(dtype).view(shape)
        return tensor.mT if transposed and len(shape) > 1 else tensor

    return st.builds(build, st.sampled_from(DTYPES), shapes, st.integers(0, 99), st.booleans())


def trees() -> st.SearchStrategy[Tree]:
    names = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=6)
    return st.recursive(
        st.dictionaries(names, tensors(), min_size=1, max_size=3),
        lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3),
        max_leaves=6,
    )


def bits(tree: Tree) -> dict[str, tuple[torch.dtype, torch.Size, bytes]]:
    return {
        path: (
            leaf.dtype,
            leaf.shape,
            leaf.contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
        )
        for path, leaf in flatten(tree).items()
    }


def numbered(round: int) -> dict[str, tuple[int, Tree]]:
    """The parts of a checkpoint whose every number is the round's; best is always round 1's."""
    weights = {"params": {"w": torch.full((30, 4), float(round))}}
    return {"state": (round, weights), "best": (1, {"b": torch.ones(3)})}


def save(folder: Path, round: int) -> None:
    save_checkpoint(folder, numbered(round), {"round": round})


def saved_round(folder: Path) -> int:
    """Which round a checkpoint is of, once all of it is seen to be of that round."""
    loaded = load_checkpoint(folder)
    assert loaded is not None
    parts, facts = loaded
    assert bits(parts["state"]) == bits(numbered(facts["round"])["state"][1])
    assert bits(parts["best"]) == bits({"b": torch.ones(3)})
    return int(facts["round"])


@settings(max_examples=30, deadline=None)
@given(tree=trees(), other=trees())
def test_trees_come_back_bit_by_bit_with_the_facts(tmp_path_factory, tree, other):
    folder = tmp_path_factory.mktemp("checkpoint")
    facts = {"round": 3, "best": {"accuracy": 0.1 + 0.2, "model": None}}
    save_checkpoint(folder, {"state": (3, tree), "best": (1, other)}, facts)
    loaded = load_checkpoint(folder)
    assert loaded is not None
    assert bits(loaded[0]["state"]) == bits(tree)
    assert bits(loaded[0]["best"]) == bits(other)
    assert loaded[1] == facts


def test_only_the_last_checkpoint_stays(tmp_path):
    for round in (1, 2, 3):
        save(tmp_path, round)
    names = {"state-000003.safetensors", "best-000001.safetensors", MANIFEST}
    assert contents(tmp_path).keys() == names
    assert saved_round(tmp_path) == 3


def test_a_part_that_did_not_change_is_not_written_again(tmp_path):
    save(tmp_path, 1)
    before = (tmp_path / "best-000001.safetensors").stat()
    save(tmp_path, 2)
    after = (tmp_path / "best-000001.safetensors").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_where_nothing_was_saved_there_is_no_checkpoint(tmp_path):
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "nowhere") is None


def test_what_a_crash_before_the_first_checkpoint_left_is_not_taken_for_new(tmp_path):
    stale = tmp_path / "state-000001.safetensors"
    write_atomically(stale, to_bytes({"params": {"w": torch.zeros(30, 4)}}))
    assert load_checkpoint(tmp_path) is None
    save(tmp_path, 1)
    assert saved_round(tmp_path) == 1


def touches_of_a_save(monkeypatch, folder: Path) -> int:
    save(folder, 1)
    with failing(monkeypatch, 10**9, PowerFailure) as touches:
        save(folder, 2)
    return touches()


def test_a_power_failure_at_any_step_leaves_the_old_or_the_new_checkpoint(monkeypatch, tmp_path):
    found = []
    for step in range(1, touches_of_a_save(monkeypatch, tmp_path / "counted") + 1):
        folder = tmp_path / str(step)
        save(folder, 1)
        with failing(monkeypatch, step, PowerFailure), pytest.raises(PowerFailure):
            save(folder, 2)
        found.append(saved_round(folder))
        assert len(contents(folder)) == 3, "what the crash left is gone"
        save(folder, 2)
        assert saved_round(folder) == 2
    assert found == sorted(found)
    assert set(found) == {1, 2}, "the replacement of the manifest is the moment that counts"
    assert len(found) >= 8


def test_after_a_failed_write_the_old_checkpoint_is_whole_and_the_next_save_works(
    monkeypatch, tmp_path
):
    for step in range(1, touches_of_a_save(monkeypatch, tmp_path / "counted") + 1):
        folder = tmp_path / str(step)
        save(folder, 1)
        with failing(monkeypatch, step, FullDisk), pytest.raises(FullDisk):
            save(folder, 2)
        assert saved_round(folder) in (1, 2)
        save(folder, 3)
        assert saved_round(folder) == 3
        assert len(contents(folder)) == 3


@pytest.mark.parametrize("step", range(1, 4))
def test_a_failed_replacement_leaves_the_file_and_no_other(monkeypatch, tmp_path, step):
    target = tmp_path / "file"
    write_atomically(target, b"old")
    with failing(monkeypatch, step, FullDisk), pytest.raises(FullDisk):
        write_atomically(target, b"new")
    assert contents(tmp_path) == {"file": b"old"}
    write_atomically(target, b"new")
    assert contents(tmp_path) == {"file": b"new"}


def truncated(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


DAMAGE = {
    "tensors cut off": lambda f: truncated(f / "state-000001.safetensors", 0.9),
    "tensors cut off in the header": lambda f: truncated(f / "state-000001.safetensors", 0.05),
    "tensors empty": lambda f: (f / "state-000001.safetensors").write_bytes(b""),
    "tensors missing": lambda f: (f / "best-000001.safetensors").unlink(),
    "tensors overwritten": lambda f: (f / "best-000001.safetensors").write_bytes(b"\xff" * 400),
    "manifest cut off": lambda f: truncated(f / MANIFEST, 0.5),
    "manifest empty": lambda f: (f / MANIFEST).write_bytes(b""),
    "manifest of zeros": lambda f: (f / MANIFEST).write_bytes(bytes(100)),
    "manifest no text": lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe\x80"),
    "manifest no table": lambda f: (f / MANIFEST).write_text("[1, 2]"),
    "manifest without files": lambda f: (f / MANIFEST).write_text('{"format": 1}'),
    "files no table": lambda f: (f / MANIFEST).write_text(
        '{"format": 1, "files": ["a"], "facts": {}}'
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_checkpoint_is_refused_in_words_and_left_alone(tmp_path, damage):
    save(tmp_path, 1)
    damage(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(Damaged, match=re.escape(str(tmp_path))):
        load_checkpoint(tmp_path)
    assert contents(tmp_path) == before


def test_a_checkpoint_of_another_format_is_refused_with_both_numbers(tmp_path):
    save(tmp_path, 1)
    manifest = json.loads((tmp_path / MANIFEST).read_text()) | {"format": 99, "files": {}}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"\b99\b.*\b1$"):
        load_checkpoint(tmp_path)


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve"}
UNSAFE_CALLS = {"torch.load", "torch.save", "pandas.read_pickle"}


def used(path: Path) -> set[str]:
    """The modules a file imports and the dotted names it uses."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names |= {module.split(".")[0], *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute):
            names.add(ast.unparse(node))
        elif isinstance(node, ast.keyword) and node.arg:
            names.add(f"{node.arg}=")
    return names


def test_nothing_in_the_package_unpickles():
    files = list(Path(fedfm.__file__).parent.rglob("*.py"))
    assert len(files) > 30
    found = {
        file.name: used(file) & {*UNSAFE_MODULES, *UNSAFE_CALLS, "allow_pickle="} for file in files
    }
    assert {name: bad for name, bad in found.items() if bad} == {}
    assert "torch" in used(Path(fedfm.__file__).parent / "rounds" / "costs.py"), (
        "the search does find names"
    )
