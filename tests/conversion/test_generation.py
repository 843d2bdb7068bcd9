"""Settings of generation_config.json: outputs are those of `generate` with them, or the converter refuses them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import fairseq_plugins
from fairseq_plugins.conversion import cli
from tests.conversion.support import first_tokens, languages, names, save_model, sources
from tests.errors import refused


def save(name: str, folder: Path, **settings: Any) -> Any:
    """Save a model with these settings of generation; return it as it is read again."""
    model = save_model(name, folder)
    for setting, value in settings.items():
        setattr(model.generation_config, setting, value)
    model.generation_config.save_pretrained(folder)
    return type(model).from_pretrained(folder).eval()


@torch.no_grad()
def generated(model: Any, name: str) -> list[list[int]]:
    """Return the words of `generate` with the model's own settings."""
    eos, pad = model.config.eos_token_id, model.config.pad_token_id
    first, forced = first_tokens(name)
    rows = pad_sequence(
        [torch.tensor([*([] if first is None else [first]), *ids, eos]) for ids in sources()], True, pad
    )
    options = {} if forced is None else {"forced_bos_token_id": forced}
    outputs = model.generate(
        rows, attention_mask=(rows != pad).long(), num_beams=1,
        bad_words_ids=[[pad], *(model.generation_config.bad_words_ids or [])], **options
    )[:, 1:].tolist()  # fmt: skip
    ended = [ids[: ids.index(eos)] if eos in ids else ids for ids in outputs]
    return [[number for number in ids if number != forced] for ids in ended]


def converted(name: str, folder: Path, **options: Any) -> list[list[int]]:
    model = fairseq_plugins.load(folder, decoder="greedy", device="cpu", **languages(name), **options)
    numbers = {token: number for number, token in names(name).items()}
    outputs = model.translate_batch([[names(name)[number] for number in one] for one in sources()], batch_size=16)
    return [[numbers[token] for token in one.tokens] for one in outputs]


HONOURED: list[dict[str, Any]] = [
    {"max_length": 9},
    {"max_length": 9, "forced_eos_token_id": "eos"},
    {"max_new_tokens": 7, "max_length": 30},
    {"max_new_tokens": 7, "forced_eos_token_id": "eos"},
    {"min_length": 12, "max_length": 24},
    {"min_new_tokens": 8, "max_length": 24},
    {"no_repeat_ngram_size": 2, "max_length": 30},
    {"no_repeat_ngram_size": 3, "max_length": 20, "num_beams": 4, "length_penalty": 2.0},
    {"suppress_tokens": [*range(5, 40)], "max_length": 20},
    {"begin_suppress_tokens": [*range(20, 56)], "max_length": 20},
    {"bad_words_ids": [[token] for token in (0, 2, *range(20, 40))], "suppress_tokens": [7, 9], "max_length": 20},
    {"suppress_tokens": ["eos", 8], "max_length": 9, "forced_eos_token_id": None},
]


@pytest.mark.parametrize("settings", HONOURED, ids=lambda settings: " ".join(settings))
@pytest.mark.parametrize("name", ["marian", "nllb", "bart", "bart-free"])
def test_outputs_are_those_of_generate(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    eos = 0 if name == "marian" else 2
    settings = {
        setting: eos
        if value == "eos"
        else [eos if one == "eos" else one for one in value]
        if isinstance(value, list)
        else value
        for setting, value in settings.items()
    }
    model = save(name, tmp_path / "hf", **settings)
    assert cli.main([str(tmp_path / "hf"), str(tmp_path / "out")]) == 0
    expected = generated(model, name)
    assert converted(name, tmp_path / "out") == expected
    assert len({tuple(one) for one in expected}) > 20


REFUSED: dict[str, Any] = {
    "do_sample": True,
    "repetition_penalty": 1.2,
    "encoder_repetition_penalty": 1.2,
    "encoder_no_repeat_ngram_size": 2,
    "no_repeat_ngram_size": 1,
    "bad_words_ids": [[59], [7, 8]],
    "forced_eos_token_id": 7,
    "forced_bos_token_id": 7,
    "exponential_decay_length_penalty": [5, 1.1],
    "sequence_bias": [[[7], 2.0]],
    "guidance_scale": 1.5,
    "forced_decoder_ids": [[1, 7]],
    "penalty_alpha": 0.6,
    "stop_strings": ["w7"],
    "watermarking_config": {"bias": 2.0},
    "a_setting_of_tomorrow": 3,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save_model("marian", folder)
    return folder


@pytest.mark.parametrize("setting", REFUSED)
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_other_settings_are_refused_by_name(
    setting: str, file: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if file == "config.json" and setting in ("watermarking_config", "a_setting_of_tomorrow"):
        pytest.skip("config.json has settings of models, too")
    folder = tmp_path / "hf"
    folder.mkdir()
    for part in saved.iterdir():
        if part.name != "generation_config.json":
            (folder / part.name).symlink_to(part)
    values = json.loads((saved / file).read_text()) if (saved / file).is_file() else {}
    (folder / file).unlink(missing_ok=True)
    (folder / file).write_text(json.dumps({**values, setting: REFUSED[setting], "num_beams": 4}))
    command = [str(folder), str(tmp_path / "out")]
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert f"{file}: {setting} " in error and f"OUT --ignore {setting}\n" in error and not (tmp_path / "out").exists()
    with refused(f"--ignore {setting}"):
        fairseq_plugins.load(folder, device="cpu")
    assert cli.main([*command, "--ignore", setting]) == 0
    assert cli.main([*command, "--ignore", "max_tim"]) == 2


def test_settings_without_effect_are_taken(saved: Path, tmp_path: Path) -> None:
    """Those of OPUS-MT, and values that change nothing."""
    folder = tmp_path / "hf"
    folder.mkdir()
    for part in saved.iterdir():
        if part.name != "generation_config.json":
            (folder / part.name).symlink_to(part)
    settings = {
        "bad_words_ids": [[59]], "num_beams": 6, "max_length": 512, "forced_eos_token_id": 0, "do_sample": False,
        "repetition_penalty": 1.0, "suppress_tokens": [], "guidance_scale": None, "transformers_version": "4.30.0",
        "_from_model_config": True, "renormalize_logits": True,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert cli.main([str(folder), str(tmp_path / "out")]) == 0
    options = json.loads((tmp_path / "out" / "load.json").read_text())["options"]
    assert options == {"min_len": 0, "max_len_b": 510}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_length", "9"),
        ("min_length", -1),
        ("length_penalty", "x"),
        ("suppress_tokens", [7, 60]),
        ("suppress_tokens", 7),
        ("begin_suppress_tokens", ["w7"]),
        ("bad_words_ids", [["w7"]]),
    ],
)
def test_values_of_other_types(
    setting: str, value: Any, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in saved.iterdir():
        (tmp_path / part.name).symlink_to(part)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({setting: value}))
    assert cli.main([str(tmp_path), str(tmp_path / "out")]) == 2
    assert f"generation_config.json: {setting} is {value!r}, not " in capsys.readouterr().err
