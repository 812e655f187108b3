"""`fedfm evaluate`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedfm.cli.options import Client, FinishedRun, Format


def evaluate(
    run: FinishedRun,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A table with the label column, or a folder of class folders with images.",
            show_default="the test data of the run",
        ),
    ] = None,
    client: Client = None,
    format: Format = "text",
) -> None:
    """Measure the accuracy of a run's model, on its test data or on new samples."""
    from fedfm.core.errors import require
    from fedfm.data.new_samples import encode_classes
    from fedfm.run.load import load, load_test_split, read_samples

    classifier = load(run, client=client)
    if data is None:
        split = load_test_split(run, client)
        inputs, labels = split.inputs, split.labels
    else:
        samples = read_samples(run, data, classifier.data)
        require(
            samples.classes is not None,
            f"{data} does not say the classes of its samples: add the column of the labels, or put "
            "the images into class folders",
        )
        inputs = samples.inputs
        labels = encode_classes(data, samples.classes or [], classifier.classes)
    accuracy = classifier.accuracy(inputs, labels)
    if format == "json":
        print(json.dumps({"samples": len(labels), "accuracy": accuracy}))
        return
    print(f"accuracy {accuracy:.2%} on {len(labels)} samples")
