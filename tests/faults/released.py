"""The released models of UA-GEC and data for them: faults are tested on users' files, without training."""

import math
import os
import shlex
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sentencepiece
import torch

from tests.support import REPOSITORY, run_in_process

MODELS = REPOSITORY / "checkpoints"

TEXT = ("Я іду до дому .", "Він прийшов вчора у вечері .", "Ми хочемо щоб ви знали про це .", "Це є дуже гарна книга .")


@dataclass(frozen=True)
class Released:
    """Where things are; the names are those that tables of command lines use.

    Attributes:
        data: binarised data, its test set `TEXT` several times over.
        text: the same as subwords, a line for a sentence, and `lines` of them.
        invalid: a file whose second line is not UTF-8.
        verifier, drafter: checkpoints of UA-GEC.
        other_drafter: one made for another verifier.
        evil: a checkpoint that would run a program.
        garbage: a file that is no checkpoint.
        folder: an empty folder.
        file: an empty file.
        full: a device that is always full.
        bad: a folder of checkpoints that lack something, and of data that was cut off or changed.
    """

    data: Path
    text: Path
    lines: int
    invalid: Path
    verifier: Path
    drafter: Path
    other_drafter: Path
    evil: Path
    garbage: Path
    folder: Path
    file: Path
    full: Path
    bad: Path


class _RunsAProgram:
    def __reduce__(self) -> tuple:
        return os.system, ("echo this must never run",)


def full_device(folder: Path) -> Path:
    """Make a device like /dev/full, which a faulty run could destroy."""
    device = folder / "full"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        device.open("wb").close()
    except PermissionError:
        device.unlink(missing_ok=True)
        device.symlink_to("/dev/full")
    return device


def spoiled(folder: Path, models: Path, data: Path) -> Path:
    """Make unusable checkpoints and copies of `data`."""
    folder.mkdir()
    for name in ("verifier", "drafter"):
        state = torch.load(models / f"{name}.pt", weights_only=False)
        for key in ("model", "cfg"):
            torch.save({other: state[other] for other in state if other != key}, folder / f"{name}.no_{key}.pt")
    state = torch.load(models / "drafter.pt", weights_only=False)
    state["cfg"]["model"].positions_every_layer = True
    torch.save(state, folder / "drafter.positions.pt")
    torch.save([1, 2], folder / "list.pt")
    state, bias = torch.load(models / "verifier.pt", weights_only=False), "decoder.layers.0.fc2.bias"
    before = state["model"]["decoder.layers.0.fc1.bias"].clone()
    state["model"]["decoder.layers.0.fc1.bias"][3] = math.nan
    torch.save(state, folder / "verifier.nan.pt")
    state["model"]["decoder.layers.0.fc1.bias"] = before
    state["model"][bias] = torch.full_like(state["model"][bias].float(), 3e38)
    torch.save(state, folder / "verifier.overflow.pt")
    state = torch.load(models / "verifier.pt", weights_only=False)
    state["cfg"]["model"].adaptive_softmax_cutoff = "[]"
    torch.save(state, folder / "verifier.setting.pt")
    (folder / "long.txt").write_text("\u25b1A\n" + "a " * 3000 + "\n", encoding="utf-8")
    (folder / "constraint.txt").write_text("\u25b1A\t\t\u25b1A\n", encoding="utf-8")
    shutil.copytree(models, folder / "model", ignore=shutil.ignore_patterns("SHA256SUMS"))
    subwords = folder / "model" / "subwords.model"
    subwords.write_bytes(subwords.read_bytes()[:1000])
    (folder / "hf").mkdir()
    for name in ("config.json", "model.safetensors", "pytorch_model.bin"):
        (folder / "hf" / name).touch()
    content = {file.name: file.read_bytes() for file in data.iterdir() if file.name != "preprocess.log"}
    changes: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
        "dict.latin1": ("dict.src.txt", lambda text: "ä 1\n".encode("latin-1") + text),
        "dict.no_counts": ("dict.src.txt", lambda text: b"word\n" + text),
        "dict.twice": ("dict.src.txt", lambda text: text + text),
        "dict.short": ("dict.src.txt", lambda text: b"".join(text.splitlines(keepends=True)[:-5])),
        "idx.cut": ("test.src-tgt.src.idx", lambda index: index[:40]),
        "idx.empty": ("test.src-tgt.src.idx", lambda index: b""),
        "bin.cut": ("test.src-tgt.src.bin", lambda tokens: tokens[:40]),
        "bin.foreign": ("test.src-tgt.src.bin", lambda tokens: b"\x7f" * len(tokens)),
    }
    for name, (changed, change) in changes.items():
        (folder / name).mkdir()
        for file, before in content.items():
            (folder / name / file).write_bytes(change(before) if file == changed else before)
    return folder


def prepare(folder: Path, copies: int = 1) -> Released:
    """Make the data in an empty folder, with the sentences repeated."""
    models = MODELS / "ua-gec"
    subwords = sentencepiece.SentencePieceProcessor(model_file=str(models / "subwords.model"))
    lines = [" ".join(subwords.encode(sentence, out_type=str)) for sentence in TEXT] * copies
    for side in ("src", "tgt"):
        (folder / f"test.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    data = folder / "data"
    run_in_process(
        "preprocess",
        f"--source-lang src --target-lang tgt --testpref {folder}/test --destdir {data} --workers 1 "
        f"--srcdict {models}/dict.src.txt --tgtdict {models}/dict.tgt.txt",
    )
    text = [line.encode() for line in lines[:3]]
    (folder / "invalid").write_bytes(b"\n".join([text[0], text[1] + b" \xff\xfe", text[2], b""]))
    torch.save({"model": _RunsAProgram()}, folder / "evil.pt")
    (folder / "garbage.pt").write_text("not a checkpoint")
    (folder / "file").touch()
    (folder / "empty").mkdir()
    return Released(
        data=data,
        text=folder / "test.src",
        lines=len(lines),
        invalid=folder / "invalid",
        verifier=models / "verifier.pt",
        drafter=models / "drafter.pt",
        other_drafter=MODELS / "multi30k.en-de" / "drafter.pt",
        evil=folder / "evil.pt",
        garbage=folder / "garbage.pt",
        folder=folder / "empty",
        file=folder / "file",
        full=full_device(folder),
        bad=spoiled(folder / "bad", models, data),
    )


def options(released: Released, *more: str) -> str:
    """Return the common options of fairseq-generate and fairseq-interactive, and further ones."""
    return shlex.join([str(released.data), "--task", "spec_dec", "--path", str(released.verifier), "--cpu", *more])
