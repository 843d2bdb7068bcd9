"""`spec-dec-super-resolution`: its picture by pixels, bad input, and the whole recipe on very small images."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fairseq_plugins.data.image_patches import as_line
from fairseq_plugins.pages.super_resolution import main, psnr, side_by_side
from tests.test_demo_script import ROOT, quick, run_recipe


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
    greedy = write_output(tmp_path / "greedy.out", {1: plain(110, 16), 0: plain(90, 16)})
    other = write_output(tmp_path / "other.out", {0: plain(100, 16), 1: plain(120, 16)})
    picture = tmp_path / "deep/picture.png"
    assert main(["images", "--output", str(picture), "--names", "greedy,eps = 2", str(greedy), str(other)]) == 0
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB"))
    # Columns: input, greedy, approximate, original; 96 pixels an image, 4 between, 16 for the names.
    assert pixels.shape == (16 + 2 * 96 + 4, 4 * 96 + 3 * 4, 3)
    centres = pixels[[64, 164]][:, [48, 148, 248, 348], 0]
    assert centres.tolist() == [[255, 90, 100, 100], [255, 110, 120, 100]]
    assert main(["images", "--output", str(picture), "--images", "1", str(greedy)]) == 0
    with Image.open(picture) as image:
        assert image.size == (3 * 96 + 2 * 4, 16 + 96)


def test_patches_are_joined_to_pictures(tmp_path: Path) -> None:
    outputs = write_output(tmp_path / "greedy.out", {number: plain(10 * number, 16) for number in range(8)})
    picture = tmp_path / "picture.png"
    assert main(["images", "--output", str(picture), "--tiles", "2", str(outputs)]) == 0
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB"))
    # Columns: input, greedy, original, with 256 pixels a picture.
    assert pixels.shape == (256 // 6 + 2 * 256 + 4, 3 * 256 + 2 * 4, 3)
    for row, first in ((0, 0), (1, 4)):
        top = 256 // 6 + row * 260
        shown = pixels[[top + 64, top + 192]][:, [260 + 64, 260 + 192], 0]
        assert shown.tolist() == [[10 * first, 10 * first + 10], [10 * first + 20, 10 * first + 30]]


def test_one_pixel_is_one_square() -> None:
    checkers = (np.indices((8, 8)).sum(0) % 2 * 255).astype(np.uint8)
    png = side_by_side({"input": [np.repeat(checkers[..., None], 3, axis=2)]})
    with Image.open(io.BytesIO(png)) as image:
        shown = np.asarray(image)[16:]
    np.testing.assert_array_equal(shown[..., 0], checkers.repeat(12, axis=0).repeat(12, axis=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("data --out {folder}/new --size 20", "--size 20: give a multiple of 8"),
        ("data --out {folder}/new --train 0", "argument --train: '0' is not a whole number"),
        ("data --out {folder}/new --photographs {folder}/none.jpg", "none.jpg: No such file"),
        ("data --out {folder}/new --size 512", "--size 512: the train part"),
        ("images --output {folder}/p.png {folder}/none.out", "none.out: No such file"),
        ("images --output {folder}/p.png {folder}/text", "not what fairseq-generate prints"),
        ("images --output {folder}/p.png --names a,b {folder}/good", "2 names for 1 outputs"),
        ("images --output {folder}/p.png --images 0 {folder}/good", "argument --images: '0' is not a whole number"),
        ("data --out {folder}/new --tiles 3 --test 32", "--test 32: give a multiple of 3 x 3"),
        ("images --output {folder}/p.png --tiles 2 {folder}/good", "--tiles 2: 2 images make up no such picture"),
        ("images --output {folder}/p.png --tiles 0 {folder}/good", "argument --tiles: '0' is not a whole number"),
        ("images --output {folder}/p.png {folder}/small", "not as large as the originals"),
        ("images --output {folder}/p.png {folder}/odd", "odd: an image of 4 intensities is not square"),
        ("images --output {folder}/p.png {folder}/good {folder}/few", "few: has no sentence 1"),
    ],
)
def test_bad_input_in_one_line(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_output(tmp_path / "good", {0: plain(1, 16), 1: plain(2, 16)})
    write_output(tmp_path / "few", {0: plain(1, 16)})
    write_output(tmp_path / "small", {0: plain(1)})
    (tmp_path / "text").write_text("1 2 3\n")
    (tmp_path / "odd").write_text("S-0\t1 2 3\nT-0\t1 2 3\nH-0\t-1\t1 2 3 4\n")
    assert main(arguments.format(folder=tmp_path).split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("spec-dec-super-resolution: error: ") and message in error
    assert len(error.splitlines()) == 1
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
