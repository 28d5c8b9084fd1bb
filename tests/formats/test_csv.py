"""CSV files: what is read, and the line that is not."""

import gzip
import io
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from horn.data import load
from horn.errors import DataError, NotFound
from horn.formats import csv
from horn.formats.convert import convert


def write(tmp_path, text: str):
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "1.5,2,0\n3,4,1\n",
        "a,b,label\n1.5,2,0\n\n3,4,1",
        "1.5;2;0\r\n3;4;1\r\n",
        "1.5\t2\t0\n3\t4\t1\n",
        '\ufeff"x, first",b,c\n"1.5", 2 ,0.0\n3,4,1e0\n',
        "a\tb, c\tt\n1.5\t2\t0\n3\t4\t1\n",
        'a;"b, c";t\n1.5;2;0\n3;4;1\n',
        'a,"b; c\t",t\n1.5,2,0\n3,4,1\n',
    ],
    ids=[
        "plain",
        "header",
        "semicolon",
        "tab",
        "quoted",
        "comma in a name",
        "comma in quotes",
        "semicolon in quotes",
    ],
)
def test_the_last_column_is_the_label(tmp_path, text):
    dataset = load(str(write(tmp_path, text)))
    np.testing.assert_array_equal(dataset.x, [[1.5, 2], [3, 4]])
    assert dataset.y.tolist() == [0, 1]


@pytest.mark.parametrize(
    "rows",
    [
        '1.5, "2",0\n"3" , "4" ,1\n',
        'a,b,t\n1.5, "2","0"\n3,4, "1"\n',
        'id;a;b;t\nx; "1.5"; "2";0\n"y; z";3;4;1\n',
    ],
)
def test_spaces_may_stand_before_a_quotation_mark(tmp_path, rows):
    """A header was read so, and the lines below were not."""
    dataset = load(str(write(tmp_path, rows)))
    np.testing.assert_array_equal(dataset.x, [[1.5, 2], [3, 4]])
    assert dataset.y.tolist() == [0, 1]


def test_the_separator_is_the_one_of_most_lines(tmp_path):
    rows = "a\tb, c\tkind\n1.5\t2\tred, dark\n3\t4\tblue, dark\n"
    dataset = load(str(write(tmp_path, rows)))
    assert dataset.feature_names == ("a", "b, c")
    assert dataset.classes == ("blue, dark", "red, dark")
    with pytest.raises(DataError, match="line 3: has 2 cells, but line 1 has 3"):
        load(str(write(tmp_path, "a;b, c;t\n1;2;0\n3;4\n5;6;1\n")))


def test_without_labels_every_column_is_a_feature(tmp_path):
    dataset = load(str(write(tmp_path, "1.5,2\n3,4.5\n")), labels=False)
    np.testing.assert_array_equal(dataset.x, [[1.5, 2], [3, 4.5]])
    assert dataset.y is None


def test_whole_numbers_are_kept_as_bytes_but_mean_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(csv, "CHUNK_LINES", 2)
    bytes_only = load(str(write(tmp_path, "0,255,1\n" * 5)))
    assert (bytes_only.x.dtype, bytes_only.scale) == (np.uint8, 1.0)
    mixed = load(str(write(tmp_path, "0,255,1\n" * 4 + "0,256,1\n")))
    assert mixed.x.dtype == np.float64
    assert mixed.x[:, 1].tolist() == [255.0] * 4 + [256.0]


