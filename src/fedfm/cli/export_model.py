"""`fedfm export-model`."""

from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.options import Client, FinishedRun


def export_model(
    run: FinishedRun,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="A .pt2 file for a program of torch.export, or a .safetensors file for a state "
            "dict.",
        ),
    ] = Path("model.pt2"),
    client: Client = None,
) -> None:
    """Write the model of a run for use without FedFM.

    The program takes raw inputs and returns probabilities: it has the normalisation inside. The
    state dict has the network's own names.
    """
    from fedfm.core.errors import require
    from fedfm.run.classifier import PROGRAM, STATE_DICT
    from fedfm.run.load import load

    fits = out.suffix in (PROGRAM, STATE_DICT)
    require(fits, f"--out takes a {PROGRAM} or a {STATE_DICT} file, not {out}")
    classifier = load(run, client=client)
    out.parent.mkdir(parents=True, exist_ok=True)
    (classifier.export if out.suffix == PROGRAM else classifier.save)(out)
    print(f"wrote {out}")
