"""`fedfm predict`."""

from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.options import Client, FinishedRun


def predict(
    run: FinishedRun,
    data: Annotated[
        Path,
        typer.Option(help="A table (CSV, TSV or Parquet), an image, or a folder of images."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .csv file.")] = Path(
        "predictions.csv"
    ),
    client: Client = None,
) -> None:
    """Classify new samples with the model of a run.

    The table has a row for each sample: its row or file, its most probable class, and the
    probability of every class. Inputs are normalised as in training.
    """
    from fedfm.core.checkpoint import write_atomically
    from fedfm.core.errors import require
    from fedfm.core.tables import to_csv
    from fedfm.run.load import load, read_samples

    require(out.suffix == ".csv", f"--out takes a .csv file, not {out}")
    classifier = load(run, client=client)
    samples = read_samples(run, data, classifier.data)
    rows = [
        {"sample": name, "class": classifier.classes[max(range(len(p)), key=p.__getitem__)]}
        | {
            f"probability_{c}": f"{value:.6g}"
            for c, value in zip(classifier.classes, p, strict=True)
        }
        for name, p in zip(samples.names, classifier.predict(samples.inputs).tolist(), strict=True)
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, to_csv(rows).encode())
    print(f"wrote {out}: {len(rows)} samples")
