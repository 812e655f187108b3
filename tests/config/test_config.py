"""Configs: what a file and overrides mean, and that what is written down means the same."""

import json
import string
import tomllib
from dataclasses import asdict, dataclass, fields
from inspect import signature
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfm import FedAvg, FedFM, FedFMLite, Partition, Training, UserError, data, models, simulate
from fedfm.config import (
    Config,
    builtin_names,
    full_key,
    load_config,
    make_config,
    parse,
    plain_value,
    renamed,
)
from fedfm.methods import PIECES


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a config file, whose name comes back."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "mine.toml") -> str:
        Path(name).write_text(text)
        return name

    return write


# --- Which method is run -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "pieces"),
    [
        (["method=fedprox", "fedprox.mu=0.1"], ["fedprox"]),
        (["fedprox.mu=0.1", "method=fedprox"], ["fedprox"]),
        (['method=["fedfm", "fedprox"]', "fedprox.mu=0.1"], ["fedfm", "fedprox"]),
        (["fedfm.strength=2"], ["fedfm"]),
    ],
)
def test_settings_go_to_the_methods_that_are_chosen(overrides, pieces):
    found = load_config("digits", overrides).method
    assert [*found] == pieces
    assert found.get("fedprox", {"mu": 0.1})["mu"] == 0.1


@pytest.mark.parametrize("overrides", [["fedprox.mu=0.1"], ["method=fedavg", "fedprox.mu=0.1"]])
def test_settings_of_another_method_do_not_add_it(overrides):
    with pytest.raises(UserError, match=r"'fedprox'.*method=fedprox"):
        load_config("digits", overrides)


# --- What a file says ---------------------------------------------------------------------------


def test_an_empty_file_is_the_papers_protocol_with_fedfm(written):
    config = load_config(written(""))
    assert config.training == Training()
    assert config.partition == Partition()
    assert config.composed.pieces == (FedFM(),)
    assert (config.seed, config.executor) == (0, "auto")


def test_a_file_sets_what_it_names_and_leaves_the_rest(written):
    config = load_config(
        written(
            """
            seed = 3
            executor = "loop"
            [data]
            name = "csv"
            path = "table.csv"
            [model]
            name = "mlp"
            hidden = [5, 6]
            [partition]
            kind = "niid3"
            missing = 4
            [training]
            rounds = 7
            lr = 1
            """
        )
    )
    assert (config.seed, config.executor) == (3, "loop")
    assert (config.data.name, config.data.path, config.data.label) == ("csv", "table.csv", None)
    options = {"hidden": [5, 6], "norm": "none", "head": "linear"}
    assert (config.model.name, config.model.options) == ("mlp", options)
    assert config.partition == Partition("niid3", missing=4)
    assert config.training == Training(rounds=7, lr=1.0)


METHODS = {
    'method = "fedavg"': (FedAvg(),),
    'method = ["fedavg", "fedfm-lite"]': (FedAvg(), FedFMLite()),
    "[method.fedfm]": (FedFM(),),
    "[method.fedfm]\nstrength = 3\nguide = 'l2'": (FedFM(strength=3.0, guide="l2"),),
    "[method.fedavg]\n[method.fedfm-lite]\nmodels_every = 2": (
        FedAvg(),
        FedFMLite(models_every=2),
    ),
}


@pytest.mark.parametrize("text", METHODS)
def test_methods_are_a_name_or_a_list_of_names_or_a_table(written, text):
    assert load_config(written(text)).composed.pieces == METHODS[text]


@pytest.mark.parametrize("name", builtin_names())
def test_the_built_in_configs_name_data_models_and_methods_that_exist(name):
    config = load_config(name)
    assert config.data.name in data.SOURCES
    assert set(config.model.options) <= set(models.option_names(config.model.name))
    assert config.composed.name
    assert config.training.rounds % config.composed.share_every == 0


def test_a_folder_with_the_name_of_a_built_in_config_does_not_hide_it(written):
    Path("digits").mkdir()
    assert load_config("digits").data.name == "digits"


def test_a_file_without_an_ending_is_a_config(written):
    assert load_config(written("seed = 8", "mine")).seed == 8


# --- Overrides ----------------------------------------------------------------------------------


@pytest.mark.parametrize("section", [("training", Training), ("partition", Partition)])
def test_settings_of_the_protocol_and_the_partition_need_no_section(section):
    name, kind = section
    for field in fields(kind):
        assert full_key(field.name) == f"{name}.{field.name}"


def test_short_names_are_unambiguous():
    names = [f.name for kind in (Training, Partition) for f in fields(kind)]
    assert len({*names, *Config.model_fields, *PIECES}) == (
        len(names) + len(Config.model_fields) + len(PIECES)
    )