@settings(max_examples=40)
@given(arrays.arrays("f8", (3, 2), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_every_digit_is_kept(tmp_path_factory, table):
    path = tmp_path_factory.getbasetemp() / "digits.csv"
    path.write_text("\n".join(",".join(map(repr, row)) for row in table.tolist()))
    x, _ = csv.read(path, labels=False)
    np.testing.assert_array_equal(x, table)


def test_gzipped(tmp_path):
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(b"1,2,0\n"))
    assert load(str(tmp_path / "rows.csv.gz")).x.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "text, words",
    [
        ("", ": is empty; give one sample a line"),
        ("\n \n", ": is empty; give one sample a line"),
        ("a,b\n", ": has a header but no samples; give one sample a line"),
        ("1,2,0\n3,red,1\n", ", line 2: column 2 is 'red', but a number is expected; replace"),
        ("a,b,c\n\n1,,0\n", ", line 3: column 2 is empty, but a number is expected; fill it in"),
        ("1,2,0\n3,1_0,1\n", ", line 2: column 2 is '1_0', but a number is expected; replace"),
        (
            "a,b,y\n1,2,0\n3,２,1\n",
            ", line 3: column 2 is '２', but a number is expected; write it with the digits 0 to 9",
        ),
        ("1,2,0\n3,4,٣\n", ", line 2: column 3 is '٣', but a number is expected; write it with"),
        (
            '1,2,0\n3,4,"1\n5,6,0\n',
            ", line 2: has a quotation mark too many or too few, or a cell that goes on in the",
        ),
        ('id,a,y\n"x\ny",2,u\nz,4,w\n', ", line 2: has a quotation mark too many or too few, or a"),
        ('a,b,y\n1,2,u\n1,2,"u\nv"\n', ", line 3: has a quotation mark too many or too few, or a"),
        ('"a\nc",b,y\n1,2,u\n', ", line 1: has a quotation mark too many or too few, or a cell"),
        (
            'a,b,y\n5" pipe,2,0\n3" pipe,x,1\n',
            ", line 3: column 2 is 'x', but a number is expected",
        ),
        (
            "a,d,y\n1,2020-01-01,0\n",
            ", line 2: column 2 is '2020-01-01', but a number is expected; write days since a date",
        ),
        (
            "a,d,y\n1,3.12.2020 10:30,0\n",
            ", line 2: column 2 is '3.12.2020 10:30', but a number is expected; write days",
        ),
        ("1,two,0\n3,4,1\n", ", line 1: column 2 is 'two', but a number is expected; replace"),
        ("1,2,0\n3,4,1\n5,6\n", ", line 3: has 2 cells, but line 1 has 3; give every line"),
        ("1,2,0\n3,4,5,1\n", ", line 2: has 4 cells, but line 1 has 3; give every line"),
        ("a,b\n1,2,0\n", ", line 2: has 3 cells, but line 1 has 2; give every line"),
        ("1,2,0\n3,4,nan\n", ", line 2: the label, column 3, is nan; give every sample one"),
        ("1,2,cat\n3,4,\n", ", line 2: the label, column 3, is empty; give every sample one"),
        ("a,b,y\n1,2,\n3,4,cat\n", ", line 2: the label, column 3, is empty; give every sample"),
        ("1,2,0\n3,4,\n", ", line 2: the label, column 3, is empty; give every sample one, or"),
        ("a,b,y\nNA,2,0\n1,2,1\n", ", line 2: column 1 is 'NA', but a number is expected; replace"),
        (
            "sex,age,y\nm,22,0\nf,38,1\nm,26,1\n",
            ", line 4: column 'sex' has 'm' a second time, and so does not name the samples; write "
            "a column of 0 and 1 per category, or leave it out, or say what it holds: the label, "
            "label='sex' (--label sex), or names all the same, ids='sex' "
            "(--ids sex)",
        ),
        ("m,22,0\nm,38,1\n", ", line 2: column 1 has 'm' a second time"),
        (
            "10%,22,0\n12%,38,1\n",
            ", line 1: column 1 has '10%', a value and no name of a sample; "
            "write it as a number (True as 1, 10% as 0.1, 1,000 as 1000), or leave it out, or say",
        ),
        ("a;b;y\n1,5;2;0\n", ", line 2: column 'a' has '1,5'; decimal commas are not read: write"),
        (
            "a;b;y\n1;2,5;0\n",
            ", line 2: column 2 is '2,5', but a number is expected; decimal commas",
        ),
        ("a,b,y\nTrue,22,0\n", ", line 2: column 'a' has 'True', a value and no name"),
        ('a,b,y\n"1,000",22,0\n', ", line 2: column 'a' has '1,000', a value and no name"),
        ("1,2,0\n3,4,cat\n", ", line 2: column 3 is 'cat', but a number is expected; the labels"),
        ("1,2,cat\n3,cat\n", ", line 2: has 2 cells, but line 1 has 3; give every line"),
        ("1,2,cat\n3,x,dog\n", ", line 2: column 2 is 'x', but a number is expected; replace"),
        ("n,2,cat\nm,3,dog\n1,2,3,eel", ", line 3: has 4 cells, but line 1 has 3; give every"),
        ("a,b,c\nx,y,cat\n", ", line 2: column 2 is 'y', but a number is expected; replace"),
        ("id,label\na,cat\n", ", line 1: has no column of features besides the label"),
        ("1,2,0\n3,nan,1\n", ": x has NaN at row 1, column 1, the only such value"),
        ("1\n2\n", ", line 1: has one column, which would be the label; add features, or say"),
    ],
)
def test_the_wrong_line_is_named(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(DataError) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path}{words}")


