"""Patches of photographs as text, for super-resolution (Stern et al. 2018, section 7.2).

An image is the sequence of red, green and blue intensities of its pixels in raster-scan order: every token is a number
from 0 to 255. The photographs are the two in scikit-learn.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fairseq_plugins.commands.files import write_atomically
from fairseq_plugins.data.image_size import LOW_SIZE
from fairseq_plugins.errors import ConfigurationError

# Horizontal ranges of a photograph: test patches never overlap training patches.
SPLITS = {"test": (0.0, 0.45), "valid": (0.45, 0.5), "train": (0.5, 1.0)}
# Factors by which patches are scaled down, drawn for each patch.
_ZOOMS = (1, 2, 3, 4)


def shipped_photographs() -> list[Path]:
    """Return the photographs in scikit-learn: china.jpg and flower.jpg, 640 x 427, CC BY 2.0."""
    folder = resources.files("sklearn.datasets.images")
    return [Path(str(folder / name)) for name in ("china.jpg", "flower.jpg")]


def read_photograph(path: Path) -> Image.Image:
    """Read a photograph in RGB; raise ConfigurationError if it is missing or not an image."""
    try:
        with Image.open(path) as photograph:
            return photograph.convert("RGB")
    except UnidentifiedImageError as error:
        raise ConfigurationError(f"--photographs {path}: is no image; give JPEG or PNG files") from error
    except OSError as error:
        raise ConfigurationError(f"--photographs {path}: {error.strerror or error}; give JPEG or PNG files") from error


def draw_patches(
    photographs: list[Image.Image], split: str, count: int, size: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw patches from one split's part of the photographs.

    Args:
        photographs: in RGB.
        split: a key of `SPLITS`.
        count: number of patches.
        size: pixels along a side of the output.
        generator: random generator.

    Returns:
        high [count, size, size, 3] and low [count, 8, 8, 3], uint8; a low pixel is the mean of its high ones.

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
            raise ConfigurationError(
                f"--size {size}: the {split} part of a photograph has {right - left} x {photograph.height} pixels; "
                "give a smaller size or larger photographs"
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
    """Draw patches that tile pictures: `tiles` x `tiles` neighbours row by row, picture after picture.

    A picture covers as much of its photograph as possible; photographs are used in turn. Otherwise as `draw_patches`.
    """
    if tiles < 1 or count % tiles**2:
        raise ConfigurationError(f"--{split} {count}: give a multiple of {tiles} x {tiles}, the patches of a picture")
    lows: list[np.ndarray] = []
    highs: list[np.ndarray] = []
    begin, end = SPLITS[split]
    for number in range(count // tiles**2):
        photograph = photographs[number % len(photographs)]
        left, right = round(begin * photograph.width), round(end * photograph.width)
        zoom = min(right - left, photograph.height) // (tiles * size)
        if zoom == 0:
            raise ConfigurationError(
                f"--tiles {tiles}: pictures of {tiles * size} pixels, but the {split} part of a photograph has "
                f"{right - left} x {photograph.height}; give a smaller number"
            )
        side = tiles * size * zoom
        x = int(generator.integers(left, right - side + 1))
        y = int(generator.integers(0, photograph.height - side + 1))
        crop = photograph.crop((x, y, x + side, y + side))
        for patches, pixels in ((highs, size), (lows, LOW_SIZE)):
            picture = np.asarray(crop.resize((tiles * pixels, tiles * pixels), Image.Resampling.BOX))
            patches += cut(picture, tiles)
    return np.stack(highs), np.stack(lows)


def cut(picture: np.ndarray, tiles: int) -> list[np.ndarray]:
    """Cut a picture [side, side, 3] into `tiles` x `tiles` patches, row by row."""
    return [patch for row in np.split(picture, tiles) for patch in np.split(row, tiles, axis=1)]


def join(patches: Sequence[np.ndarray], tiles: int) -> list[np.ndarray]:
    """Join patches to pictures of `tiles` x `tiles`; an incomplete last picture is dropped."""
    rows = [np.concatenate(patches[at : at + tiles], axis=1) for at in range(0, len(patches) - tiles + 1, tiles)]
    return [np.concatenate(rows[at : at + tiles]) for at in range(0, len(rows) - tiles + 1, tiles)]


def as_line(image: np.ndarray) -> str:
    """Return the intensities of an image [side, side, 3] in raster-scan order, as text."""
    return " ".join(map(str, image.reshape(-1).tolist()))


def from_line(line: str) -> np.ndarray:
    """Parse a line of intensities into an image [side, side, 3], uint8.

    Raises ConfigurationError for anything but a square image of numbers from 0 to 255.
    """
    words = line.split()
    side = round((len(words) / 3) ** 0.5)
    if not words or 3 * side * side != len(words):
        raise ConfigurationError(f"an image of {len(words)} intensities is not square; give --min-len, --max-len-b")
    if not all(word.isdecimal() and int(word) < 256 for word in words):
        invalid = next(word for word in words if not word.isdecimal() or int(word) > 255)
        raise ConfigurationError(f"{invalid!r} in an image is no intensity from 0 to 255; decode with a high --unkpen")
    return np.array(words, dtype=np.int64).astype(np.uint8).reshape(side, side, 3)


def write_corpus(
    folder: Path, photographs: list[Path], counts: dict[str, int], size: int, seed: int, tiles: int = 1
) -> None:
    """Write patches as parallel text, `SPLIT.low` and `SPLIT.high`, and `dict.txt`, the 256 numbers.

    `counts` are the patches of each split. With more than one of `tiles`, test patches are those of `draw_pictures`.
    """
    images = [read_photograph(path) for path in photographs]
    generator = np.random.default_rng(seed)
    drawn = {}
    for split, count in counts.items():
        if split == "test" and tiles != 1:
            drawn[split] = draw_pictures(images, split, count, size, tiles, generator)
        else:
            drawn[split] = draw_patches(images, split, count, size, generator)
    for split, (high, low) in drawn.items():
        for name, patches in (("low", low), ("high", high)):
            text = "".join(as_line(patch) + "\n" for patch in patches)
            write_atomically(folder / f"{split}.{name}", text, "--out")
    write_atomically(folder / "dict.txt", "".join(f"{value} 1\n" for value in range(256)), "--out")
