"""Texts in a table become token ids."""

import pytest
import torch

from fedfm.core.errors import UserError
from fedfm.data import load
from fedfm.data.text import encode_words, make_vocabulary, read_words, split_words

ROWS = [
    ("A good film, really good!", "good"),
    ("good good", "good"),
    ("A bad film", "bad"),
    ('It isn\'t good; "bad"', "bad"),
]


@pytest.fixture
def table(tmp_path):
    """Writes rows to a file and returns its path."""

    def write(rows, name="texts.tsv", header="text\tlabel"):
        lines = ["\t".join(cells) for cells in rows]
        path = tmp_path / name
        path.write_text("\n".join([header, *lines] if header else lines) + "\n")
        return path

    return write


def test_words_are_lower_case_and_marks_are_words():
    assert split_words("It ISN'T Über-good…  (9/10)") == [
        *("it", "isn't", "über", "-", "good", "…", "(", "9", "/", "10", ")")
    ]
    assert split_words(" \n") == []


def test_the_vocabulary_has_the_most_frequent_words_and_ties_by_letter():
    texts = [["b", "a", "c"], ["c", "d"]]
    assert make_vocabulary(texts, 3) == ("<pad>", "<unk>", "c", "a", "b")
    assert make_vocabulary(reversed(texts), 3) == make_vocabulary(texts, 3)


def test_texts_are_cut_padded_and_unknown_words_are_one():
    ids = encode_words([["c", "x", "a", "b"], ["b"], []], ("<pad>", "<unk>", "a", "b", "c"), 3)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[4, 1, 2], [3, 0, 0], [0, 0, 0]]


def test_the_vocabulary_is_made_of_training_samples_only(table):
    train, test = table(ROWS), table([("A strange film", "bad"), *ROWS[:1]], "test.tsv")
    data = load("text", path=train, test_path=test, length=8)
    assert data.classes == ("bad", "good")
    assert data.shape == (8,)
    assert data.vocabulary[:3] == ("<pad>", "<unk>", "good")
    assert {"film", "isn't", '"'} < {*data.vocabulary}
    assert "strange" not in data.vocabulary
    words = [[data.vocabulary[i] for i in row if i] for row in data.test.inputs.tolist()]
    assert sorted(words) == [["a", "<unk>", "film"], split_words(ROWS[0][0])]
    assert len(data.train) == 4


def test_without_test_samples_a_fifth_of_every_class_is_held_out(table):
    rows = [(f"word{i} word{i % 3}", "ab"[i % 2]) for i in range(40)]
    data = load("text", path=table(rows), length=2)
    assert (len(data.train), len(data.test)) == (32, 8)
    assert data.test.labels.bincount().tolist() == [4, 4]
    trained = {data.vocabulary[i] for i in data.train.inputs.flatten().tolist()}
    assert {*data.vocabulary} - trained == {"<pad>", "<unk>"}
    assert 1 in data.test.inputs
    again = load("text", path=table(rows), length=2)
    assert again.digest == data.digest


def test_a_table_may_have_no_header_and_other_columns(table, tmp_path):
    named = tmp_path / "named.csv"
    named.write_text('id,review,stars\n1,"good, very good",5\n2,bad film,1\n3,bad,1\n')
    data = load("text", path=named, test_path=named, text="review", label="stars", length=4)
    assert data.classes == ("1", "5")
    bare = table([("good , very good", "5"), ("bad film", "1"), ("bad", "1")], header="")
    same = load("text", path=bare, test_path=bare, header=False, text="1", label="2", length=4)
    assert same.digest == data.digest


def test_without_a_header_the_first_column_is_the_text_and_the_last_the_label(table):
    bare = table(ROWS, header="")
    named = load("text", path=table(ROWS, "named.tsv"), test_path=table(ROWS, "named.tsv"))
    data = load("text", path=bare, test_path=bare, header=False)
    assert data.digest == named.digest


def test_texts_may_belong_to_clients(table):
    rows = [(f"word{i}", "ab"[i % 2], ["ann", "bob"][i // 20]) for i in range(40)]
    path = table(rows, header="text\tlabel\tuser")
    data = load("text", path=path, client="user")
    assert data.clients == ("ann", "bob")
    assert data.train.clients is not None
    assert data.train.clients.bincount().tolist() == [16, 16]
    test = load("text", path=path, test_path=path, client="user").test
    assert test.clients is not None
    assert test.clients.bincount().tolist() == [20, 20]


def test_a_folder_has_a_table_for_each_client(table, tmp_path):
    (tmp_path / "users").mkdir()
    for name in ("ann", "bob"):
        table(ROWS, f"users/{name}.tsv")
    data = load("text", path=tmp_path / "users")
    assert data.clients == ("ann", "bob")
    with pytest.raises(UserError, match="the clients of the test samples"):
        load("text", path=tmp_path / "users", test_path=table(ROWS))


def test_few_words_are_enough_if_wanted(table):
    data = load("text", path=table(ROWS), test_path=table(ROWS, "test.tsv"), vocabulary=1)
    assert data.vocabulary == ("<pad>", "<unk>", "good")
    assert int(data.train.inputs.max()) == 2


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (ROWS, {"text": "review"}, "text column .*'review'.*label, text"),
        (ROWS, {"label": "stars"}, "label column .*'stars'"),
        ([*ROWS, ("  ", "bad")], {}, "row 6, column 'text': there is no word"),
        ([*ROWS, ("a film", "")], {}, "row 6, column 'label': the label is missing"),
        ([*ROWS, ("a", "b", "c")], {}, "row 6: 3 cells"),
        ([], {}, "no rows below its header"),
        (ROWS, {"length": 0}, "length must be at least 1"),
        (ROWS, {"vocabulary": -1}, "vocabulary must be at least 1"),
        ([(f"a{i}", f"{i / 7}") for i in range(60)], {}, "looks like a quantity"),
    ],
)
def test_a_table_that_cannot_be_used_says_where(table, rows, options, message):
    with pytest.raises(UserError, match=message) as problem:
        load("text", path=table(rows), **options)
    assert "\n" not in str(problem.value)


def test_a_test_table_has_no_classes_of_its_own(table):
    test = table([("a film", "fine")], "test.tsv")
    with pytest.raises(UserError, match=r"test\.tsv: no training text of class fine"):
        load("text", path=table(ROWS), test_path=test)


# --- words of a file ------------------------------------------------------------------------------


def test_a_file_gives_the_words_whatever_the_texts_say(table, tmp_path):
    (tmp_path / "words.txt").write_text("film\ngood\n\nnever\n")
    data = load("text", path=table(ROWS * 3), words=tmp_path / "words.txt", length=3)
    assert data.vocabulary == ("<pad>", "<unk>", "film", "good", "never")
    assert {*data.train.inputs.unique().tolist()} <= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read"),
        ("\n \n", "has no words"),
        ("film\ngood\nfilm\n", "film twice"),
        ("Film\n", "Film, which no text contains"),
        ("two words\n", "one word in"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_a_file_of_words_that_makes_no_sense_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "words.txt"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=f"^data.words: [^\n]*{message}[^\n]*$"):
        read_words(path)
