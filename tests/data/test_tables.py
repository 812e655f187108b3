"""Tables as people have them: clients, categories, missing values, no header, many files."""

import logging
import sys

import numpy as np
import pytest
import torch

from fedfm.core.errors import UserError
from fedfm.data import Dataset, load


@pytest.fixture
def table(tmp_path):
    """Loads a table with these rows."""

    def load_it(*rows: str, name: str = "t.csv", **options) -> Dataset:
        (tmp_path / name).write_text("\n".join(rows) + "\n")
        return load("csv", dir=tmp_path, path=tmp_path / name, **options)

    return load_it


def every(data: Dataset) -> torch.Tensor:
    return torch.cat([data.train.inputs, data.test.inputs])


SITES = ["age,site,label", *(f"{i},{'ns'[i % 2]},{'ab'[i // 2 % 2]}" for i in range(40))]


# --- clients --------------------------------------------------------------------------------------


def test_a_column_names_the_clients_and_is_no_feature(table):
    data = table(*SITES, client="site")
    assert (data.clients, data.shape) == (("n", "s"), (1,))
    for split, size in ((data.train, 16), (data.test, 4)):
        assert split.clients is not None
        assert torch.equal(split.inputs[:, 0].long() % 2, split.clients)
        assert split.clients.bincount().tolist() == [size, size]
    cells = torch.stack([data.test.labels, torch.as_tensor(data.test.clients)], 1).tolist()
    assert sorted(cells) == sorted([[a, b] for a in (0, 1) for b in (0, 1)] * 2), "alike"


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (SITES, {"client": "sight"}, r"client column.*'sight': did you mean 'site'"),
        (["x,site,label", "1,n,a", "2,n,b", "3,n,a"], {"client": "site"}, "one client, 'n'.*two"),
        (["x,site,label", "1,n,a", "2,,b", "3,s,a"], {"client": "site"}, "row 3.*'site'.*missing"),
        (SITES, {"drop": ["sit"]}, r"drop column.*'sit': did you mean 'site'"),
        (SITES, {"drop": ["age", "site"]}, "no columns"),
        (SITES, {"categories": ["sit"]}, r"categories column.*'sit'"),
    ],
)
def test_columns_that_cannot_be_used_are_named(table, rows, options, message):
    with pytest.raises(UserError, match=message):
        table(*rows, **options)


def test_dropped_columns_are_left_out(table):
    assert table(*SITES, drop=["site"]).shape == (1,)


@pytest.fixture
def hospitals(tmp_path):
    """Writes a folder of tables."""

    def write(**files: str) -> dict[str, object]:
        folder = tmp_path / "hospitals"
        folder.mkdir()
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        return {"dir": tmp_path, "path": folder}

    return write


def test_every_file_of_a_folder_is_a_client(hospitals):
    north = "age,sex,label\n" + "".join(f"{i},1,{'ab'[i % 2]}\n" for i in range(10))
    south = "sex\tage\tlabel\n" + "".join(f"0\t{i}\t{'ab'[i % 2]}\n" for i in range(5))
    data = load("csv", **hospitals(north_csv=north, south_tsv=south))
    assert data.clients == ("north", "south")
    assert (len(data.train), len(data.test)) == (11, 4)
    sexes = every(data)[:, 1]
    owners = torch.cat([torch.as_tensor(s.clients) for s in (data.train, data.test)])
    assert torch.equal(sexes == 1, owners == 0), "columns are matched by name"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"north_csv": "x,label\n1,a\n2,b\n"}, r"\b1 tables.*two clients"),
        ({}, r"\b0 tables"),
        ({"north_csv": "x,label\n1,a\n", "notes_md": "hello"}, r"notes\.md.*remove"),
        ({"a_csv": "x,label\n1,a\n", "b_csv": "y,label\n1,a\n"}, r"b\.csv.*a\.csv.*\bx, y\b"),
        ({"a_csv": "x,label\n1,a\n", "b_csv": "x,label\n"}, r"b\.csv.*no rows"),
        ({"a_csv": "x,label\n1,a\n2,b\n", "b_csv": "x,label\n7,a\no,b\n"}, r"b\.csv, row 3.*'o'"),
    ],
)
def test_folders_that_are_no_clients_are_refused(hospitals, files, message):
    with pytest.raises(UserError, match=message):
        load("csv", **hospitals(**files))


