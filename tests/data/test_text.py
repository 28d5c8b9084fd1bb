"""A text as sequences of characters, each followed by the next."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import horn
from horn.errors import NotFound

TEXT = "to be, or not to be: that is the question\n"


def spelled(data: horn.data.Dataset, row: int) -> tuple[str, str]:
    """What a sample says, and what follows each of its characters."""
    letters = "".join(data.classes)
    hot = data.x[row].reshape(-1, len(letters))
    assert (hot.sum(axis=1) == 1).all()
    return ("".join(letters[k] for k in hot.argmax(axis=1)),
            "".join(letters[k] for k in data.y[row]))  # fmt: skip


def test_pieces_follow_one_another_and_each_character_is_answered_by_the_next():
    data = horn.data.text(io.StringIO(TEXT), 10)
    assert data.classes == tuple(sorted(set(TEXT))) and len(data) == 4
    assert data.x.dtype == np.uint8 and data.y.dtype == np.int64 and data.scale == 1.0
    assert [spelled(data, k) for k in range(4)] == [
        (TEXT[at : at + 10], TEXT[at + 1 : at + 11]) for at in (0, 10, 20, 30)
    ]


def test_pieces_may_overlap_and_then_share_their_memory():
    data = horn.data.text(io.StringIO(TEXT), 10, stride=3)
    assert len(data) == (len(TEXT) - 11) // 3 + 1
    assert spelled(data, 5) == (TEXT[15:25], TEXT[16:26])
    assert np.shares_memory(data.x[0], data.x[1])
    out = np.empty((2, data.n_features), np.float32)
    np.testing.assert_array_equal(data.read(np.array([7, 2]), out), data.x[[7, 2]])


def test_a_file_and_any_letters_of_the_world(tmp_path: Path):
    said = "Größe 🐘, ひとつ\n" * 3
    (tmp_path / "poem.txt").write_bytes(said.encode())
    data = horn.data.text(tmp_path / "poem.txt", 4)
    assert data.name == "poem.txt" and set(data.classes) == set(said)
    assert spelled(data, 1) == (said[4:8], said[5:9])


def test_a_file_of_another_system_is_the_same_text(tmp_path):
    """As ``open(path)`` translates line ends; its byte order mark is no character."""
    (tmp_path / "poem.txt").write_bytes("\ufeffto be\r\nor not\r\n".encode())
    data = horn.data.text(tmp_path / "poem.txt", 4)
    assert data.classes == tuple(sorted(set("to be\nor not\n"))) and spelled(data, 0)[0] == "to b"


def test_another_text_is_spelled_in_the_alphabet_of_the_first():
    first = horn.data.text(io.StringIO(TEXT), 5)
    second = horn.data.text(io.StringIO("a question"), 5, alphabet=first.classes)
    assert second.classes == first.classes and spelled(second, 0) == ("a que", " ques")


def reader(n_letters: int, steps: int) -> horn.Network:
    net = horn.Network()
    net.output(n_letters, inputs=net.input(n_letters, steps=steps), activation="softmax",
               loss="cross_entropy", each_step=True)  # fmt: skip
    return net


def test_labels_of_one_character_each_are_no_alphabet():
    """Tags B, I and O of as many features were taken for a text in another alphabet."""
    x = np.arange(60.0).reshape(5, 4, 3)
    net = horn.Network(seed=1)
    net.input(3, steps=4)
    net.layer(4, activation="tanh")
    net.output(3, activation="softmax", loss="cross_entropy", each_step=True)
    model = horn.train(horn.Job(net, (x, np.resize(list("BIO"), (5, 4))), epochs=1)).model
    asked = x[:, :, :2], np.resize(list("BO"), (5, 4))
    tags = horn.data.sequences(*asked)  # two features, two tags, as a text of two characters
    assert tags.with_classes(model.classes, "this model").y[0].tolist() == [0, 2, 0, 2]
    assert (
        horn.data.text(io.StringIO("to be"), 2).is_text
        and horn.data.text(io.StringIO("a b")).is_text
    )


def test_a_model_says_that_a_text_has_another_alphabet_whatever_its_size():
    data = horn.data.text(io.StringIO(TEXT), 4)
    net = reader(len(data.classes), 4)
    model = horn.Model(net, net.initial_parameters(), classes=data.classes)
    assert data.shape == (4, len(data.classes)) and len(model.predict(data)) == len(data)
    larger, as_large = TEXT + "xyz", TEXT.replace("b", "x")
    for other in (larger, as_large):
        there = horn.data.text(io.StringIO(other), 4)
        for ask in (model.predict, model.evaluate):
            with pytest.raises(horn.DataError, match="another alphabet than this model; write"):
                ask(there)
        for name in ("validation", "test"):
            with pytest.raises(horn.DataError, match="another alphabet than the training data"):
                horn.Job(net, data, **{name: there})
    known = horn.data.text(io.StringIO("to be"), np.int64(4), alphabet=model.classes)
    assert model.predict(known).shape == (1, 4, len(data.classes))


def test_a_model_file_keeps_halves_of_characters(tmp_path):
    """Bytes that are no text, as ``open(errors="surrogateescape")`` reads them."""
    source = io.TextIOWrapper(
        io.BytesIO("où est l'été? là-bas\n".encode("latin-1") * 3), "utf-8", "surrogateescape"
    )
    data = horn.data.text(source, 4)
    model = horn.train(horn.Job(reader(len(data.classes), 4), data, epochs=1)).model
    model.save(tmp_path / "m.horn")
    loaded = horn.Model.load(tmp_path / "m.horn")
    assert loaded.classes == data.classes and "\udce9" in loaded.classes
    assert loaded.evaluate(data) == model.evaluate(data)


def test_pieces_of_a_text_that_are_too_long_for_a_network_are_told_by_their_steps():
    data = horn.data.text(io.StringIO(TEXT), 10)
    n = len(data.classes)
    with pytest.raises(horn.DataError, match=rf"10 steps, but net.input\({n}, steps=4\) takes at"):
        horn.Job(reader(n, 4), data)


@pytest.mark.parametrize(
    "source, settings, said",
    [
        (io.StringIO("a\nb€c\n" * 3), {"alphabet": "abc\n"}, r"'€' \(line 2, in 'a\\nb€c"),
        (io.StringIO("abc"), {"steps": 3}, "has 3 characters, but pieces of 3 .* at most steps=2"),
        (io.StringIO("a"), {"steps": 1}, r"has 1 characters, .* give a longer text$"),
        (io.StringIO("abc"), {"alphabet": ""}, "the alphabet is empty; give each character once"),
        (io.StringIO("abc"), {"steps": 0}, "steps is how long a piece is, from 1; got 0"),
        (io.StringIO("abc"), {"steps": 1, "stride": -1}, "stride .* got -1"),
        (io.StringIO("abc"), {"steps": 1, "level": "word"}, "level='word' is not known"),
        (io.BytesIO(b"abc"), {}, "open the file as text"),
        ("a\0b", {}, "cannot be read"),
        (["a", "b"], {}, "takes the path of a file"),
        ("to be or\nnot to be", {}, r"what looks like the text itself, 'to be or.nnot .* io.Strin"),
        (io.StringIO("abc"), {"alphabet": ["ab", "c"]}, "is of characters, one each; got 'ab'"),
        (io.StringIO("abc"), {"alphabet": 5}, "the alphabet is a text of its characters; got 5"),
        (io.StringIO("abc"), {"alphabet": [1, 2]}, "is of characters, one each; got 1"),
        (io.StringIO("abc"), {"alphabet": "abcab"}, r"repeats 'a', 'b'; .* sorted\(set\(text\)\)"),
    ],
)
def test_what_cannot_be_spelled_is_said(source, settings, said):
    with pytest.raises(horn.DataError, match=said):
        horn.data.text(source, **{"steps": 2, **settings})


def test_a_file_that_is_not_there_is_said():
    with pytest.raises(NotFound, match="no-such.txt: no such file"):
        horn.data.text("no-such.txt", 2)


def test_a_file_in_another_encoding_is_said(tmp_path: Path):
    (tmp_path / "old.txt").write_bytes("Größe".encode("latin-1"))
    with pytest.raises(horn.DataError, match=r"no UTF-8 \(byte 2\)"):
        horn.data.text(tmp_path / "old.txt", 2)
