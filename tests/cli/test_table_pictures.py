"""Recipes that the paper shows as figures leave a picture, marked where it is a reduced one."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.cli.tools import sets

pytestmark = pytest.mark.usefixtures("hasty_t_sne")
SHORT = sets("executor=stacked", "rounds=2", "epochs=1", "batch_size=32")


@pytest.fixture
def titles(monkeypatch) -> list[str]:
    """The titles of the pictures that are drawn."""
    seen: list[str] = []
    right = Figure.suptitle

    def suptitle(self, text, *rest, **options):
        seen.append(text)
        return right(self, text, *rest, **options)

    monkeypatch.setattr(Figure, "suptitle", suptitle)
    return seen


@pytest.mark.parametrize(
    ("name", "picture"),
    [("lite", "lite/curve-quick.png"), ("tsne", "tsne/features-quick.png")],
)
def test_a_figure_is_drawn_after_its_table(command, name, picture):
    answer = command("table", name, "--quick", "--seeds", "1", "--only", "FedFM", *SHORT)
    assert answer.code == 0, answer.err
    assert f"picture in results/{picture}" in answer.err
    assert Path("results", picture).read_bytes().startswith(b"\x89PNG")


def test_two_clients_are_drawn_without_a_table(command, titles):
    answer = command("table", "motivation", "--quick", "--format", "json", *SHORT)
    assert answer.code == 0, answer.err
    assert "results/motivation/clients-quick.png" in answer.out
    assert Path("results/motivation/clients-quick.png").read_bytes().startswith(b"\x89PNG")
    assert any(title.startswith("REDUCED (--quick)") for title in titles)
