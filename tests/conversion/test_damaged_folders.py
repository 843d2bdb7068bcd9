"""Damaged folders of Hugging Face are refused in one line, or converted and loaded.

SPEC_DEC_DAMAGES=300 damages as many copies of each folder.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    assert not (tmp_path / "out").exists()
