"""Hash the models of short runs of every method, to show that a change computes the same numbers.

python tools/model_hashes.py hashes.json            # write them
python tools/model_hashes.py hashes.json --check    # compare what was written, and no more

Another processor may round differently: write the hashes on the machine that compares them.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors.numpy import load_file

from fedfm.config import load_config
from fedfm.methods import PIECES
from fedfm.run.runner import run_configs

MATCHING = ("fedfm", "fedfm-lite", "fedproto")
EVERY_OTHER_ROUND = (["fedfm-lite"], ["fedprox", "fedfm-lite"])
SETTINGS = ["rounds=4", "epochs=2", "participation=0.7", "threads=1", "weight_decay=0.001"]


def methods() -> Iterator[list[str]]:
    """Yield every method alone, and those that compose with FedFM and FedFM-Lite on top."""
    yield from ([name] for name in PIECES)
    for top in MATCHING[:2]:
        yield from ([name, top] for name in PIECES if name not in (*MATCHING, "fedavg"))


def hash_run(pieces: list[str], executor: str) -> str:
    """Train four short rounds on digits; return the hash of the model and of its curves."""
    changes = [*SETTINGS, f"method={json.dumps(pieces)}", f"executor={executor}"]
    for name in pieces:
        if name in MATCHING:
            changes += [f"{name}.start_round=1", f"{name}.strength=1.0"]
    changes += ["fedlc.exclude_true=false"] if "fedlc" in pieces else []
    changes += ["model.norm=batch"] if "fedbn" in pieces else []
    changes += ["fedfm-lite.models_every=2"] if pieces in EVERY_OTHER_ROUND else []
    with tempfile.TemporaryDirectory() as folder:
        (result,) = run_configs([load_config("digits", changes)], outs=[Path(folder, "run")])
        tensors = load_file(f"{folder}/run/model.safetensors")
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.tobytes())
    for record in result.rounds:
        digest.update(f"{record.test_accuracy} {record.train_loss}".encode())
    return digest.hexdigest()[:16]


def main() -> None:
    """Write the hashes, or name those that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    known = json.loads(options.file.read_text()) if options.check else None
    runs = {
        f"{'+'.join(pieces)}, {executor}": (pieces, executor)
        for executor in ("loop", "stacked")
        for pieces in methods()
    }
    hashes = {name: hash_run(*run) for name, run in runs.items() if known is None or name in known}
    if known is None:
        options.file.write_text(json.dumps(hashes, indent=2) + "\n")
        return
    different = [name for name, value in known.items() if hashes.get(name) != value]
    print(f"{len(known) - len(different)} of {len(known)} are the same")
    sys.exit(f"differ: {', '.join(sorted(different))}" if different else None)


if __name__ == "__main__":
    main()