def test_labels_may_be_names_and_the_first_column_the_samples_own(tmp_path, monkeypatch):
    monkeypatch.setattr(csv, "CHUNK_LINES", 2)
    text = 'id,"height, cm",label\n"a, 1",1.5,"cat"\nb,2,dog\n3, 4 ,"cat, black"\n\nc,5,7\n'
    dataset = load(str(write(tmp_path, text)))
    assert dataset.classes == ("7", "cat", "cat, black", "dog")
    assert dataset.y.tolist() == [1, 3, 2, 0] and dataset.x.tolist() == [[1.5], [2], [4], [5]]
    assert dataset.ids.tolist() == ["a, 1", "b", "3", "c"] and dataset.id_name == "id"
    assert dataset[1:3].ids.tolist() == ["b", "3"]
    unlabelled = load(str(write(tmp_path, text)), labels=False)  # text is no feature
    assert unlabelled.y is None and unlabelled.x.tolist() == dataset.x.tolist()


@pytest.mark.parametrize("text", ["10%,1,0\n10%,2,1\n", "m,1,0\nm,2,1\n", "True,1,0\nTrue,2,1\n"])
def test_names_that_are_said_to_be_names_may_be_anything(tmp_path, text):
    path = str(write(tmp_path, text))
    assert load(path, ids=1).ids.tolist() == [line.split(",")[0] for line in text.splitlines()]
    assert load(path, label=1).classes == tuple(dict.fromkeys(load(path, ids=1).ids))
    with pytest.raises(DataError, match="or say what it holds: names all the same, ids=1"):
        load(path, label=3)


def test_numbers_that_are_no_classes_are_targets(tmp_path):
    for last in ("0.5", "-1"):
        dataset = load(str(write(tmp_path, f"1,2,0\n3,4,{last}\n")))
        assert dataset.y.tolist() == [[0.0], [float(last)]]


@pytest.mark.parametrize("label, ids", [("kind", "number"), (1, "3"), ("1", 3)])
def test_columns_are_named_by_the_header_or_by_number(tmp_path, label, ids):
    path = str(write(tmp_path, "kind,height,number\n1,1.5,17\n0,2,18\n"))
    dataset = load(path, label=label, ids=ids)
    assert dataset.x.tolist() == [[1.5], [2]] and dataset.y.tolist() == [1, 0]
    assert dataset.ids.tolist() == ["17", "18"] and dataset.id_name == "number"
    assert load(path, labels=False, label="kind").x.tolist() == [[1.5, 17], [2, 18]]
    with pytest.raises(DataError, match="has no column 'sort'; give a number from 1 to 3, or a "
                       "name of its header: kind, height, number"):  # fmt: skip
        load(path, label="sort")


def test_standard_input_is_a_file_too(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("1,2,0\n3,4,1\n"))
    dataset = load("-")
    assert dataset.x.tolist() == [[1, 2], [3, 4]] and dataset.y.tolist() == [0, 1]
    monkeypatch.setattr("sys.stdin", io.StringIO("1,2,0\n3,x,1\n"))
    with pytest.raises(DataError, match="^standard input, line 2: column 2 is 'x'"):
        load("-")


def test_other_formats_have_no_columns():
    with pytest.raises(DataError, match="digits: only .csv files have columns with names"):
        load("digits", label="kind")


def test_a_wrong_line_far_down_is_named(tmp_path):
    path = write(tmp_path, "1,2,0\n" * 3000 + "1,x,0\n")
    with pytest.raises(DataError, match="line 3001: column 2 is 'x'"):
        load(str(path))


def test_other_encodings_and_damage(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("größe,b\n1,0\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8 text .* save it as UTF-8"):
        load(str(path))
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress(b"1,2,0\n" * 1000)[:-12])
    with pytest.raises(DataError, match="the gzip data are damaged .* fetch the file again"):
        load(str(packed))
    with pytest.raises(NotFound, match="no such file"):
        csv.read(tmp_path / "other.csv")


def test_a_table_that_is_not_there_is_missed_whatever_its_columns(tmp_path):
    with pytest.raises(NotFound, match=r"rows\.csv: no such file"):
        load(str(tmp_path / "rows.csv"), label="kind", ids="plant")


