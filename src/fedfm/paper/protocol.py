"""Say in the document how the runs were made, and how settings were chosen."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedfm.core.tables import flatten_keys
from fedfm.paper.claims import L2
from fedfm.paper.evidence import Evidence
from fedfm.paper.settings import CHOICES, read_data_settings
from fedfm.report.tables.formats import format_markdown_table
from fedfm.report.tables.tuned_settings import find_tried

HOW = """\
## How the runs were made

- **Protocol**: {rounds}, ten clients unless a table says otherwise, ten local epochs, batches of
  64, SGD with learning rate 0.01, momentum 0.9 and weight decay 1e-5. Tuning takes 30 rounds.
- **Best round**: the result is the test accuracy of the round with the highest mean of the clients'
  validation accuracies. Every client counts the same, as the paper says; the authors' code pools
  the clients' samples.
- **Seeds**: a seed draws the partition, the initial model and the order of samples, so standard
  deviations include the variation over partitions. Methods with the same seed share all three.
- **Precision**: {precision} Averages, losses and statistics are always fp32.
- **Normalisation**: {normalisation} Images of CIFAR-10 are not augmented; those of CIFAR-100 are
  cropped, flipped and rotated.
- **Projection head**: none, so features are those of the ResNet. MOON's authors put two layers
  between these and the last one, for every method that they compare. Only the rows "with head" of
  the recipe `baselines` have them.
- **L2 guiding**: the squared distance is summed over the features, as in Eq. 3. The authors' code
  averages it, which is 512 times weaker; the rows "averaged" do the same.
- **Features**: NMI, silhouette and the points of t-SNE are taken from the test features of the best
  model at the end of each run. Models are not kept.
"""
TUNING = """\
### Tuned settings

Values are compared by validation accuracy with one seed after 30 rounds, over both partitions of
CIFAR-10, and are used for all data. The choice is stored when all runs of its recipe are finished.
If the best value is at the end of its range, one more value beyond is tried. FedFM-Lite uses the
paper's settings of FedFM. FedAvg, SCAFFOLD and FedNova have nothing to tune.
"""
HEADS = ("method", "tried, with validation accuracy (%)", "chosen", "chosen on JPEG images")


def render_protocol(exact: Evidence, jpeg: Evidence | None) -> str:
    """Return the sections on the protocol and on tuned settings."""
    facts = HOW.format(
        rounds=_describe_rounds(exact),
        precision=_describe_precision(exact),
        normalisation=_describe_normalisation(exact),
    )
    table = format_markdown_table(HEADS, list(_list_settings(exact, jpeg)))
    return f"{facts}\n{TUNING}\n{table}"


def _describe_rounds(exact: Evidence) -> str:
    """Describe the rounds by data, as the recipe of Table II has them."""
    recipe = exact.tables["main"].recipe
    rounds = {
        label: flatten_keys(settings).get("training.rounds", 100)
        for label, settings in recipe.axes["data"].items()
    }
    fewer = [f"{number} on {label}" for label, number in rounds.items() if number != 100]
    return f"100 rounds ({', '.join(fewer)} with ResNet50)" if fewer else "100 rounds"


def _describe_precision(exact: Evidence) -> str:
    kinds = {(run.config.get("precision", "auto"), run.device) for run in exact.runs}
    words = {
        ("auto", "cuda"): "`auto`, which is bf16 products in the network on this GPU.",
        ("auto", "cpu"): "`auto`, which is fp32 on a CPU.",
    }
    known = sorted(words.get(kind, f"{kind[0]} on {kind[1]}.") for kind in kinds)
    return " ".join(known) or "no runs yet."


def _describe_normalisation(exact: Evidence) -> str:
    settings = read_data_settings(exact.folder)
    named = {k: v for k, v in settings.items() if k.endswith((".mean", ".std"))}
    if not named:
        return "by the data set's own mean and standard deviation of each channel."
    given = "; ".join(f"`{key} = {value}`" for key, value in named.items())
    return f"the authors' mean and standard deviation, in units of stored values ({given})."


def _list_settings(exact: Evidence, jpeg: Evidence | None) -> Iterator[list[str]]:
    """Yield a row for each method: what was tried, and what was chosen, as stored."""
    for recipe in CHOICES:
        table = exact.tables[recipe]
        for method, tried in find_tried(table.recipe, table).items():
            name = L2 if recipe == "tune-l2" else method
            values = (
                f"{_format_settings(settings)} ({'not run' if value is None else f'{value:.2f}'})"
                for settings, value in tried
            )
            chosen = _format_chosen(exact.choice.get(name))
            before = _format_chosen(jpeg.choice.get(name)) if jpeg else ""
            yield [name, ", ".join(values), chosen, before]


def _format_chosen(settings: Mapping[str, Any] | None) -> str:
    return "not chosen yet" if settings is None else _format_settings(settings)


def _format_settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())
