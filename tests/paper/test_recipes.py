"""Recipes: every cell is a valid config, and the paper's numbers are the paper's."""

import collections

import pytest

from fedfm.core.errors import UserError
from fedfm.grid.changes import merge_settings
from fedfm.grid.identity import digest
from fedfm.grid.recipe import Recipe, expand_cells
from fedfm.paper.catalogue import list_recipe_names, load_recipe

NUMBER_OF_CELLS = {
    "main": (3 * 2 * 8, 16),
    "missing": (8 * 5, 16),
    "clients": (8 * 4, 16),
    "quality": (8, 8),
    "anchors": (3, 3),
    "lite": (8, 8),
    "modularity": (4 * 2, 8),
    "guiding": (5 * 5, 10),
    "lambda": (7 * 3 + 1, 5),
    "epochs": (8 * 4, 16),
    "participation": (8 * 4, 16),
    "motivation": (3, 3),
    "tsne": (8, 8),
    "tune": (6 * 5 * 2, 4 * 2),
    "partitions": (3, 3),
    "proto": (6, 6),
    "field": (2 * 11, 11),
    "field-anchors": (6, 6),
    "field-matching": (2 * 9, 2 * 3),
    "field-published": (2 * 8, 8),
    "field-tune": (4 * 11, 4),
    "clients-resnet18": (3 * 3, 6),
    "tune-l2": (5 * 2, 2 * 2),
    "baselines": (11 * 2, 4 * 2),
}
PAPERS = sorted(name for name in NUMBER_OF_CELLS if not name.startswith("field"))
"""The others are about the field's methods: tests/paper/comparison."""


def config(name: str, *labels: str, quick: bool = False, overrides: tuple[str, ...] = ()):
    """The resolved config of the cell with these labels."""
    among = expand_cells(load_recipe(name), quick, overrides)
    return next(c.resolved for c in among if tuple(c.labels.values()) == labels)


def test_every_name_of_the_paper_is_there():
    assert sorted(NUMBER_OF_CELLS) == list_recipe_names()


@pytest.mark.parametrize("name", sorted(NUMBER_OF_CELLS))
@pytest.mark.parametrize("quick", [False, True])
def test_every_cell_is_a_valid_config_of_its_own(name, quick):
    found = list(expand_cells(load_recipe(name), quick))
    assert len(found) == NUMBER_OF_CELLS[name][quick]
    assert len({digest(cell.resolved.as_toml()) for cell in found}) == len(found)
    assert all((cell.resolved.data.name == "digits") == quick for cell in found)


@pytest.mark.parametrize("name", sorted(NUMBER_OF_CELLS))
def test_the_papers_numbers_belong_to_cells(name):
    recipe = load_recipe(name)
    several = recipe.measures if len(recipe.measures) > 1 else ("",)
    known = {" / ".join(filter(None, [c.title, m])) for c in expand_cells(recipe) for m in several}
    assert recipe.values.keys() <= known
    assert recipe.title
    assert recipe.paper or name not in PAPERS
    assert recipe.about


def test_full_size_cells_follow_the_papers_protocol():
    for name in PAPERS:
        for cell in expand_cells(load_recipe(name)):
            run = cell.resolved.training
            fewer = 80 if cell.labels.get("data") == "CIFAR-100" else 100
            assert run.rounds == (30 if name in ("tune", "tune-l2") else fewer)
            assert (run.batch_size, run.lr, run.momentum) == (64, 0.01, 0.9)
            assert (run.weight_decay, run.validation) == (1e-5, 0.2)
            assert name == "epochs" or run.epochs == 10
            assert name == "participation" or run.participation == 1.0
            assert name in ("clients", "clients-resnet18", "motivation") or run.clients == 10


