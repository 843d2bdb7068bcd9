"""Damaged folders of Hugging Face are refused in one line, or converted and loaded.

SPEC_DEC_DAMAGES=300 damages as many copies of each folder.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fairseq_plugins
from fairseq_plugins.conversion.convert import convert
from fairseq_plugins.errors import ConfigurationError
from tests.conversion.support import save_model as save_words
from tests.conversion.test_text import LANGUAGES, save_model, save_tokenizer
from tests.errors import refused

# In place of a value of a JSON file, as text.
VALUES = ("null", "-1", "0", "1.5", "3", "1e9", "1e999", "999999999999", "NaN", "true", '""', '"x"', '"\\ud800"', "[]",
          "{}", "[1]", '{"a": 1}', "[" * 5000 + "]" * 5000)  # fmt: skip
FOLDERS = ("marian", "nllb", "bart")
DAMAGES = int(os.environ.get("SPEC_DEC_DAMAGES", "8"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in FOLDERS:
        made[name] = tmp_path_factory.mktemp(name)
        save_model(name, made[name], save_tokenizer(name, made[name]))
    return made


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values inside a JSON value; of long lists only the first."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for number, (key, child) in enumerate(children):
        if number < 60:
            yield (*path, key)
            yield from places(child, (*path, key))


def damage(folder: Path, seed: int) -> str:
    """Change one value, remove one, cut or flip one file; return what was done."""
    draw = random.Random(seed)
    file = draw.choice(sorted(path for path in folder.iterdir() if path.name != "trained.model"))
    content = file.read_bytes()
    if file.suffix != ".json" or draw.random() < 0.2:
        place = draw.randrange(len(content))
        cut = draw.random() < 0.5
        flipped = content[:place] + bytes([content[place] ^ draw.randrange(1, 256)]) + content[place + 1 :]
        file.write_bytes(content[:place] if cut else flipped)
        return f"{file.name} {'cut' if cut else 'flipped'} at {place}"
    value = json.loads(content)
    path = draw.choice([*places(value)])
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if draw.random() < 0.2:
        del holder[path[-1]]
        file.write_text(json.dumps(value))
        return f"{file.name} without {path}"
    holder[path[-1]] = "MARK"
    new = draw.choice(VALUES)
    file.write_text(json.dumps(value).replace('"MARK"', new))
    return f"{file.name} with {new[:20]} at {path}"


@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_folders(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    outcomes = []
    for seed in range(DAMAGES):
        copy, out = tmp_path / f"{seed}", tmp_path / f"{seed}.out"
        shutil.copytree(folders[name], copy)
        done = damage(copy, seed)
        try:
            convert(copy, out)
            fairseq_plugins.load(out, device="cpu", decoder="greedy", **LANGUAGES.get(name, {}))
            outcomes.append("loaded")
        except ConfigurationError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000, done
            outcomes.append("refused")
            if out.exists():
                # Converted, so only the languages of the arguments can be missing.
                assert "_lang" in str(error), (done, str(error))
        except Exception as error:
            raise AssertionError(done) from error
        shutil.rmtree(copy)
    assert set(outcomes) == {"loaded", "refused"}


def with_tensors(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    file = folder / "model.safetensors"
    save_file({name: change(value) for name, value in load_file(file).items()}, file)


def with_names(folder: Path, old: str, new: str) -> None:
    file = folder / "model.safetensors"
    save_file({name.replace(old, new): value for name, value in load_file(file).items()}, file)


def with_json(folder: Path, file: str, change: Callable[[Any], Any]) -> None:
    value = json.loads((folder / file).read_text())
    change(value)
    (folder / file).write_text(json.dumps(value))


def with_index(folder: Path, shard: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))


def with_pickle(folder: Path, value: Any) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(value, folder / "pytorch_model.bin")


# What is done to a folder -> the error, which names the file.
CRAFTED: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "pickle": ("marian", lambda to: with_pickle(to, {"weight": print}),
               "pytorch_model.bin: truncated, or has more than weights, which could run any program"),
    "pickle of settings": ("marian", lambda to: with_pickle(to, {"weight": 1}), "has more than weights"),
    "pickle of a list": ("marian", lambda to: with_pickle(to, [1]), "has more than weights"),
    "integers": ("marian", lambda to: with_tensors(to, torch.Tensor.int), "values of torch.int32 in place of real"),
    "NaN": ("marian", lambda to: with_tensors(to, lambda value: value * torch.nan), "NaN in place of real numbers"),
    "overflow": ("nllb", lambda to: with_tensors(to, lambda value: (value * 1e30).half()), "infinity in place of real"),
    "float8": ("nllb", lambda to: with_tensors(to, lambda value: value.to(torch.float8_e4m3fn)),
               "values of torch.float8_e4m3fn in place of real numbers; .* save it without quantization"),
    "adapter": ("nllb", lambda to: (to / "adapter_config.json").write_text("{}"),
                "adapter_config.json: is of an adapter .PEFT., which the output would lack; merge it into its model"),
    "names": ("marian", lambda to: with_names(to, "0.fc2.bias", "0.fc2.b"), 'Missing key.*"encoder.layers.0.fc2.bias'),
    "names of positions": ("bart", lambda to: with_names(to, "positions.weight", "positions.bias"), "unknown tensor"),
    "width": ("marian", lambda to: with_json(to, "config.json", lambda v: v.update(d_model=2**16)),
              "config.json: d_model is 65536, and 32 in the weights"),
    "layers": ("marian", lambda to: with_json(to, "config.json", lambda v: v.update(encoder_layers=999)),
               "config.json: encoder_layers is 999, and 2 in"),
    "lengths": ("marian", lambda to: with_json(to, "generation_config.json",
                                               lambda v: v.update(min_length=9, max_length=5)),
                "generation_config.json: its shortest output has 8 tokens, its longest 3"),
    "length beyond the positions": ("nllb", lambda to: with_json(to, "generation_config.json",
                                                                 lambda v: v.update(min_length=129, max_length=150)),
                                    "generation_config.json: its shortest output has 128 tokens, its longest 127"),
    "length beyond the default": ("marian", lambda to: [
        with_json(to, "config.json", lambda v: v.update(max_position_embeddings=512)),
        with_json(to, "generation_config.json", lambda v: v.update(min_new_tokens=201, max_length=None)),
    ], "generation_config.json: its shortest output has 201 tokens, its longest 200"),
    "shard outside": ("marian", lambda to: with_index(to, "../outside"), "outside: no such file"),
    "shard without end": ("marian", lambda to: with_index(to, "x" * 500), "x: no such file"),
    "control characters": ("marian", lambda to: with_index(to, "\x1b[31m"), r"\\x1b\[31m: no such file"),
    "empty subwords": ("marian", lambda to: (to / "source.spm").write_bytes(b""), "source.spm: not a model"),
    "merges": ("bart", lambda to: (to / "merges.txt").write_text("a secret\n"), "merges.txt: its merge 'a secret'"),
    "bytes": ("bart", lambda to: with_json(to, "vocab.json", lambda v: v.pop("ÿ")),
              "subwords of bytes lack 'ÿ'.*trained without all bytes"),
    "merges in JSON": ("nllb", lambda to: [(to / "sentencepiece.bpe.model").unlink(), with_json(
        to, "tokenizer.json", lambda v: v["model"]["merges"].append("a"))], "tokenizer.json: its merge 'a '"),
}  # fmt: skip


@pytest.mark.parametrize("case", CRAFTED)
def test_crafted_folders(case: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Refused before anything is written, with the file that is wrong."""
    name, craft, error = CRAFTED[case]
    shutil.copytree(folders[name], tmp_path / "hf")
    craft(tmp_path / "hf")
    with refused(f"^(?!.*out.partial).*{tmp_path}/hf.*{error}"):
        convert(tmp_path / "hf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_load_refuses_an_adapter(tmp_path: Path) -> None:
    """Whose folder has no config.json."""
    (tmp_path / "adapter_config.json").write_text("{}")
    with refused("adapter_config.json: is of an adapter"):
        fairseq_plugins.load(tmp_path, device="cpu")


READ = ("config.json", "generation_config.json", "model.safetensors", "source.spm", "tokenizer_config.json",
        "vocab.json", "tokenizer.json", "added_tokens.json", "special_tokens_map.json",
        "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")  # fmt: skip


@pytest.mark.parametrize("file", READ)
def test_what_is_no_file_is_refused(file: str, folders: dict[str, Path], tmp_path: Path) -> None:
    """Without it the model would be another. A pipe would never end."""
    folder = tmp_path / "hf"
    shutil.copytree(folders["marian"], folder)
    (folder / file).unlink(missing_ok=True)
    if file.endswith((".index.json", ".bin")):
        (folder / "model.safetensors").unlink()  # which is read first
    os.mkfifo(folder / file)
    with refused(f"hf/{file}: is not a file"):
        convert(folder, tmp_path / "out")
    (folder / file).unlink()
    (folder / file).symlink_to("nowhere")
    with refused(f"hf/{file}: leads to no file"):
        convert(folder, tmp_path / "out")


def test_files_of_other_models(folders: dict[str, Path], tmp_path: Path) -> None:
    save_words("marian", tmp_path / "marian")
    shutil.copy(folders["marian"] / "source.spm", tmp_path / "marian")
    save_words("nllb", tmp_path / "nllb")
    names = (tmp_path / "nllb" / "vocab.json").read_text()
    (tmp_path / "nllb" / "vocab.json").write_text(names.replace("_Latn", ""))
    with refused(r"\d+ of the \d+ pieces .* are not in its vocabulary"):
        convert(tmp_path / "marian", tmp_path / "out")
    with refused("has no language tokens .* save its tokenizer"):
        convert(tmp_path / "nllb", tmp_path / "out")
    shutil.copytree(folders["marian"], tmp_path / "target")
    shutil.copy(folders["nllb"] / "sentencepiece.bpe.model", tmp_path / "target" / "target.spm")
    with refused(r"\d+ of the \d+ pieces of its sentencepiece model of the target are not in its vocabulary"):
        convert(tmp_path / "target", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bytes_and_ids_of_another_vocabulary(folders: dict[str, Path], tmp_path: Path) -> None:
    """Some text would have no ids, or ids no text."""
    out = tmp_path / "out"
    convert(folders["bart"], out)
    (out / "SHA256SUMS").unlink()
    ids = json.loads((out / "encoder.json").read_text())
    for wrong, error in (
        ({piece: number for piece, number in ids.items() if piece != "â"}, "encoder.json has no 'â'"),
        ({piece: str(number) for piece, number in ids.items()}, "encoder.json has no id 5 of the dictionary"),
    ):
        (out / "encoder.json").write_text(json.dumps(wrong))
        with refused(f"--subwords {out}: cannot be read .{error}"):
            fairseq_plugins.load(out, device="cpu")