OVERRIDES = {
    "rounds=5": lambda config: config.training.rounds == 5,
    "training.rounds=5": lambda config: config.training.rounds == 5,
    " rounds = 5 ": lambda config: config.training.rounds == 5,
    "lr=1e-3": lambda config: config.training.lr == 0.001,
    "lr=.5": lambda config: config.training.lr == 0.5,
    "keep_last=true": lambda config: config.training.keep_last is True,
    "kind=iid": lambda config: config.partition.kind == "iid",
    "partition.kind='iid'": lambda config: config.partition.kind == "iid",
    "seed=9": lambda config: config.seed == 9,
    "executor=loop": lambda config: config.executor == "loop",
    "data.dir=~/data=1": lambda config: config.data.dir == "~/data=1",
    "model.channels=[4, 8]": lambda config: config.model.options["channels"] == [4, 8],
    "model.norm=batch": lambda config: config.model.options["norm"] == "batch",
    "method=fedavg": lambda config: config.composed.pieces == (FedAvg(),),
    "method=['fedavg', 'fedfm']": lambda config: config.composed.name == "fedavg+fedfm",
    "fedfm.strength=7": lambda config: config.composed.pieces == (FedFM(strength=7.0),),
    "method.fedfm.strength=7": lambda config: config.composed.pieces == (FedFM(strength=7.0),),
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_an_override_sets_one_thing(written, override):
    source = written("")
    assert OVERRIDES[override](load_config(source, [override]))
    changed, plain = (load_config(source, given).as_toml() for given in ([override], []))
    assert sum(changed[section] != plain.get(section) for section in changed) == 1


def test_the_last_of_two_overrides_holds(written):
    assert load_config(written("seed = 1"), ["seed=2", "seed=3"]).seed == 3


@pytest.mark.parametrize("order", [1, -1])
def test_a_methods_settings_hold_before_and_after_its_choice(written, order):
    overrides = ["method=fedfm-lite", "fedfm-lite.strength=7"][::order]
    config = load_config(written('method = "fedavg"'), overrides)
    assert config.composed.pieces == (FedFMLite(strength=7.0),)


def test_a_method_chosen_again_keeps_the_settings_of_the_file(written):
    source = written("[method.fedfm]\nstrength = 7")
    assert load_config(source, ["method=fedfm"]).composed.pieces == (FedFM(strength=7.0),)
    assert load_config(source, ["method=fedavg"]).composed.pieces == (FedAvg(),)
    together = load_config(source, ["method=['fedavg', 'fedfm']"]).composed.pieces
    assert together == (FedAvg(), FedFM(strength=7.0))


def test_values_are_read_as_in_a_file_and_what_is_none_is_a_text():
    assert plain_value("3") == 3
    assert plain_value("[1, 2]") == [1, 2]
    assert plain_value("'3'") == "3"
    assert plain_value("true") is True
    assert plain_value("batch") == "batch"
    assert plain_value("") == ""


# --- Written down and read again ----------------------------------------------------------------


def rewritten(config: Config) -> Config:
    return parse(tomllib.loads(tomli_w.dumps(config.as_toml())))


@pytest.mark.parametrize("name", builtin_names())
def test_a_built_in_config_written_down_means_the_same(name):
    assert rewritten(load_config(name)) == load_config(name)


positive = st.floats(1e-6, 1e6)
texts = st.text(string.printable, max_size=8)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    training=st.builds(
        Training,
        clients=st.integers(1, 10**6),
        participation=st.floats(0, 1, exclude_min=True),
        validation=st.floats(0, 1, exclude_min=True, exclude_max=True),
        lr=positive,
        weight_decay=positive,
        keep_last=st.booleans(),
    ),
    partition=st.builds(Partition, beta=positive, dominance=st.floats(1, 1e6)),
    piece=st.builds(
        FedFMLite, strength=positive, guide=st.sampled_from(["cg", "l2"]), models_every=st.just(2)
    ),
    options=st.dictionaries(
        st.sampled_from(["norm", "features"]), texts | st.lists(st.integers(1, 9), max_size=3)
    ),
    folder=st.none() | texts,
)
def test_any_config_written_down_means_the_same(seed, training, partition, piece, options, folder):
    config = parse(
        {
            "seed": seed,
            "data": {"name": "csv", **({"dir": folder} if folder is not None else {})},
            "model": {"name": "mlp"} | options,
            "method": {"fedfm-lite": asdict(piece)},
            "partition": asdict(partition),
            "training": asdict(training),
        }
    )
    assert rewritten(config) == config
    assert config.training == training
    assert config.partition == partition
    assert config.composed.pieces == (piece,)