@pytest.mark.parametrize("lines", ['1,"{}"\n', "1,2\n" * 3 + "1,{}\n"], ids=["first", "later"])
def test_a_cell_beyond_what_pythons_reader_takes(tmp_path, lines):
    path = tmp_path / "rows.csv"
    path.write_text(lines.format("a" * 200_000))
    with pytest.raises(
        DataError, match=r"rows.csv: has a cell of more than 131,072 characters; is"
    ):
        load(str(path))


def test_a_line_without_end_is_not_read_whole(tmp_path, monkeypatch):
    """A .gz of some kilobytes can hold one of gigabytes."""
    monkeypatch.setattr("horn.formats.csv.MOST_CHARACTERS", 64)
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"1,2,0\n" + b"0," * 100))
    with pytest.raises(DataError, match=r"rows\.csv\.gz, line 2: has more than 64 characters; "):
        csv.read(path)
    path.write_bytes(gzip.compress(b"1,2,0\n" + b"3," * 28 + b"33333,0\n"))
    with pytest.raises(DataError, match=r"line 2: has 30 cells, but line 1 has 3"):
        csv.read(path)


@pytest.mark.parametrize(
    "text, warns",
    [
        ("0,1,2\n1.5,2,0\n3,4,1\n", True),
        (",0,1,2\n5,1.5,2,0\n7,3,4,1\n", True),
        ("0,1,y\n1.5,2,0\n3,4,1\n", True),
        ("0,1,2,y\n1.5,2,3,0\n3,4,5,1\n", False),
        ('"0","1","2","y"\r\n1.5,2,3,0\r\n3,4,5,1\r\n', False),
        ("country,2019,2020,target\nat,1.5,2,0\nde,3,4,1\n", False),
        ("country;2019;2020;kind\nat;1.5;2;x\nde;3;4;y\n", True),
        ("id,0,1,2,kind\na,1.5,2,3,x\nb,3,4,5,y\n", True),
        ("400.5,401,kind\n1.5,2,0\n3,4,1\n", True),
        ("4000,3990,3980,kind\n1.5,2,3,0\n3,4,5,1\n", True),
        ("a,inf,y\n1.5,2,0\n3,4,1\n", True),
    ],
)  # fmt: skip
def test_names_that_are_numbers_are_a_header(tmp_path, caplog, text, warns):
    path = write(tmp_path, text)
    dataset = load(str(path))
    names = [cell.strip('"') for cell in text.splitlines()[0].replace(";", ",").split(",")]
    assert len(dataset) == 2 and dataset.y.tolist() == [0, 1] and 1.5 in dataset.x[0]
    features = names[:-1] if dataset.ids is None else names[1:-1]
    assert dataset.feature_names == tuple(features)
    found = [r.getMessage() for r in caplog.records]
    assert len(found) == warns
    if warns:
        assert found[0].startswith(f"{path}: line 1, ") and "is read as a header" in found[0]
        assert "if it is a sample, write a line of names above it" in found[0]


@pytest.mark.parametrize(
    "text",
    [
        "0,0,0\n1,1,1\n",
        "1,2,0\n3,4,1\n",
        "0,1,2\n",  # alone
        "0,1\n1,2.7\n2,7.4\n",  # two count too easily
        "0,1,2\n3,4,5\n6,7,8\n",  # goes on
        "0,1,2\n1,2,3\n",
        "0.0,1.0,2.0\n1.5,3,0\n",
        "1,2,cat\n3,4,dog\n",
        "a,1,2,0\nb,3,4,1\n",
        "a,0,1,cat\nb,1,1,dog\n",
        "a3f,2,1.5,cat\n123,2,1.5,dog\n",
        "5,3,A\n1,2,7\n",  # classes of letters and digits
        "1,2,cat\n3,4,cat\n",
        "2019,2020,0\n2020,2021,1\n",
        "0,1,2,?\n1.5,2,3,4\n",
        "2019,2020\n2001,2005\n",
    ],
)
def test_samples_in_the_first_line_stay_samples(tmp_path, caplog, text):
    dataset = load(str(write(tmp_path, text)))
    assert len(dataset) == len(text.splitlines()) and dataset.feature_names == ()
    assert not caplog.records


def test_a_value_that_is_missing_is_no_name(tmp_path):
    for missing in ("", "?", "NA", "N/A", "-"):
        with pytest.raises(DataError, match="line 1: column 2 is"):
            load(str(write(tmp_path, f"1,{missing},3,4\n5,6,7,8\n")))


def test_a_number_of_very_many_digits_is_a_sample(tmp_path):
    with pytest.raises(DataError, match="x has infinity"):
        load(str(write(tmp_path, f"{'9' * 5000},1,0\n3,4,1\n")))