def test_the_papers_settings_of_fedfm():
    own = config("main", "FedFM", "CIFAR-10", "NIID-1").method["fedfm"]
    assert (own["strength"], own["start_round"], own["temperature"]) == (50.0, 20, 0.1)
    assert (own["guide"], own["anchors"]) == ("cg", "weighted")
    cinic = config("main", "FedFM", "CINIC-10", "NIID-2")
    assert (cinic.data.name, cinic.model.name, cinic.partition.dominance) == (
        "cinic10",
        "resnet18",
        9.0,
    )
    assert config("main", "MOON", "CIFAR-100", "NIID-2").model.name == "resnet50"
    assert config("lambda", "T_s = 40", "500").method == {
        "fedfm": own | {"strength": 500.0, "start_round": 40}
    }
    assert config("lite", "FedFM-Lite, a = 10").method["fedfm-lite"]["models_every"] == 10
    assert config("missing", "FedAvg", "missing 7").partition.missing == 7


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("main", "FedAvg / CIFAR-10 / NIID-1", [66.69, 0.69]),
        ("main", "SCAFFOLD / CIFAR-100 / NIID-2", [67.24, 0.03]),
        ("main", "FedDyn / CIFAR-100 / NIID-1", [43.41, 0.54]),
        ("main", "MOON / CINIC-10 / NIID-2", [59.28, 0.03]),
        ("main", "FedFM / CINIC-10 / NIID-2", [65.75, 0.46]),
        ("missing", "FedFM / missing 7", [65.24, 0.52]),
        ("missing", "MOON / missing 7", [57.80, 1.02]),
        ("missing", "FedNova / missing 1", [70.56, 0.25]),
        ("clients", "FedFM / K = 100 / test_accuracy", 55.38),
        ("clients", "FedFM / K = 100 / floats_up", 2390e8),
        ("clients", "SCAFFOLD / K = 30 / floats_up", 1422e8),
        ("clients", "FedAvgM / K = 50 / test_accuracy", 52.86),
        ("quality", "FedDyn / nmi", 0.485),
        ("quality", "FedFM / silhouette", 0.173),
        ("quality", "FedProx / silhouette", 0.006),
        ("anchors", "FedFM (uniform)", [72.87, 0.26]),
        ("proto", "FedProto", [67.33, 0.49]),
        ("lite", "FedFM-Lite, a = 5 / test_accuracy", 70.66),
    ],
)
def test_the_papers_numbers(name, key, value):
    assert load_recipe(name).values[key] == value


def test_the_same_experiment_has_the_same_config_in_all_recipes():
    fedfm = digest(config("main", "FedFM", "CIFAR-10", "NIID-1").as_toml())
    for name, *labels in (
        ("anchors", "FedFM (weighted)"),
        ("modularity", "FedAvg", "with FM"),
        ("guiding", "FedFM (CG)", "0.5"),
        ("lambda", "T_s = 20", "50"),
        ("quality", "FedFM"),
        ("tsne", "FedFM"),
        ("proto", "FedFM"),
        ("epochs", "FedFM", "E = 10"),
        ("participation", "FedFM", "100 %"),
    ):
        assert digest(config(name, *labels).as_toml()) == fedfm, name


def test_modularity_composes_pieces():
    assert list(config("modularity", "MOON", "with FM").method) == ["moon", "fedfm"]
    assert list(config("modularity", "MOON", "without FM").method) == ["moon"]


def test_overrides_reach_every_cell_they_are_about():
    changed = ("rounds=7", "data.name=folder", "data.path=/pictures", "fedfm.strength=3")
    fedavg = config("anchors", "FedAvg", overrides=changed)
    fedfm = config("anchors", "FedFM (uniform)", overrides=changed)
    assert fedavg.training.rounds == fedfm.training.rounds == 7
    assert (fedavg.data.name, fedavg.data.path) == ("folder", "/pictures")
    assert list(fedavg.method) == ["fedavg"]
    assert fedfm.method["fedfm"]["strength"] == 3
    assert fedfm.method["fedfm"]["anchors"] == "uniform"
    replaced = config("anchors", "FedFM (uniform)", overrides=("method=moon",))
    assert list(replaced.method) == ["moon"]


def test_a_change_may_be_about_one_data_set():
    """A folder of results stands in for several data sets."""
    changes = ("data.cifar10.name=folder", "data.cifar10.path=a", "data.cifar100.path=b")
    ten = config("main", "FedAvg", "CIFAR-10", "NIID-1", overrides=changes).data
    hundred = config("main", "FedAvg", "CIFAR-100", "NIID-1", overrides=changes).data
    assert (ten.name, ten.path) == ("folder", "a")
    assert (hundred.name, hundred.path) == ("cifar100", "b")
    flat = config("main", "FedAvg", "CIFAR-10", "NIID-1", overrides=("data.name=folder",))
    assert flat.data.name == "folder"


def test_a_chosen_setting_leaves_what_a_recipe_compares():
    """Lambda of Fig. 8c, and L2 guiding, whose own choice is for one row."""
    chosen = ("method.fedfm.strength=7.0",)
    cells = config("lambda", "T_s = 20", "500", overrides=chosen)
    assert cells.method["fedfm"]["strength"] == 500.0
    strength = {
        label: config("guiding", label, "0.5", overrides=(*chosen, *L2)).method["fedfm"]["strength"]
        for label in ("FedFM (L2)", "FedFM (L2, averaged)", "FedFM (L2, tuned)", "FedFM (CG)")
    }
    assert [*strength.values()] == [50.0, 50 / 512, 0.25, 7.0]


