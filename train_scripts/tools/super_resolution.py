"""Write image patches as parallel text for super-resolution (Stern et al. 2018, section 7.2), and draw the outputs.

An image is the sequence of red, green and blue intensities of its pixels in raster-scan order. Each token is a number
from 0 to 255.
"""

import io
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from train_scripts.tools.text import refuse

LOW_SIZE = 8  # pixels along a side of the input

# Horizontal ranges of a photograph, so that test patches never overlap training patches.
SPLITS = {"test": (0.0, 0.45), "valid": (0.45, 0.5), "train": (0.5, 1.0)}
# Downscaling factors; each patch draws one.
_ZOOMS = (1, 2, 3, 4)
# Rows of the picture.
_ROWS = 8
# Pixels in it: side of an image, side of an image of several patches, gap between images.
_SIDE, _JOINED_SIDE, _GAP = 96, 256, 4


def photographs() -> list[Image.Image]:
    """Return the photographs in scikit-learn in RGB: china.jpg and flower.jpg, 640 x 427, CC BY 2.0."""
    folder = resources.files("sklearn.datasets.images")
    return [Image.open(str(folder / name)).convert("RGB") for name in ("china.jpg", "flower.jpg")]


def draw_patches(
    photographs: list[Image.Image], split: str, count: int, size: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Cut random patches out of the part of the photographs that belongs to a split.

    Args:
        photographs: in RGB.
        split: a key of `SPLITS`.
        count: number of patches.
        size: pixels along a side of the output.
        generator: random generator.

    Returns:
        high [count, size, size, 3] and low [count, 8, 8, 3], uint8; a low pixel is the mean of its high pixels.

    Raises ConfigurationError if a photograph is too small for a patch.
    """
    high = np.empty((count, size, size, 3), np.uint8)
    low = np.empty((count, LOW_SIZE, LOW_SIZE, 3), np.uint8)
    begin, end = SPLITS[split]
    for number in range(count):
        photograph = photographs[generator.integers(len(photographs))]
        left, right = round(begin * photograph.width), round(end * photograph.width)
        zooms = [zoom for zoom in _ZOOMS if zoom * size <= min(right - left, photograph.height)]
        if not zooms:
            refuse(
                "--size",
                size,
                f"the {split} part of a photograph has {right - left} x {photograph.height} pixels",
                "give a smaller size",
            )
        side = size * int(generator.choice(zooms))
        x = int(generator.integers(left, right - side + 1))
        y = int(generator.integers(0, photograph.height - side + 1))
        patch = photograph.crop((x, y, x + side, y + side)).resize((size, size), Image.Resampling.BOX)
        high[number] = np.asarray(patch)
        low[number] = np.asarray(patch.resize((LOW_SIZE, LOW_SIZE), Image.Resampling.BOX))
    return high, low


def draw_pictures(
    photographs: list[Image.Image], split: str, count: int, size: int, tiles: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Cut pictures of `tiles` x `tiles` adjacent patches; return the patches row by row, picture after picture.

    A picture covers as much of its photograph as possible; photographs are used in turn. Otherwise as `draw_patches`.
    """
    if tiles < 1 or count % tiles**2:
        refuse(f"--{split}", count, f"give a multiple of {tiles} x {tiles}, the patches of a picture")
    lows: list[np.ndarray] = []
    highs: list[np.ndarray] = []
    begin, end = SPLITS[split]
    for number in range(count // tiles**2):
        photograph = photographs[number % len(photographs)]
        left, right = round(begin * photograph.width), round(end * photograph.width)
        zoom = min(right - left, photograph.height) // (tiles * size)
        if zoom == 0:
            refuse(
                "--tiles",
                tiles,
                f"pictures of {tiles * size} pixels, but the {split} part of a photograph has {right - left} x "
                f"{photograph.height}",
                "give a smaller number",
            )
        side = tiles * size * zoom
        x = int(generator.integers(left, right - side + 1))
        y = int(generator.integers(0, photograph.height - side + 1))
        crop = photograph.crop((x, y, x + side, y + side))
        for patches, pixels in ((highs, size), (lows, LOW_SIZE)):
            picture = np.asarray(crop.resize((tiles * pixels, tiles * pixels), Image.Resampling.BOX))
            patches += [patch for row in np.split(picture, tiles) for patch in np.split(row, tiles, axis=1)]
    return np.stack(highs), np.stack(lows)


def join(patches: Sequence[np.ndarray], tiles: int) -> list[np.ndarray]:
    """Join patches into pictures of `tiles` x `tiles`; drop an incomplete last picture."""
    rows = [np.concatenate(patches[at : at + tiles], axis=1) for at in range(0, len(patches) - tiles + 1, tiles)]
    return [np.concatenate(rows[at : at + tiles]) for at in range(0, len(rows) - tiles + 1, tiles)]


def as_line(image: np.ndarray) -> str:
    """Return the intensities of an image [side, side, 3] in raster-scan order, as text."""
    return " ".join(map(str, image.reshape(-1).tolist()))


def from_line(line: str, file: str) -> np.ndarray:
    """Parse a line of intensities into an image [side, side, 3], uint8; errors name `file`.

    Raises ConfigurationError for anything but a square image of numbers from 0 to 255.
    """
    words = line.split()
    side = round((len(words) / 3) ** 0.5)
    if not words or 3 * side * side != len(words):
        refuse(None, file, f"an image of {len(words)} intensities is not square", "give {--min-len}, {--max-len-b}")
    invalid = [word for word in words if not word.isdecimal() or int(word) > 255]
    if invalid:
        refuse(None, file, f"{invalid[0]!r} is not an intensity from 0 to 255", "decode with a high {--unkpen}")
    return np.array(words, dtype=np.int64).astype(np.uint8).reshape(side, side, 3)


def write_patches(
    folder: Path,
    *,
    size: int = 32,
    train: int = 4000,
    valid: int = 16,
    test: int = 32,
    tiles: int = 1,
    seed: int = 1,
) -> str:
    """Cut patches out of the photographs in scikit-learn and write them as parallel text.

    Args:
        folder: folder for {train,valid,test}.{low,high} and for dict.txt, which has the 256 numbers.
        size: pixels along a side of the output (default: 32).
        train, valid, test: number of patches of each split (default: 4000, 16 and 32).
        tiles: N, if the test patches form pictures of N x N patches (default: 1).
        seed: random seed.

    Raises ConfigurationError for sizes and counts that do not fit.
    """
    if size < LOW_SIZE or size % LOW_SIZE:
        refuse("--size", size, f"give a multiple of {LOW_SIZE}, the pixels of the input")
    for name, count in (("train", train), ("valid", valid), ("test", test)):
        if count < 1:
            refuse(f"--{name}", count, "give at least 1 patch")
    images, generator = photographs(), np.random.default_rng(seed)
    drawn = {
        "train": draw_patches(images, "train", train, size, generator),
        "valid": draw_patches(images, "valid", valid, size, generator),
        "test": draw_patches(images, "test", test, size, generator)
        if tiles == 1
        else draw_pictures(images, "test", test, size, tiles, generator),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for split, (high, low) in drawn.items():
        for name, patches in (("low", low), ("high", high)):
            (folder / f"{split}.{name}").write_text("".join(f"{as_line(patch)}\n" for patch in patches))
    (folder / "dict.txt").write_text("".join(f"{value} 1\n" for value in range(256)))
    return f"{folder}: {train} patches for training, {valid} for validation, {test} for the test"


def psnr(image: np.ndarray, original: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB of images, uint8 of the same shape; infinite for equal ones."""
    error = np.mean((image.astype(float) - original.astype(float)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def side_by_side(columns: Mapping[str, Sequence[np.ndarray]], side: int = _SIDE) -> bytes:
    """Return a PNG with a column for each name and a row for each input.

    `columns` maps names to equal numbers of images [n, n, 3], uint8. `side` is the size of an image in the PNG, in
    pixels.
    """
    rows = len(next(iter(columns.values())))
    step, title = side + _GAP, side // 6
    picture = Image.new("RGB", (len(columns) * step - _GAP, title + rows * step - _GAP), "white")
    text = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=side // 9)
    for column, (name, images) in enumerate(columns.items()):
        text.text((column * step + 2, title // 2), name, fill="black", font=font, anchor="lm")
        for row, image in enumerate(images):
            # Nearest neighbour draws a pixel of the model as a square.
            shown = Image.fromarray(image).resize((side, side), Image.Resampling.NEAREST)
            picture.paste(shown, (column * step, title + row * step))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def draw_outputs(picture: Path, outputs: Sequence[Path], *, names: str = "", tiles: int = 1) -> str:
    """Draw input, outputs and original side by side as PNG, and measure the PSNR of all outputs.

    Args:
        picture: the PNG file.
        outputs: outputs of fairseq-generate, one file per column.
        names: titles of the columns, separated by commas (default: the names of the files).
        tiles: N, to join N x N patches, as for super-resolution-patches (default: 1).

    Raises ConfigurationError for files that do not fit each other.
    """
    from fairseq_plugins.metrics.texts import pick, read_text

    titles = names.split(",") if names else [file.stem for file in outputs]
    if len(titles) != len(outputs):
        refuse("--names", names, f"{len(titles)} names for {len(outputs)} outputs")
    texts = [read_text(str(file), "OUTPUT") for file in outputs]
    first = texts[0]
    if not first.generated or not first.sources:
        refuse("OUTPUT", first.file, "not an output of fairseq-generate", "give one")
    numbers = sorted(first.hypotheses)
    parts = [(title, text, text.hypotheses) for title, text in zip(titles, texts, strict=True)]
    parts = [("input", first, first.sources), *parts, ("original", first, first.references)]
    columns = {
        name: [from_line(line, text.file) for line in pick(text, lines, numbers, "OUTPUT")]
        for name, text, lines in parts
    }
    originals = columns["original"]
    lines = []
    for title, text in zip(titles, texts, strict=True):
        if columns[title][0].shape != originals[0].shape:
            refuse("OUTPUT", text.file, "its images are not as large as the originals")
        ratio = psnr(np.stack(columns[title]), np.stack(originals))
        lines.append(f"{title}: PSNR {ratio:.2f} dB over {len(originals)} images")
    if tiles**2 > len(originals):
        refuse("--tiles", tiles, f"{len(originals)} images are too few for such a picture", "give a smaller number")
    shown = {name: join(column, tiles)[:_ROWS] for name, column in columns.items()}
    content = side_by_side(shown, _SIDE if tiles == 1 else _JOINED_SIDE)
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_bytes(content)
    return "\n".join([*lines, f"{picture}: {', '.join(columns)}"])
