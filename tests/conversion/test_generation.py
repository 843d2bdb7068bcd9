"""Settings of generation_config.json: outputs are those of `generate` with them, or the converter refuses them."""

import json
from pathlib import Path
from typing import Any

import pytest

import fairseq_plugins
from fairseq_plugins.conversion import cli
from tests.conversion.support import converted, generated, save_model
from tests.errors import refused


def save(name: str, folder: Path, **settings: Any) -> Any:
    """Save a model with these settings of generation; return it as it is read again."""
    model = save_model(name, folder)
    for setting, value in settings.items():
        setattr(model.generation_config, setting, value)
    model.generation_config.save_pretrained(folder)
    return type(model).from_pretrained(folder).eval()


HONOURED: list[dict[str, Any]] = [
    {"max_length": 9},
    {"max_length": 9, "forced_eos_token_id": "eos"},
    {"max_new_tokens": 7, "max_length": 30},
    {"max_new_tokens": 7, "forced_eos_token_id": "eos"},
    {"min_length": 12, "max_length": 24},
    {"min_new_tokens": 8, "max_length": 24},
    {"min_new_tokens": 1, "min_length": 12, "max_length": 24},
    {"no_repeat_ngram_size": 2, "max_length": 30},
    {"no_repeat_ngram_size": 3, "max_length": 20, "num_beams": 4, "length_penalty": 2.0},
    {"suppress_tokens": [*range(5, 40)], "max_length": 20},
    {"begin_suppress_tokens": [*range(20, 56)], "max_length": 20},
    {"bad_words_ids": [[token] for token in (0, 2, *range(20, 40))], "suppress_tokens": [7, 9], "max_length": 20},
    {"suppress_tokens": ["eos", 8], "max_length": 9, "forced_eos_token_id": None},
]


@pytest.mark.parametrize("settings", HONOURED, ids=lambda settings: " ".join(settings))
@pytest.mark.parametrize("name", ["marian", "nllb", "bart-free"])
def test_outputs_are_those_of_generate(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    eos = "0" if name == "marian" else "2"
    model = save(name, tmp_path / "hf", **json.loads(json.dumps(settings).replace('"eos"', eos)))
    assert cli.main([str(tmp_path / "hf"), str(tmp_path / "out")]) == 0
    expected = generated(model, name)
    assert converted(name, tmp_path / "out") == expected
    assert len({tuple(one) for one in expected}) > 7


def test_config_json_does_not_count_beside_it(tmp_path: Path) -> None:
    model = save_model("bart-free", tmp_path / "hf")
    config = json.loads((tmp_path / "hf/config.json").read_text())
    settings = {"forced_bos_token_id": 0, "max_length": 5, "suppress_tokens": [*range(5, 40)]}
    (tmp_path / "hf/config.json").write_text(json.dumps({**config, **settings}))
    assert cli.main([str(tmp_path / "hf"), str(tmp_path / "out")]) == 0
    model = type(model).from_pretrained(tmp_path / "hf").eval()
    expected = generated(model, "bart-free", max_new_tokens=20, forced_eos_token_id=None)
    assert converted("bart-free", tmp_path / "out", max_len_b=20) == expected


REFUSED: dict[str, Any] = {
    "do_sample": True,
    "repetition_penalty": 1.2,
    "encoder_repetition_penalty": 1.2,
    "encoder_no_repeat_ngram_size": 2,
    "no_repeat_ngram_size": 1,
    "bad_words_ids": [[59], [7, 8]],
    "forced_eos_token_id": 7,
    "forced_bos_token_id": 7,
    "eos_token_id": [0, 7],
    "decoder_start_token_id": 7,
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


def with_settings(saved: Path, folder: Path, file: str, settings: dict[str, Any]) -> Path:
    """Return a folder with links to the saved files and these settings in one of them."""
    folder.mkdir()
    for part in saved.iterdir():
        if part.name not in (file, "generation_config.json"):
            (folder / part.name).symlink_to(part)
    values = json.loads((saved / file).read_text()) if file == "config.json" else {}
    (folder / file).write_text(json.dumps({**values, **settings}))
    return folder


@pytest.mark.parametrize(
    ("file", "setting"),
    [
        *(("generation_config.json", name) for name in REFUSED),
        ("config.json", "do_sample"),
        ("config.json", "bad_words_ids"),
    ],
)
def test_other_settings_are_refused_by_name(
    setting: str, file: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_settings(saved, tmp_path / "hf", file, {setting: REFUSED[setting], "num_beams": 4})
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
    settings = {
        "bad_words_ids": [[59]], "num_beams": 6, "max_length": 512, "forced_eos_token_id": 0, "do_sample": False,
        "repetition_penalty": 1.0, "suppress_tokens": [], "guidance_scale": None, "transformers_version": "4.30.0",
        "_from_model_config": True, "renormalize_logits": True,
    }  # fmt: skip
    folder = with_settings(saved, tmp_path / "hf", "generation_config.json", settings)
    assert cli.main([str(folder), str(tmp_path / "out")]) == 0
    options = json.loads((tmp_path / "out" / "load.json").read_text())["options"]
    assert options == {"min_len": 0, "max_len_b": 510}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_length", "9"),
        ("min_length", -1),
        ("max_length", 2**31),
        ("length_penalty", "x"),
        ("length_penalty", 10**30),
        ("suppress_tokens", [7, 60]),
        ("suppress_tokens", 7),
        ("begin_suppress_tokens", ["w7"]),
        ("bad_words_ids", [["w7"]]),
        ("bad_words_ids", [[True]]),
    ],
)
def test_other_types(setting: str, value: Any, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = with_settings(saved, tmp_path / "hf", "generation_config.json", {setting: value})
    assert cli.main([str(folder), str(tmp_path / "out")]) == 2
    assert f"generation_config.json: {setting} is {value!r}" in capsys.readouterr().err