L2 = ("only.FedFM (L2, tuned).method.fedfm.strength=0.25",)


@pytest.mark.parametrize("name", ["tune", "tune-l2"])
def test_every_method_gets_five_values_and_one_beyond_each_end(name):
    recipe = load_recipe(name)
    ranges = collections.defaultdict(list)
    for settings in recipe.axes["setting"].values():
        ((method, values),) = settings["method"].items()
        ranges[method].append(
            next(v for k, v in values.items() if k not in ("guide", "start_round"))
        )
    assert {method: len(values) for method, values in ranges.items()} == dict.fromkeys(ranges, 5)
    for settings in recipe.beyond["setting"].values():
        ((method, values),) = settings["method"].items()
        value = next(v for k, v in values.items() if k not in ("guide", "start_round"))
        assert value < min(ranges[method]) or value > max(ranges[method])
    assert len(recipe.beyond["setting"]) == 2 * len(ranges)


def test_moons_projection_head_is_the_only_difference_of_its_rows():
    plain, head = (
        config("baselines", "NIID-2", f"MOON, mu = 5{more}") for more in ("", ", with head")
    )
    assert head.model.options == plain.model.options | {"projection": 256}
    assert head.method == plain.method


def test_the_papers_motivation_has_few_samples_of_mostly_one_class():
    cell = config("motivation", "FedAvg")
    assert (cell.training.clients, cell.partition.kind) == (2, "majority")
    assert (cell.partition.size, cell.partition.share) == (5000, 0.5)


def test_overrides_change_the_digest_and_machines_do_not():
    plain, other, faster = (
        digest(config("anchors", "FedAvg", overrides=changes).as_toml())
        for changes in ((), ("rounds=7",), ("executor=loop", "threads=2"))
    )
    assert plain != other
    assert plain == faster


def test_a_seed_cannot_be_set():
    with pytest.raises(UserError, match="--seeds"):
        next(expand_cells(load_recipe("main"), overrides=["seed=3"]))


def test_an_unknown_recipe_is_named_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'missing'"):
        load_recipe("mising")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = ", "mine.*TOML"),
        ('title = "t"', "mine.*'axes'"),
        ('titel = "t"', "did you mean 'title'"),
        ('title = "t"\nrows = ["a"]\ncolumns = []\n[axes.b.c]', r"\['a'\].*\['b'\]"),
        ('title = "t"\nrows = ["method"]\ncolumns = []\n[axes]\nmethod = ["FedAvgg"]', "FedAvg"),
        ('title = "t"\noutput = "x"\nrows = ["a"]\ncolumns = []\n[axes.a.b]', "output.*mine.*'x'"),
    ],
)
def test_a_bad_recipe_file_is_explained(tmp_path, text, said):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        load_recipe(str(path))


def test_a_users_recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('title = "t"\nrows = ["method"]\ncolumns = []\n[axes]\nmethod = ["FedAvg"]')
    recipe = load_recipe(str(path))
    assert recipe.name == "mine"
    assert [cell.title for cell in expand_cells(recipe)] == ["FedAvg"]


def test_reducing_twice_changes_nothing():
    reduced = load_recipe("lambda").reduced
    assert reduced.reduced == reduced
    assert list(expand_cells(reduced)) == list(expand_cells(load_recipe("lambda"), quick=True))


def test_skipped_combinations_have_no_cell():
    recipe = Recipe(
        "r",
        "t",
        {"a": {"1": {}, "2": {}}, "b": {"x": {}, "y": {}}},
        ("a",),
        ("b",),
        skipped=({"a": "1", "b": ["x", "y"]},),
    )
    assert [cell.title for cell in expand_cells(recipe)] == ["2 / x", "2 / y"]


def test_merging_keeps_what_is_not_mentioned():
    assert merge_settings({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "d": {"e": 5}}) == {
        "a": {"b": 1, "c": 4},
        "d": {"e": 5},
    }


@pytest.mark.parametrize(
    ("skipped", "said"),
    [
        ('metod = "A"', "axis.*skipped.*mine.*'metod': did you mean 'method'"),
        ('method = ["A", "C"]', "method.*skipped.*mine.*'C'.*A, B"),
    ],
)
def test_what_is_skipped_must_be_there(tmp_path, skipped, said):
    axes = "[axes.method.A]\n[axes.method.B]\n"
    text = f'title = "mine"\nrows = ["method"]\ncolumns = []\n{axes}[[skipped]]\n{skipped}\n'
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UserError, match=said):
        load_recipe(str(tmp_path / "mine.toml"))
