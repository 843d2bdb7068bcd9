"""Image super-resolution by blockwise decoding (Stern et al. 2018, section 7.2): its data, and its pictures.

    spec-dec-super-resolution data --out FOLDER --size 32          patches of photographs, as parallel text
    spec-dec-super-resolution images --output picture.png greedy.out approximate.out

Between them are fairseq-preprocess, fairseq-train and fairseq-generate: train_scripts/super_resolution.sh.
"""

import argparse
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fairseq_plugins.commands.cli import CommandParser, run_command
from fairseq_plugins.commands.files import write_atomically
from fairseq_plugins.commands.parsing import positive
from fairseq_plugins.data.image_patches import from_line, join, shipped_photographs, write_corpus
from fairseq_plugins.data.image_size import LOW_SIZE
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.metrics.texts import pick, read_text

# Pixels in the picture: side of an image, side of an image of several patches, gap between images.
_SIDE, _JOINED_SIDE, _GAP = 96, 256, 4


def psnr(image: np.ndarray, original: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in dB of images, uint8 of the same shape; infinite for equal ones."""
    error = np.mean((image.astype(float) - original.astype(float)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def side_by_side(columns: Mapping[str, Sequence[np.ndarray]], side: int = _SIDE) -> bytes:
    """Return a PNG with a named column per kind of image and a row per input.

    `columns` is name -> images [n, n, 3], uint8, equally many; `side` is the size of an image in the picture in pixels.
    """
    rows = len(next(iter(columns.values())))
    step, title = side + _GAP, side // 6
    picture = Image.new("RGB", (len(columns) * step - _GAP, title + rows * step - _GAP), "white")
    text = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=side // 9)
    for column, (name, images) in enumerate(columns.items()):
        text.text((column * step + 2, title // 2), name, fill="black", font=font, anchor="lm")
        for row, image in enumerate(images):
            # One pixel of the model is one square of the picture.
            shown = Image.fromarray(image).resize((side, side), Image.Resampling.NEAREST)
            picture.paste(shown, (column * step, title + row * step))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def read_images(lines: Sequence[str], file: str) -> list[np.ndarray]:
    """Parse lines of intensities into images [side, side, 3]; errors name `file`."""
    try:
        return [from_line(line) for line in lines]
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def _write_data(args: argparse.Namespace) -> None:
    if args.size < LOW_SIZE or args.size % LOW_SIZE:
        raise ConfigurationError(f"--size {args.size}: give a multiple of {LOW_SIZE}, the pixels of the input")
    counts = {"train": args.train, "valid": args.valid, "test": args.test}
    write_corpus(Path(args.out), args.photographs or shipped_photographs(), counts, args.size, args.seed, args.tiles)
    print(f"{args.out}: {args.train} patches to train on, {args.valid} to validate and {args.test} to test")


def _write_images(args: argparse.Namespace) -> None:
    names = args.names.split(",") if args.names else [Path(file).stem for file in args.outputs]
    if len(names) != len(args.outputs):
        raise ConfigurationError(f"--names {args.names}: {len(names)} names for {len(args.outputs)} outputs")
    outputs = [read_text(file, "OUTPUT") for file in args.outputs]
    first = outputs[0]
    if not first.generated or not first.sources:
        raise ConfigurationError(f"OUTPUT {first.file}: not what fairseq-generate prints; give its output")
    numbers = sorted(first.hypotheses)
    originals = read_images(pick(first, first.references, numbers, "OUTPUT"), first.file)
    columns = {"input": read_images(pick(first, first.sources, numbers, "OUTPUT"), first.file)}
    for name, text in zip(names, outputs, strict=True):
        images = read_images(pick(text, text.hypotheses, numbers, "OUTPUT"), text.file)
        if images[0].shape != originals[0].shape:
            raise ConfigurationError(f"OUTPUT {text.file}: its images are not as large as the originals")
        columns[name] = images
        print(f"{name}: PSNR {psnr(np.stack(images), np.stack(originals)):.2f} dB over {len(images)} images")
    columns["original"] = originals
    if args.tiles**2 > len(originals):
        raise ConfigurationError(f"--tiles {args.tiles}: {len(originals)} images make up no such picture; give fewer")
    shown = {name: join(images, args.tiles)[: args.images] for name, images in columns.items()}
    side = _SIDE if args.tiles == 1 else _JOINED_SIDE
    write_atomically(Path(args.output), side_by_side(shown, side), "--output")
    print(f"{args.output}: {', '.join(columns)}")


def get_parser() -> CommandParser:
    """Return the parser of `spec-dec-super-resolution`."""
    example = "spec-dec-super-resolution data --out photographs"
    parser = CommandParser("spec-dec-super-resolution", (__doc__ or "").split("\n")[0], example)
    commands = parser.add_subparsers(required=True, metavar="data | images")
    what = "cut patches out of photographs, write them as parallel text"
    data = commands.add_parser("data", help=what, description=what.capitalize() + ".", example=example)
    data.set_defaults(act=_write_data)
    add = data.add_argument
    add("--out", required=True, metavar="FOLDER", help="where: train.low, train.high and so on, dict.txt")
    add("--size", type=int, default=32, metavar="N", help="pixels along a side of the output (default: 32)")
    add("--photographs", nargs="+", type=Path, metavar="FILE", help="default: the two that scikit-learn ships")
    add("--train", type=positive, default=4000, metavar="N", help="patches to train on (default: 4000)")
    add("--valid", type=positive, default=16, metavar="N", help="(default: 16)")
    add("--test", type=positive, default=32, metavar="N", help="(default: 32)")
    add("--seed", type=int, default=1, help="another seed draws other patches")
    tiles = "the test patches make up pictures of N x N (default: 1)"
    add("--tiles", type=positive, default=1, metavar="N", help=tiles)
    what = "input, outputs and original side by side as PNG; PSNR of all"
    example = "spec-dec-super-resolution images greedy.out gad.out --output pictures.png"
    images = commands.add_parser("images", help=what, description=what.capitalize() + ".", example=example)
    images.set_defaults(act=_write_images)
    add = images.add_argument
    add("outputs", nargs="+", metavar="OUTPUT", help="what fairseq-generate printed, one file a column")
    add("--output", required=True, metavar="FILE.png", help="the picture")
    add("--names", metavar="NAME,NAME", help="of the columns (default: the files' names)")
    add("--images", type=positive, default=8, metavar="N", help="rows of the picture (default: 8)")
    tiles = "that of the data: N x N patches are joined (default: 1)"
    add("--tiles", type=positive, default=1, metavar="N", help=tiles)
    return parser


def run(argv: Sequence[str]) -> None:
    """Parse and run the subcommand."""
    args = get_parser().parse_args(argv)
    args.act(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-super-resolution`."""
    return run_command("spec-dec-super-resolution", run, argv)


if __name__ == "__main__":
    sys.exit(main())