def test_a_table_without_header_has_its_classes_last(table):
    rows = [f"{i},{i % 3},{'ab'[i % 2]}" for i in range(20)]
    data = table(*rows, header=False)
    assert (data.classes, data.shape, len(every(data))) == (("a", "b"), (2,), 20)
    data = table(*rows, header=False, label="2", drop=["3"])
    assert (data.classes, data.shape) == (("0", "1", "2"), (1,))


# --- missing values -------------------------------------------------------------------------------

GAPS = ["age,weight,label", *(f"{i},{'?' if i % 4 == 0 else i},{'ab'[i % 2]}" for i in range(40))]


@pytest.mark.parametrize("cell", ["", "?", "NA", "n/a", "NaN", "null"])
def test_a_missing_value_is_refused_with_what_to_do(table, cell):
    rows = ["age,weight,label", "1,2,a", f"2,{cell},b", "3,4,a", f"{cell},1,b"]
    message = r"row 3, column 'weight'.*'age' 1, 'weight' 1\).*data\.fill.*data\.drop"
    with pytest.raises(UserError, match=message):
        table(*rows)


def test_missing_numbers_are_filled_by_the_mean_of_the_training_rows(table, caplog):
    with caplog.at_level(logging.WARNING):
        data = table(*GAPS, fill="mean")
    assert "10 missing cells: 'weight' 10" in caplog.text
    known = data.train.inputs[data.train.inputs[:, 0] % 4 != 0]
    for split in (data.train, data.test):
        gaps = split.inputs[split.inputs[:, 0] % 4 == 0]
        assert len(gaps) > 0
        assert torch.allclose(gaps[:, 1], known[:, 1].double().mean().float())


def test_a_column_may_indicate_what_was_filled(table):
    data = table(*GAPS, fill="indicate")
    assert data.shape == (3,)
    assert torch.equal(every(data)[:, 2] == 1, every(data)[:, 0] % 4 == 0)


def test_further_texts_may_mean_a_missing_value(table):
    rows = ["age,label", *(f"{'-9.0' if i == 3 else i},{'ab'[i % 2]}" for i in range(20))]
    data = table(*rows, missing=["-9"], fill="indicate")
    assert int(every(data)[:, 1].sum()) == 1
    with pytest.raises(UserError, match=r"'-9'.*missing value"):
        table("age,label", "-9,a", "1,b", "2,a", missing=["-9"])


def test_a_column_without_any_value_is_refused(table):
    with pytest.raises(UserError, match=r"'x'.*data\.drop"):
        table("x,y,label", "?,1,a", "?,2,b", "?,3,a", "?,4,b", fill="mean")


# --- categories -----------------------------------------------------------------------------------


def test_a_column_of_texts_becomes_a_column_for_each_value(table):
    rows = [f"{['red', 'blue', 'green'][i % 3]},{i},{'ab'[i % 2]}" for i in range(60)]
    data = table("colour,x,label", *rows)
    assert data.shape == (4,)
    expected = [[i % 3 == 1, i % 3 == 2, i % 3 == 0, i] for i in range(60)]
    found = sorted(every(data).tolist(), key=lambda row: row[3])
    assert found == np.array(expected, float).tolist()


def test_numbers_may_be_categories_however_they_are_written(table):
    rows = [f"{['3', '3.0', '7'][i % 3]},{'ab'[i % 2]}" for i in range(30)]
    assert table("kind,label", *rows).shape == (1,)
    data = table("kind,label", *rows, categories=["kind"])
    assert data.shape == (2,)
    assert every(data)[:, 0].sum() == 20


def test_a_missing_category_is_one_more(table):
    rows = [f"{['red', 'blue', '?'][i % 3]},{'ab'[i % 2]}" for i in range(60)]
    assert table("colour,label", *rows, fill="mean").shape == (3,)


def test_with_named_categories_other_texts_are_refused(table):
    with pytest.raises(UserError, match=r"row 2, column 'x': 'red'.*data\.categories"):
        table("x,y,label", "red,1,a", "blue,2,b", "red,1,a", categories=["y"])


@pytest.mark.parametrize(("n", "values"), [(400, 51), (20, 20)])
def test_texts_with_many_values_are_refused(table, n, values):
    rows = [f"name {i % values},{'ab'[i % 2]}" for i in range(n)]
    with pytest.raises(UserError, match=r"'name'.*data\.drop"):
        table("name,label", *rows)


# --- labels ---------------------------------------------------------------------------------------


