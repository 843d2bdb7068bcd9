"""Super-resolution: patches of photographs, the picture by pixels, bad input, and the recipe on very small images."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.errors import error_about, refused
from tests.test_demo_script import ROOT, quick, run_recipe
from train_scripts.tools.__main__ import main
from train_scripts.tools.super_resolution import (
    SPLITS,
    as_line,
    draw_patches,
    draw_pictures,
    from_line,
    join,
    psnr,
    write_patches,
)


def gradient(width: int, height: int) -> Image.Image:
    """Return an image whose red and green encode column and row."""
    image = np.zeros((height, width, 3), np.uint8)
    image[:, :, 0] = np.arange(width)
    image[:, :, 1] = np.arange(height)[:, None]
    return Image.fromarray(image)


def test_raster_scan_order_and_back() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert as_line(image) == "0 1 2 3 4 5 6 7 8 9 10 11"
    np.testing.assert_array_equal(from_line(as_line(image), "file"), image)
    for line, message in (("", "0 intensities"), ("1 2 256", "256"), ("1 <unk> 3", "<unk>")):
        with refused(message):
            from_line(line, "file")


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


def test_photographs_that_are_too_small_are_refused() -> None:
    with error_about("--tiles", "pictures of 64 pixels, but the test part .* has 108 x 60"):
        draw_pictures([gradient(240, 60)], "test", 16, 16, 4, np.random.default_rng(0))


def test_corpus_is_deterministic(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_patches(tmp_path / name, size=16, train=3, valid=2, test=1, seed=5)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["dict.txt", "test.high", "test.low", "train.high", "train.low", "valid.high", "valid.low"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert [len(line.split()) for line in (tmp_path / "one/train.high").read_text().splitlines()] == [768] * 3
    assert [len(line.split()) for line in (tmp_path / "one/train.low").read_text().splitlines()] == [192] * 3
    assert (tmp_path / "one/dict.txt").read_text().splitlines()[255] == "255 1"


def plain(value: int, size: int = 8) -> np.ndarray:
    return np.full((size, size, 3), value, np.uint8)


def write_output(file: Path, outputs: dict[int, np.ndarray]) -> Path:
    """Return fairseq-generate's output for images with a white 8 x 8 input and an original of all 100."""
    lines = ["INFO"]
    for number, image in outputs.items():
        lines += [f"S-{number}\t{as_line(plain(255))}", f"T-{number}\t{as_line(plain(100, 16))}"]
        lines += [f"H-{number}\t-0.5\t{as_line(image)}", f"D-{number}\t-0.5\t{as_line(image)}", f"P-{number}\t-0.5"]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_psnr_by_hand() -> None:
    assert psnr(plain(110), plain(100)) == pytest.approx(10 * np.log10(255**2 / 100))
    assert psnr(plain(100), plain(100)) == float("inf")


