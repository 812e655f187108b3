"""What a user can get wrong: a line or two that says what, exit code 2, and nothing is written."""

import json
from pathlib import Path

import pytest

from fedfm.core.checkpoint import load_checkpoint
from fedfm.run import runner
from tests.cli.tools import TINY, Answer, Command, sets
from tests.folders import contents, lines


def refused(command: Command, *arguments: str) -> str:
    """The message of a command that must fail and must change nothing in this folder."""
    before = contents(Path())
    answer = command(*arguments)
    assert contents(Path()) == before
    assert answer.out == ""
    return message(answer)


def message(answer: Answer) -> str:
    """What a failed command said last, after the lines of its rounds."""
    lines = [line for line in answer.err.splitlines() if "  round " not in line]
    assert answer.code == 2
    assert lines[0].startswith("fedfm: ")
    assert 1 <= len(lines) <= 2
    assert "Traceback" not in answer.err
    return "\n".join(lines)


SETTINGS = {
    # keys that do not exist: the nearest right one is named
    "a mistyped key": (["round=3"], "unknown key 'round': did you mean 'training.rounds'?"),
    "a mistyped section": (["trainig.lr=3"], "did you mean 'training'?"),
    "a mistyped key in a section": (["training.epoch=3"], "did you mean 'epochs'?"),
    "a key in the wrong section": (["training.beta=1"], "it is called partition.beta"),
    "a mistyped data key": (["data.nmae=digits"], "did you mean 'name'?"),
    "a mistyped method key": (["fedfm.strenght=3"], "did you mean 'strength'?"),
    "settings of a mistyped method": (["fedm.strength=3"], "did you mean 'method.fedfm'?"),
    "a mistyped model option": (
        ["model.name=cnn", "model.chanels=[4]"],
        "did you mean 'channels'?",
    ),
    "nothing like a key": (
        ["zzz=3"],
        "unknown key 'zzz': known: checkpoint_every, client_states, data, deployment",
    ),
    # names that do not exist
    "an unknown method": (["method=fedagv"], "unknown method 'fedagv': did you mean 'fedavg'?"),
    "a method as people write it": (["method=SCAFFOLD"], "did you mean 'scaffold'?"),
    "a method twice": (['method=["fedavg", "fedavg"]'], "method names fedavg twice"),
    "an unknown model": (["model.name=resnet19"], "did you mean 'resnet18'?"),
    "unknown data": (["data.name=cifar11"], "unknown data 'cifar11': did you mean 'cifar1"),
    "an unknown executor": (
        ["executor=processes"],
        "executor: Input should be 'auto', 'loop', 'stacked'",
    ),
    "an unknown partition": (["partition.kind=niid4"], "partition.kind: Input should be 'iid'"),
    # values out of range
    "no rounds": (["rounds=0"], "rounds must be at least 1, not 0"),
    "a flag for a number": (["rounds=true"], "training.rounds must be a number, not true"),
    "a flag for a number of one's own": (["seed=false"], "seed must be a number, not false"),
    "a flag for a method's number": (
        ["fedfm.strength=true"],
        "method.fedfm.strength must be a number, not true",
    ),
    "a negative lr": (["lr=-0.1"], "lr must be positive, not -0.1"),
    "a lr of NaN": (["lr=nan"], "lr must be positive, not nan"),
    "nobody takes part": (["participation=0"], "participation must be in (0, 1], not 0"),
    "all is validation": (["validation=1.0"], "validation must be in [0, 1), not 1.0"),
    "an unknown metric": (["metrics=['aucc']"], "unknown metric 'aucc': did you mean 'auc'?"),
    "a matrix chooses": (["select_by=confusion"], "select_by = 'confusion' is not one number"),
    "nothing chooses": (["validation=0", "select_by=auc"], "validation = 0: leave out select_by"),
    "no best without validation": (["validation=0", "report=best"], "use report = 'last'"),
    "too much momentum": (["momentum=1"], "momentum must be in [0, 1), not 1"),
    "a negative seed": (["seed=-1"], "seed: Input should be greater than or equal to 0"),
    "a negative strength": (["fedfm.strength=-1"], "fedfm: strength must be >= 0, not -1"),
    "no temperature": (["fedfm.temperature=0"], "fedfm: temperature must be > 0"),
    "a beta of nought": (["beta=0"], "beta must be above 0 (it is 0)"),
    "a model of no size": (
        ["model.name=cnn", "model.features=0"],
        "model features = 0: must be a whole number",
    ),
    # values of the wrong type
    "rounds in words": (["rounds=many"], "training.rounds: Input should be a valid integer"),
    "half a round": (["rounds=2.5"], "training.rounds: Input should be a valid integer"),
    "a list of lrs": (["lr=[0.1]"], "training.lr: Input should be a valid number"),
    "a strength in words": (["fedfm.strength=hi"], "method.fedfm.strength: Input should be a"),
    "a flag in words": (
        ["method=fedrs", "fedrs.graded=hi"],
        "method.fedrs.graded: Input should be a valid boolean",
    ),
    "an unknown guide": (["fedfm.guide=l3"], "method.fedfm.guide: Input should be 'cg' or 'l2'"),
    "a number as method": (["method=5"], "method: Input should be a valid dictionary"),
    "a number as section": (["training=5"], "training: Input should be a dictionary"),
    "a value as section": (["data.name.x=5"], "'name' is a value, not a section"),
    "a model's size in words": (
        ["model.name=cnn", "model.features=big"],
        "model features = 'big': must be a whole",
    ),
    "no equals sign": (["rounds"], "an override is key=value, not 'rounds'"),
    # values that do not fit each other or the data
    "another model's option": (
        ["model.name=cnn", "model.hidden=[8]"],
        "model 'cnn': unknown option 'hidden'",
    ),
    "another source's option": (["data.path=x"], "data 'digits' takes no options, not 'path'"),
    "no path to the table": (["data.name=csv"], "data 'csv' needs 'path'"),
    "no such table": (["data.name=csv", "data.path=no.csv"], "no.csv as a CSV table"),
    "two kinds of anchors": (
        ['method=["fedfm", "fedfm-lite"]'],
        "fedfm and fedfm-lite cannot be combined: both set the anchors",
    ),
    "a method that needs SGD, with AdamW": (
        ["method=scaffold", "optimizer=adamw"],
        "scaffold: the maths holds for SGD only, not for adamw: set training.optimizer = 'sgd'",
    ),
    "a schedule longer than the run": (
        ["rounds=20", "lr_schedule=cosine", "lr_warmup=30"],
        "the learning-rate schedule takes 30 rounds (lr_warmup and lr_period), but the run has 20",
    ),
    "an unknown optimizer": (["optimizer=adamx"], "unknown optimizer 'adamx': did you mean 'adam'"),
    "an unknown schedule": (["lr_schedule=cosin"], "did you mean 'cosine'?"),
    "an unknown loss": (["loss=crossentropy"], "did you mean 'cross_entropy'?"),
    "weights of too few classes": (
        ["class_weights=[1.0, 2.0]"],
        "class_weights has 2 numbers, but the data have 10 classes: give one for each",
    ),
    "no method": (["method=[]"], "a method needs at least one piece"),
    "rounds between sharings": (
        ["method=fedfm-lite", "fedfm-lite.models_every=2", "rounds=3"],
        "rounds must be a multiple of models_every = 2, not 3",
    ),
    "more clients than samples": (
        ["partition.kind=iid", "clients=2000"],
        "2000 clients cannot share 1438 samples",
    ),
    "a client without validation samples": (
        ["partition.kind=iid", "clients=1438"],
        "client 0 has 1 sample, which leaves none for validation",
    ),
    "a client without training samples": (
        ["partition.kind=iid", "clients=719", "validation=0.9"],
        "client 0 has 2 samples, which leaves none for training",
    ),
}