def test_everything_is_resolved_in_what_is_written_down(written):
    table = load_config(written('method = "fedfm"')).as_toml()
    wanted = {k: v for k, v in asdict(Training()).items() if v is not None}
    assert table["training"] == json.loads(json.dumps(wanted))
    assert table["partition"] == asdict(Partition())
    assert table["method"] == {"fedfm": asdict(FedFM())}
    assert load_config(written("")).as_toml() == table


# --- Mistakes (tests/cli/test_bad_input.py has the list of them) ---------------------------------


def test_mistakes_are_user_errors_with_one_line():
    for table in (
        {"sed": 1},
        {"training": {"lr": -1}},
        {"method": {"fedfm": {"x": 1}}},
        {"seed": ""},
    ):
        with pytest.raises(UserError) as caught:
            parse(table)
        assert "\n" not in str(caught.value)


def test_only_the_first_mistake_is_told():
    with pytest.raises(UserError, match=r"^seed:") as caught:
        parse({"seed": "x", "executor": "y"})
    assert "executor" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"method": "fedprox+fedfm"}, r"method=\['fedprox', 'fedfm'\]"),
        ({"method": {"name": "fedavg"}}, r"\[method\].*'name'.*\[method\.fedavg\]"),
        ({"method": "fedavgg"}, r"method 'fedavgg': did you mean 'fedavg'\?$"),
        ({"method": {"fedavg": {"mu": 1}}}, r"method\.fedavg.*'mu'.*none"),
    ],
)
def test_methods_that_are_written_otherwise(table, said):
    with pytest.raises(UserError, match=said):
        parse(table)


def test_a_setting_that_may_be_a_flag_or_a_number_takes_both(monkeypatch):
    @dataclass(frozen=True)
    class Either(FedAvg):
        name = "either"
        amount: bool | int = 3

    monkeypatch.setitem(PIECES, "either", Either)
    for value in (True, 2):
        found = parse({"method": {"either": {"amount": value}}}).method
        assert found["either"]["amount"] is value


def test_a_recorded_config_has_the_defaults_of_its_model():
    table = load_config("digits").as_toml()
    assert table["model"] == {
        "name": "cnn",
        "channels": [16, 32],
        "features": 64,
        "norm": "none",
        "groups": 8,
        "head": "linear",
        "standardise": 0.0,
    }


@pytest.mark.parametrize("name", models.MODELS)
def test_a_recorded_config_has_every_option_of_its_model(name):
    recorded = parse({"model": {"name": name}}).as_toml()["model"]
    assert recorded.keys() == {"name", *models.option_names(name)}


def test_the_old_name_of_an_executor_is_read_with_a_note(caplog):
    renamed.note_new_name.cache_clear()
    assert load_config("digits", ["executor=lanes"]).executor == "threads"
    assert parse({"executor": "lanes"}).executor == "threads"
    notes = [each for each in caplog.messages if "executor lanes is now called" in each]
    assert len(notes) == 1


def test_the_old_name_of_a_section_is_read_with_a_note(tmp_path, caplog):
    renamed.note_new_name.cache_clear()
    (tmp_path / "old.toml").write_text("[protocol]\nrounds = 7\n")
    config = load_config(str(tmp_path / "old.toml"), ["protocol.lr=0.5"])
    assert (config.training.rounds, config.training.lr) == (7, 0.5)
    assert [each for each in caplog.messages if "[protocol] is now called [training]" in each]


def test_every_key_can_be_given_to_simulate_in_the_same_words():
    accepted = set(signature(simulate).parameters)
    assert set(Config.model_fields) - accepted == {"code"}
    assert accepted - set(Config.model_fields) == {
        *("extend", "loss", "out", "overwrite", "resume", "watch")
    }


def test_words_and_objects_make_the_same_config():
    words = make_config({"fedfm": {"strength": 3.0}}, training={"rounds": 4}, partition={"beta": 1})
    objects = make_config(
        FedFM(strength=3.0), training=Training(rounds=4), partition=Partition(beta=1)
    )
    assert words.as_toml() == objects.as_toml()
    assert words.composed == objects.composed


def test_objects_are_recorded_by_name_and_digest():
    digits, model = data.load("digits"), models.build("mlp", shape=(1, 8, 8), classes=10)
    table = make_config(FedAvg(), model=model, data=digits).as_toml()
    assert table["data"]["digest"] == digits.digest
    assert table["model"].keys() == {"name", "digest"}
    assert parse(table).as_toml() == table
