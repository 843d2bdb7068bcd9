"""Patches of photographs as sequences of intensities."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fairseq_plugins.data.image_patches import (
    SPLITS,
    as_line,
    draw_patches,
    draw_pictures,
    from_line,
    join,
    read_photograph,
    shipped_photographs,
    write_corpus,
)
from fairseq_plugins.errors import ConfigurationError


def gradient(width: int, height: int) -> Image.Image:
    """Return an image whose red and green encode column and row."""
    image = np.zeros((height, width, 3), np.uint8)
    image[:, :, 0] = np.arange(width)
    image[:, :, 1] = np.arange(height)[:, None]
    return Image.fromarray(image)


def test_raster_scan_order_and_back() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert as_line(image) == "0 1 2 3 4 5 6 7 8 9 10 11"
    np.testing.assert_array_equal(from_line(as_line(image)), image)


@pytest.mark.parametrize(
    ("line", "message"),
    [("", "0 intensities"), ("1 2 3 4", "4 intensities"), ("1 2 256", "256"), ("1 <unk> 3", "<unk>")],
)
def test_invalid_lines_are_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_line(line)


@pytest.mark.parametrize("size", [16, 32])
def test_low_resolution_is_the_mean_of_the_high(size: int) -> None:
    generator = np.random.default_rng(0)
    noise = Image.fromarray(generator.integers(0, 256, (120, 200, 3), dtype=np.uint8))
    high, low = draw_patches([noise], "train", 5, size, generator)
    assert high.shape == (5, size, size, 3) and low.shape == (5, 8, 8, 3)
    part = size // 8
    means = high.reshape(5, 8, part, 8, part, 3).mean(axis=(2, 4))
    # Pillow rounds twice, after columns and after rows.
    np.testing.assert_allclose(low, means, atol=1.01)


def test_splits_do_not_overlap() -> None:
    columns = {}
    for split in SPLITS:
        high, _ = draw_patches([gradient(240, 60)], split, 40, 8, np.random.default_rng(1))
        columns[split] = (int(high[..., 0].min()), int(high[..., 0].max()))
    assert columns["test"][1] <= columns["valid"][0] and columns["valid"][1] <= columns["train"][0]


@pytest.mark.parametrize("tiles", [1, 3])
def test_pictures_are_cut_and_joined(tiles: int) -> None:
    high, low = draw_pictures([gradient(240, 240)], "test", 2 * tiles**2, 16, tiles, np.random.default_rng(0))
    assert high.shape == (2 * tiles**2, 16, 16, 3) and low.shape == (2 * tiles**2, 8, 8, 3)
    for patches, side in ((high, 16), (low, 8)):
        pictures = join(patches, tiles)
        assert [picture.shape for picture in pictures] == [(tiles * side, tiles * side, 3)] * 2
        for picture in pictures:
            # Covers the 108 columns: 6 or 2 pixels of the photograph per output pixel.
            step = (108 // (16 * tiles)) * 16 // side
            columns, rows = picture[..., 0].astype(int), picture[..., 1].astype(int)
            assert np.abs(np.diff(columns, axis=1) - step).max() <= 1 and np.ptp(columns, axis=0).max() == 0
            assert np.abs(np.diff(rows, axis=0) - step).max() <= 1 and np.ptp(rows, axis=1).max() == 0
    assert join(list(high[: tiles**2 - 1]), tiles) == []


def test_impossible_pictures_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="--test 5: give a multiple of 2 x 2"):
        draw_pictures([gradient(240, 60)], "test", 5, 16, 2, np.random.default_rng(0))
    with pytest.raises(ConfigurationError, match="--tiles 4: pictures of 64 pixels, but the test part .* has 108 x 60"):
        draw_pictures([gradient(240, 60)], "test", 16, 16, 4, np.random.default_rng(0))


def test_shipped_photographs_exist() -> None:
    for path in shipped_photographs():
        assert read_photograph(path).size == (640, 427)


def test_corpus_is_deterministic(tmp_path: Path) -> None:
    counts = {"train": 3, "valid": 2, "test": 1}
    for name in ("one", "two"):
        write_corpus(tmp_path / name, shipped_photographs(), counts, 16, seed=5)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["dict.txt", "test.high", "test.low", "train.high", "train.low", "valid.high", "valid.low"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert [len(line.split()) for line in (tmp_path / "one/train.high").read_text().splitlines()] == [768] * 3
    assert [len(line.split()) for line in (tmp_path / "one/train.low").read_text().splitlines()] == [192] * 3
    assert (tmp_path / "one/dict.txt").read_text().splitlines()[255] == "255 1"


def test_unusable_photographs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--photographs .*none.jpg: No such file"):
        read_photograph(tmp_path / "none.jpg")
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(ConfigurationError, match="text.jpg: is no image"):
        read_photograph(tmp_path / "text.jpg")
    with pytest.raises(ConfigurationError, match="--size 32: the valid part of a photograph has 5 x 60 pixels"):
        draw_patches([gradient(100, 60)], "valid", 1, 32, np.random.default_rng(0))