@pytest.mark.parametrize(("changes", "words"), SETTINGS.values(), ids=SETTINGS.keys())
def test_a_wrong_setting(command, changes, words):
    assert words in refused(command, "run", "digits", *sets(*changes))


CONFIGS = {
    "a mistyped key": ("sed = 3", "unknown key 'sed': did you mean 'seed'?"),
    "a mistyped key in a section": ("[training]\nround = 3", "did you mean 'rounds'?"),
    "a key outside its section": ("rounds = 3", "it is called training.rounds"),
    "a mistyped method's key": ("[method.fedfm]\nstrenght = 3", "did you mean 'strength'?"),
    "a method outside its section": ("[fedfm]\nstrength = 3", "it is called method.fedfm"),
    "a value out of range": ("[training]\nclients = 0", "clients must be at least 1, not 0"),
    "a value of another type": ("[training]\nlr = 'big'", "training.lr: Input should be a valid"),
    "no TOML": ("[training\nrounds = 3", "mine.toml is not valid TOML: "),
    "a key twice": ("seed = 1\nseed = 2", "mine.toml is not valid TOML: "),
}


@pytest.mark.parametrize(("text", "words"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_wrong_config_file(command, text, words):
    Path("mine.toml").write_text(text)
    assert words in refused(command, "run", "mine.toml")


def test_a_config_file_that_is_no_text(command):
    Path("mine.toml").write_bytes(b"\xff\xfe\x00s")
    assert "mine.toml is not valid TOML" in refused(command, "run", "mine.toml")


def test_a_config_that_is_not_there(command):
    assert "there is no config file no.toml" in refused(command, "run", "no.toml")
    assert "unknown config 'digit': did you mean 'digits'?" in refused(command, "run", "digit")
    Path("folder.toml").mkdir()
    assert "there is no config file folder.toml" in refused(command, "run", "folder.toml")


# --- Data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["nan", "inf", "1e300", "", "tall"])
def test_a_cell_of_a_table_that_is_no_number_is_named(command, cell):
    Path("table.csv").write_text("height,label\n" + "1.5,a\n2.5,b\n" * 9 + f"{cell},a\n")
    line = refused(
        command, "run", "digits", *sets("data.name=csv", "data.path=table.csv", "model.name=mlp")
    )
    problem = "a missing value" if cell in ("nan", "") else "not a number, or not one that"
    assert f"table.csv, row 20, column 'height': '{cell}' is {problem}" in line


def test_a_file_that_is_no_archive_is_named(command):
    Path("images.tar").write_text("no images")
    line = refused(command, "run", "digits", *sets("data.name=folder", "data.path=images.tar"))
    assert "cannot read images.tar: file could not be opened successfully\n" in line


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08 and so on"], ids=["empty", "altered"])
def test_a_damaged_archive_is_named_and_kept(command, content):
    archive = Path("files/cifar10/cifar-10-binary.tar.gz")
    archive.parent.mkdir(parents=True)
    archive.write_bytes(content)
    line = refused(command, "run", "cifar10", "--set", "data.dir=files")
    assert f"{archive} is damaged or altered: its md5 is " in line
    assert "expected c32a1d4ab5d03f1284b67883e8d87530" in line


# --- Folders ------------------------------------------------------------------------------------

RUN = ("run", "digits", *TINY, *sets("rounds=3", "method=fedavg"), "--out", "run")


def test_a_folder_that_holds_a_run_stays_as_it_is(command):
    assert command(*RUN).code == 0
    assert "run already holds a run; continue it with --resume" in refused(command, *RUN)
    again = "run is the folder of a run; continue it with --resume"
    assert again in refused(command, "run", "run")
    several = ("run", "run", "--resume", "--seeds", "2")
    assert "run is the folder of one seed: leave out --seeds" in refused(command, *several)
    other = (*RUN, *sets("seed=1", "lr=0.5"))
    assert "run already holds a run; continue it with --resume" in refused(command, *other)
    differences = refused(command, *other, "--resume")
    assert "training.lr (there 0.01, here 0.5)" in differences
    assert "seed (there 0, here 1)" in differences


def test_a_folder_that_holds_other_things_stays_as_it_is(command):
    Path("run").mkdir()
    Path("run/thesis.txt").write_text("ten years")
    assert "run is not empty and holds no run" in refused(command, *RUN)
    assert "run is not empty and holds no run" in refused(command, *RUN, "--resume")


def test_a_file_where_the_folder_should_be_stays_as_it_is(command):
    Path("run").write_text("ten years")
    assert "run is a file" in refused(command, *RUN)
    assert "run/inside" in refused(command, *RUN, "--out", "run/inside")


def test_a_folder_that_cannot_be_written_is_refused_before_data_are_read(command, monkeypatch):
    monkeypatch.setattr(runner, "load_data", lambda config: pytest.fail("data were read"))
    assert "cannot write to /dev/null/run" in refused(command, *RUN, "--out", "/dev/null/run")


def test_a_damaged_run_is_not_resumed(command):
    assert command(*RUN).code == 0
    Path("run/checkpoint/manifest.json").write_text("{")
    assert "run/checkpoint is damaged" in refused(command, *RUN, "--resume")


# --- Training that diverges ---------------------------------------------------------------------


def test_training_that_diverges_is_told_with_round_and_clients(command):
    line = message(command(*RUN, "--set", "lr=1e6"))
    assert "round 1: the training of every client diverged (clients 0, 1, 2, 3)" in line
    assert "checkpoint" not in line
    assert not Path("run/rounds.jsonl").exists()
    assert not Path("run/summary.json").exists()


def test_when_training_diverges_later_the_last_good_checkpoint_is_kept(command):
    steady, wild = (
        (*RUN, *sets("method=fedfm", f"fedfm.strength={strength}", "fedfm.start_round=2"))
        for strength in ("1.0", "1e37")
    )
    assert "round 3: the training of every client" in message(command(*wild))
    assert [line["round"] for line in lines(Path("run"))] == [1, 2]
    manifest = json.loads(Path("run/checkpoint/manifest.json").read_text())
    assert manifest["facts"]["round"] == 2
    kept = load_checkpoint(Path("run/checkpoint"))
    assert kept is not None
    best = kept[1]["best"]
    assert command(*steady, "--out", "steady").code == 0
    assert best["test_accuracy"] == lines(Path("steady"))[best["round"] - 1]["test_accuracy"]


def test_a_run_that_diverged_is_started_again_in_its_folder(command):
    line = message(command(*RUN, "--set", "lr=1e6"))
    assert line.endswith("Try a smaller lr or a weaker method, and start again with --overwrite")
    assert "start again with --overwrite" in refused(command, *RUN)
    assert command(*RUN, "--overwrite").code == 0
    assert command(*RUN, "--out", "fresh").code == 0
    assert results(Path("run")) == results(Path("fresh"))


def results(folder: Path) -> dict[str, bytes]:
    """The files of a run that do not depend on the time it took."""
    return {name: (folder / name).read_bytes() for name in ("config.toml", "model.safetensors")}


def test_only_the_folder_of_a_run_is_overwritten(command):
    Path("run").mkdir()
    Path("run/notes.txt").write_text("mine")
    assert "not empty and holds no run" in refused(command, *RUN, "--overwrite")
    assert "not both" in refused(command, *RUN, "--overwrite", "--resume")
