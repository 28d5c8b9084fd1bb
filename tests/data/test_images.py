"""Folders of pictures: a folder of PNG or JPEG files for each class."""

import builtins

import numpy as np
import pytest
from PIL import Image

import horn
from horn.data import images
from horn.errors import DataError, ModelError, NotFound

RNG = np.random.default_rng(3)


def write(path, size=(6, 5), mode="RGB", **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if mode in ("L", "P") else (*size, len(mode))
    array = RNG.integers(0, 256, shape).astype(np.uint8)
    Image.fromarray(array[..., 0] if shape[-1:] == (1,) else array, mode).save(path, **more)
    return array


@pytest.fixture
def folder(tmp_path):
    """(folder, the pixels of its files by name)."""
    names = ("eel/1.png", "cat/2.png", "cat/10.png")
    return tmp_path, {name: write(tmp_path / name) for name in names}


def test_a_folder_by_class_is_data_with_names_and_shape(folder):
    where, pixels = folder
    for data in (horn.data.images(where), horn.data.load(str(where))):
        assert data.x.shape == (3, 90) and data.x.dtype == np.uint8 and data.scale == 1 / 255
        assert data.shape == (6, 5, 3) and data.images.shape == (3, 6, 5, 3)
        assert data.classes == ("cat", "eel") and data.y.tolist() == [0, 0, 1]
        assert data.ids.tolist() == ["cat/10.png", "cat/2.png", "eel/1.png"]
        for name, image in zip(data.ids, data.images, strict=True):
            assert np.array_equal(image, pixels[name])


def test_one_picture_is_a_sample_without_a_label(folder):
    where, pixels = folder
    for read in (horn.data.images, horn.data.load):
        data = read(where / "eel" / "1.png")
        assert data.shape == (6, 5, 3) and data.y is None and data.ids.tolist() == ["1.png"]
        assert np.array_equal(data.images[0], pixels["eel/1.png"])
    with pytest.raises(NotFound, match="no such folder or file"):
        horn.data.images(where / "eel" / "2.png")


def test_grey_pictures_have_one_channel_unless_others_are_coloured(tmp_path):
    grey = write(tmp_path / "a" / "1.png", mode="L")
    assert horn.data.images(tmp_path).shape == (6, 5, 1)
    write(tmp_path / "a" / "2.jpg", quality=95)
    write(tmp_path / "b" / "3.PNG", mode="RGBA")
    data = horn.data.images(tmp_path)
    assert data.shape == (6, 5, 3)
    assert np.array_equal(data.images[0], np.repeat(grey[..., None], 3, axis=2))


def test_grey_pictures_of_a_mixed_folder_come_alone(tmp_path):
    for k in range(3):
        write(tmp_path / "grey" / f"{k}.png", mode="L")
        write(tmp_path / "red" / f"{k}.png")
    mixed, alone = images(tmp_path), images(tmp_path / "grey", labels=False)
    net = horn.Network(seed=1)
    net.input((6, 5, 3))
    net.output(2, activation="softmax", loss="cross_entropy")
    check = alone.with_targets(np.array(["grey", "grey", "red"]))
    job = horn.Job(net, mixed, validation=check, test=check, epochs=1, normalize="channel")
    model = horn.train(job).model
    expected = model.predict(mixed)[:3]
    assert np.array_equal(model.predict(alone), expected)
    assert np.array_equal(model.predict(images(tmp_path / "grey" / "1.png"))[0], expected[1])
    with pytest.raises(DataError, match=r"x.shape is \(3, 6, 5, 1\)"):
        model.predict(alone.images)  # an array is taken as it is
    with pytest.raises(DataError, match="features per sample"):
        model.predict(images(tmp_path / "grey" / "1.png", size=(5, 5)))


def test_a_picture_of_a_grey_palette_is_grey(tmp_path):
    Image.fromarray(np.full((4, 4), 7, np.uint8)).convert("P").save(tmp_path / "grey.png")
    found = images(tmp_path / "grey.png")
    assert found.shape == (4, 4, 1) and (found.x == 7).all()
    Image.fromarray(np.full((4, 4, 3), (7, 0, 0), np.uint8)).convert("P").save(tmp_path / "c.png")
    assert images(tmp_path / "c.png").shape == (4, 4, 3)


def test_a_picture_that_its_camera_says_to_turn_is_turned(tmp_path):
    pixels, said = np.zeros((8, 16), np.uint8), Image.Exif()
    pixels[:, :8], said[274] = 255, 6  # a quarter to the right
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=said)
    found = images(tmp_path / "a.png")
    assert found.shape == (16, 8, 1)
    np.testing.assert_array_equal(found.images[0, :, :, 0], np.rot90(pixels, -1))