def test_a_name_goes_before_a_number(tmp_path):
    path = str(write(tmp_path, "0,1,2,y\n5,6,7,8\n9,10,11,12\n"))
    assert load(path, label="1").y.tolist() == [6, 10]
    assert load(path, label=1).y.tolist() == [5, 9]
    assert load(path, label="1").feature_names == ("0", "2", "y")
    years = str(write(tmp_path, "country,2019,2020\nat,1.5,7\nde,3,8\n"))
    assert load(years, label="2020").y.tolist() == [7, 8]
    assert load(years, labels=False).feature_names == ("2019", "2020")


def test_an_index_without_a_name_is_told_of(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(csv, "CHUNK_LINES", 2)
    lines = [f"{k},1.5,{k % 2}\n" for k in range(5)]
    path = write(tmp_path, ",a,y\n" + "".join(lines))
    assert load(str(path)).feature_names == ("", "a")
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"{path}: column 1 has no name and counts the lines, and is read as a feature; write the "
        "table without it, df.to_csv(path, index=False), or name it with ids=1 (--ids 1)"
    )
    caplog.clear()
    load(str(path), ids=1)
    load(str(write(tmp_path, "n,a,y\n" + "".join(lines))))
    load(str(write(tmp_path, ",a,y\n" + "".join(reversed(lines)))))
    assert not caplog.records


def test_lines_that_are_answered_at_once_wait_for_no_other(monkeypatch):
    def first(text: str) -> list[float]:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return next(iter(csv.CsvReader(csv.STDIN, has_labels=False, is_live=True))).x[0].tolist()

    assert first("0,1,2\n3.5,4,5\n") == [3.5, 4, 5]
    assert first("t,2019,2020\na,4,5\n") == [4, 5]
    assert first("0 1\n3 4\n") == [0, 1]
    assert first("a 1.5 2\n7 4 5\n") == [1.5, 2]


def test_shards_and_conversion_know_such_headers_too(tmp_path):
    for k in (1, 2):
        (tmp_path / f"s{k}.csv").write_text(f"0,1,2\n1.5,2,{k - 1}\n3.5,4,1\n")
    assert load(str(tmp_path)).y.tolist() == [0, 1, 1, 1]
    folder = convert(tmp_path / "s1.csv", tmp_path / "arrays")
    assert load(folder).x.tolist() == [[1.5, 2], [3.5, 4]]


@pytest.mark.parametrize(
    "columns", [{"label": "y", "ids": "y"}, {"label": 3, "ids": "y"}, {"ids": 3}]
)
@pytest.mark.parametrize("label", ["1", "0.5", "cat"])
def test_a_column_is_the_label_or_the_names_of_samples(tmp_path, columns, label):
    """The names were an empty array, and a part held out an IndexError later."""
    (tmp_path / "rows.csv").write_text(f"a,b,y\n1,2,{label}\n3,4,{label}\n")
    with pytest.raises(DataError, match=r"rows.csv: column y is to be the label and the names of"):
        load(str(tmp_path / "rows.csv"), **columns)
    found = load(str(tmp_path / "rows.csv"), labels=False, ids="y")
    assert (found.x.tolist(), found.ids.tolist()) == ([[1, 2], [3, 4]], [label, label])


@pytest.mark.parametrize("columns", [{"label": "y"}, {"ids": "y"}])
def test_a_name_that_two_columns_have_names_neither(tmp_path, columns):
    """The first was taken, and the other, often a copy of the label, was a feature."""
    path = write(tmp_path, "y,a,y\n5,2,0\n6,4,1\n")
    with pytest.raises(DataError, match=r"rows.csv: has 2 columns 'y' \(1, 3\); give the number"):
        load(str(path), **columns)
    assert load(str(path), label=1).y.tolist() == [5, 6]


def test_names_that_two_columns_have_are_told(tmp_path, caplog):
    """Models of such files know no names of columns, so that no order is checked."""
    assert load(str(write(tmp_path, "y,a,y\n5,2,0\n6,4,1\n"))).feature_names == ("y", "a")
    assert "columns 1, 3 are all called 'y', as the label, column 3: a copy" in caplog.text
    caplog.clear()
    assert load(str(write(tmp_path, "a,b,a,y\n5,2,3,0\n6,4,3,1\n"))).feature_names == ()
    assert "columns 1, 3 are all called 'a': models know the columns by their" in caplog.text