def test_images_stand_side_by_side(tmp_path: Path) -> None:
    """Columns: input, outputs, original; patches are joined to pictures."""
    greedy = write_output(tmp_path / "greedy.out", {number: plain(10 * number, 16) for number in range(7, -1, -1)})
    other = write_output(tmp_path / "other.out", {number: plain(10 * number + 5, 16) for number in range(8)})

    def shown(*options: str) -> np.ndarray:
        picture = tmp_path / "deep/picture.png"
        assert main(["super-resolution-images", str(picture), str(greedy), str(other), *options]) == 0
        with Image.open(picture) as image:
            return np.asarray(image.convert("RGB"))

    pixels = shown("--names", "greedy,eps = 2")
    # 96 pixels an image, 4 between, 16 for the names.
    assert pixels.shape == (16 + 8 * 96 + 7 * 4, 4 * 96 + 3 * 4, 3)
    centres = pixels[64::100][:, [48, 148, 248, 348], 0]
    assert centres.tolist() == [[255, 10 * number, 10 * number + 5, 100] for number in range(8)]
    pixels = shown("--tiles", "2")
    assert pixels.shape == (256 // 6 + 2 * 256 + 4, 4 * 256 + 3 * 4, 3)
    for row, first in ((0, 0), (1, 4)):
        top = 256 // 6 + row * 260
        patches = pixels[[top + 64, top + 192]][:, [260 + 64, 260 + 192], 0]
        assert patches.tolist() == [[10 * first, 10 * first + 10], [10 * first + 20, 10 * first + 30]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("patches {folder}/new --size 20", "--size 20: give a multiple of 8"),
        ("patches {folder}/new --train 0", "--train 0: give at least 1"),
        ("patches {folder}/new --size 512", "--size 512: the train part"),
        ("patches {folder}/new --tiles 3 --test 32", "--test 32: give a multiple of 3 x 3"),
        ("images {folder}/p.png {folder}/none.out", "none.out: No such file"),
        ("images {folder}/p.png {folder}/text", "not an output of fairseq-generate"),
        ("images {folder}/p.png {folder}/good --names a,b", "2 names for 1 outputs"),
        ("images {folder}/p.png {folder}/good --tiles 2", "--tiles 2: 2 images are too few for such a picture"),
        ("images {folder}/p.png {folder}/small", "not as large as the originals"),
        ("images {folder}/p.png {folder}/odd", "odd: an image of 4 intensities is not square"),
        ("images {folder}/p.png {folder}/good {folder}/few", "few: has no sentence 1"),
    ],
)
def test_bad_input_is_refused(arguments: str, message: str, tmp_path: Path) -> None:
    write_output(tmp_path / "good", {0: plain(1, 16), 1: plain(2, 16)})
    write_output(tmp_path / "few", {0: plain(1, 16)})
    write_output(tmp_path / "small", {0: plain(1)})
    (tmp_path / "text").write_text("1 2 3\n")
    (tmp_path / "odd").write_text("S-0\t1 2 3\nT-0\t1 2 3\nH-0\t-1\t1 2 3 4\n")
    with refused(message):
        main(f"super-resolution-{arguments}".format(folder=tmp_path).split())
    assert not (tmp_path / "p.png").exists() and not (tmp_path / "new").exists()


@pytest.mark.slow
def test_whole_recipe(tmp_path: Path, programs: Path) -> None:
    for part in ("train_scripts", "fairseq_plugins"):
        (tmp_path / part).symlink_to(ROOT / part)
    small = {"LAYERS": "1", "WIDTH": "16", "FFN_WIDTH": "16", "HEADS": "2", "BASE_EPOCHS": "1", "BLOCKWISE_EPOCHS": "1"}
    # More tokens than the 1024 that fairseq takes by default.
    patches = {"SIZE": "24", "TRAIN_PATCHES": "2", "VALID_PATCHES": "1", "TEST_PATCHES": "2", "TILES": "1"}
    patches["BLOCKWISE_HEADS"] = "3"
    first = run_recipe("super_resolution.sh", tmp_path, **small, **patches, **quick(programs))
    assert first.returncode == 0, first.stdout + first.stderr
    results = tmp_path / "results/super-resolution-24"
    with Image.open(results / "images.png") as image:
        assert image.size == (5 * 96 + 4 * 4, 16 + 2 * 96 + 4)
    table = (results / "summary.md").read_text().splitlines()[2:5]
    rows = [[cell.strip() for cell in line.split("|")] for line in table]
    accepted = [float(row[3]) for row in rows]
    assert accepted[0] == 1.0 <= accepted[1] <= accepted[2] <= 3.0
    # The base was frozen.
    assert rows[0][4] == rows[1][4]
    greedy, exact = [
        sorted(line.split("\t")[::2] for line in (results / f"{name}.out").read_text().splitlines() if line[:2] == "H-")
        for name in ("greedy", "exact")
    ]
    assert len(greedy) == 2 and greedy == exact
    assert all(re.fullmatch(r"\d+\.\d\d", row[4]) for row in rows)
    again = run_recipe("super_resolution.sh", tmp_path, **small, **patches, **quick(programs))
    assert "[done]" not in again.stdout and again.stdout.count("[have]") == 8
    refused = run_recipe("super_resolution.sh", tmp_path, SIZE="12")
    assert refused.returncode == 2 and refused.stderr.startswith("error: SIZE=12: give a multiple of 8")