def test_hidden_files_are_left_out_and_folders_in_a_class_are_not(folder):
    where, _ = folder
    (where / ".cache").mkdir()
    write(where / ".cache" / "1.png")
    (where / "cat" / ".DS_Store").write_bytes(b"x")
    write(where / "cat" / "young" / "1.png")
    assert horn.data.images(where).y.tolist() == [0, 0, 0, 1]


def test_pictures_without_labels_may_lie_in_the_folder_itself(tmp_path):
    write(tmp_path / "1.png")
    assert horn.data.load(str(tmp_path), labels=False).y is None
    with pytest.raises(DataError, match=r"1.png: lies in no folder of a class; move it to one"):
        horn.data.load(str(tmp_path))


@pytest.mark.parametrize("bytes_left, suffix", [(50, "png"), (0, "png"), (700, "jpg")])
def test_a_broken_file_is_named(folder, bytes_left, suffix):
    where, _ = folder
    path = where / "cat" / f"3.{suffix}"
    write(path, (40, 40))
    path.write_bytes(path.read_bytes()[:bytes_left])
    with pytest.raises(DataError, match=rf"cat/3.{suffix}: is damaged or no picture .*; replace"):
        horn.data.images(where, size=(6, 5))


def test_other_files_are_named(folder):
    where, _ = folder
    (where / "eel" / "notes.txt").write_text("slippery")
    with pytest.raises(DataError, match=r"eel/notes.txt: is no PNG or JPEG file; move it out"):
        horn.data.images(where)
    (where / "eel" / "notes.txt").unlink()
    Image.fromarray(np.full((6, 5), 7000, np.uint16)).save(where / "eel" / "deep.png")
    with pytest.raises(DataError, match=r"eel/deep.png: its pixels are of the kind 'I"):
        horn.data.images(where)


def test_mixed_sizes_are_named_and_scaled_if_asked(folder):
    where, _ = folder
    flat = np.full((12, 10, 3), 77, np.uint8)
    Image.fromarray(flat).save(where / "eel" / "2.png")
    with pytest.raises(DataError, match=r"eel/2.png: is 12 x 10 pixels .*10.png is 6 x 5; scale"):
        horn.data.images(where)
    data = horn.data.images(where, size=(3, 4))
    assert data.shape == (3, 4, 3) and (data.images[-1] == 77).all()
    assert horn.data.images(where, size=np.int64(4)).shape == (4, 4, 3)


@pytest.mark.parametrize("size", [(4,), (4, 4, 3), (0, 4), "4x4", (4.5, 4), True, 0, [4, None]])
def test_another_size_is_told_what_to_write(folder, size):
    with pytest.raises(DataError, match=r"^images: size is \(height, width\) in pixels, as size="):
        horn.data.images(folder[0], size=size)


def test_nothing_there_is_said(tmp_path, monkeypatch):
    with pytest.raises(NotFound, match="no such folder"):
        horn.data.images(tmp_path / "none")
    with pytest.raises(DataError, match="has no PNG or JPEG files; put those of each class in"):
        horn.data.images(tmp_path)
    write(tmp_path / "a" / "1.png")
    real = builtins.__import__

    def without(name, *rest):
        if name == "PIL":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModelError, match=r"pip install 'horn-bsp\[images\]'"):
        horn.data.images(tmp_path)