def test_labels_may_be_merged_into_classes(table):
    rows = [f"{i},{i % 5}" for i in range(50)]
    data = table("x,label", *rows, merge={"ill": ["1", "2", "3", "4"]})
    assert data.classes == ("0", "ill")
    labels = torch.cat([data.train.labels, data.test.labels])
    assert torch.equal(every(data)[:, 0] % 5 > 0, labels == 1)


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        ({"ill": ["7"]}, r"merge\.ill.*'7'"),
        ({"ill": ["1", "2"], "well": ["2"]}, "'2'.*two classes"),
    ],
)
def test_labels_that_cannot_be_merged_are_named(table, merge, message):
    with pytest.raises(UserError, match=message):
        table("x,label", *(f"{i},{i % 5}" for i in range(50)), merge=merge)


# --- Parquet --------------------------------------------------------------------------------------


def test_a_parquet_file_gives_what_its_csv_would(table, tmp_path):
    pandas = pytest.importorskip("pandas")
    columns = {
        "age": [i / 3 for i in range(39)] + [None],
        "smokes": [bool(i % 2) for i in range(40)],
        "colour": ["red", "blue"] * 20,
        "site": [1, 2] * 20,
        "label": ["a", "b", "b", "a"] * 10,
    }
    pandas.DataFrame(columns).to_parquet(tmp_path / "t.parquet")
    options: dict[str, str] = {"client": "site", "fill": "mean"}
    found = load("parquet", dir=tmp_path, path=tmp_path / "t.parquet", **options)  # type: ignore[arg-type]
    cells = zip(*columns.values(), strict=True)
    texts = [",".join("" if c is None else str(c) for c in row) for row in cells]
    rows = [row.replace("True", "1").replace("False", "0") for row in texts]
    expected = table(",".join(columns), *rows, **options)
    assert found.digest == expected.digest
    assert (found.clients, found.classes) == (("1", "2"), ("a", "b"))


def test_parquet_files_in_a_folder_are_clients(tmp_path):
    pandas = pytest.importorskip("pandas")
    for name in ("north", "south"):
        frame = pandas.DataFrame({"x": range(10), "label": ["a", "b"] * 5})
        frame.to_parquet(tmp_path / f"{name}.parquet")
    assert load("parquet", dir=tmp_path, path=tmp_path).clients == ("north", "south")


def test_files_that_are_no_parquet_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    path.write_text("x,label\n1,a\n")
    with pytest.raises(UserError, match=r"t\.parquet as a Parquet table"):
        load("parquet", dir=tmp_path, path=path)
    with pytest.raises(UserError, match=r"none\.parquet as a Parquet table"):
        load("parquet", dir=tmp_path, path=tmp_path / "none.parquet")
    with pytest.raises(UserError, match=r"data\.name = 'parquet'"):
        load("csv", dir=tmp_path, path=path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"pyarrow.*\[parquet\]"):
        load("parquet", dir=tmp_path, path=path)


# --- categories and fill values that are given ----------------------------------------------------

PATIENTS = [
    "age,sex,label",
    *(f"{i if i % 4 else ''},{'fm'[i % 2]},{'ab'[i % 2]}" for i in range(40)),
]


def test_given_categories_and_fill_values_do_not_depend_on_the_rows(table):
    data = table(*PATIENTS, fill={"age": 7}, categories={"sex": ["m", "f", "x"]})
    assert data.shape == (4,)
    assert [column.categories for column in data.columns] == [(), ("m", "f", "x")]
    ages = every(data)[:, 0]
    assert int((ages == 7).sum()) == 11  # ten gaps, and the row with 7
    assert torch.equal(every(data)[:, 3], torch.zeros(40))


def test_a_column_without_any_value_may_be_filled_with_a_given_one(table):
    rows = ["age,weight,label", *(f",{i},{'ab'[i % 2]}" for i in range(20))]
    assert torch.equal(every(table(*rows, fill={"age": 7}))[:, 0], torch.full((20,), 7.0))
    with pytest.raises(UserError, match=r"data\.drop"):
        table(*rows, fill="mean")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fill": {}}, r"column 'age': '' is a missing value"),
        ({"fill": {"age": 1}, "categories": {"sex": ["m"]}}, "'sex': f is not among"),
        ({"fill": {"age": 1}, "categories": {"sxe": ["m"]}}, "sxe"),
    ],
)
def test_cells_that_the_given_values_leave_out_are_named(table, options, message):
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        table(*PATIENTS, **options)


def test_a_given_fill_value_of_a_column_that_is_not_there_is_refused(table):
    with pytest.raises(UserError, match="aeg"):
        table(*PATIENTS, fill={"aeg": 1, "age": 1})
