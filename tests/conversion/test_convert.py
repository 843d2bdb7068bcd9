"""Converted models give the ids of Hugging Face's greedy `generate`; other models are refused in one line."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fairseq_plugins
from fairseq_plugins.api.sentences import Input
from fairseq_plugins.conversion import cli
from fairseq_plugins.conversion.convert import convert as convert_folder
from fairseq_plugins.conversion.vocabulary import SPECIAL, read_names
from fairseq_plugins.errors import ConfigurationError
from tests.conversion.support import (
    MODELS,
    SIZE,
    converted,
    first_tokens,
    generated,
    languages,
    names,
    save_model,
    sources,
)
from tests.errors import error_about, refused
from tests.support import run_in_process

LONGEST = 30


def convert(folder: Path, out: Path) -> Path:
    """Convert a folder with the command."""
    assert cli.main([str(folder), str(out)]) == 0
    return out


@pytest.mark.parametrize("name", MODELS)
def test_greedy_gives_the_ids_of_generate(name: str, tmp_path: Path) -> None:
    original = save_model(name, tmp_path / "hf")
    out = convert(tmp_path / "hf", tmp_path / "out")
    expected = generated(original, name, max_new_tokens=LONGEST, forced_eos_token_id=None)
    assert len({tuple(one) for one in expected}) > 11 and len({len(one) for one in expected}) > 3
    for decoder in ("greedy", "beam"):
        assert converted(name, out, decoder, max_len_b=LONGEST) == expected
    known, bias = read_names(tmp_path / "hf").values(), torch.zeros(4)
    bias = torch.load(out / "verifier.pt")["model"].get("decoder.output_projection.bias", bias)
    assert all(bias[place] == -1e4 for place, symbol in enumerate(SPECIAL) if symbol not in known), "never the best"
    model, text = fairseq_plugins.load(out, device="cpu", max_len_b=LONGEST, **languages(name)), names(name)
    assert model.backend.startswith("native: ")
    for one, expected_ids in zip(sources()[:3], expected, strict=False):
        steps = list(model.stream(" ".join(text[number] for number in one)))
        assert [token for step in steps for token in step.tokens] == [text[number] for number in expected_ids]


def test_multilingual_models_need_their_languages(tmp_path: Path) -> None:
    save_model("nllb", tmp_path / "hf")
    out = convert(tmp_path / "hf", tmp_path / "out")
    for given, message in (
        ({}, "source-lang: missing; .*: give one of its 2 languages, such as deu_Latn, eng_Latn$"),
        ({"source_lang": "eng_Latn", "target_lang": "de"}, "--target-lang de: unknown; .* such as deu_Latn$"),
    ):
        with refused(message):
            fairseq_plugins.load(out, device="cpu", **given)
    model = fairseq_plugins.load(out, device="cpu", **languages("nllb"))
    assert (model.source_lang, model.target_lang, model.max_source_tokens) == ("eng_Latn", "deu_Latn", 63)
    with pytest.raises(ConfigurationError, match="text: has 64 tokens, and the model reads at most 63"):
        model.translate("w7 " * 63)
    for settings, message in (
        ("{}", "cannot be read .*missing.*`languages`"),
        ('{"languages": {}, "options": {"lm_path": "/etc/passwd"}}', "option 'lm_path' is not of a model"),
        ('{"languages": {}, "options": {"min_len": "1"}}', "its options are not right .*min_len"),
    ):
        (out / "load.json").write_text(settings)
        with refused(f"load.json: {message}.*; convert the model again"):
            fairseq_plugins.load(out, device="cpu")


@pytest.mark.parametrize("decoder", ["beam", "jacobi"])
def test_fairseq_interactive_takes_first_tokens(decoder: str, tmp_path: Path) -> None:
    save_model("nllb", tmp_path / "hf")
    out = convert(tmp_path / "hf", tmp_path / "out")
    text = [" ".join(names("nllb")[number] for number in one) for one in sources()[:8]]
    expected = fairseq_plugins.load(out, device="cpu", max_len_b=LONGEST, **languages("nllb")).translate(text)
    options = f"{out} --task spec_dec --source-lang src --target-lang tgt --path {out}/verifier.pt --decoder {decoder}"
    options += f" --source-first-token eng_Latn --min-len 0 --max-len-b {LONGEST} --beam 1 --cpu --buffer-size 8"
    output = run_in_process(
        "interactive", options, "--forced-first-token", "deu_Latn", input="\n".join(text) + "\n"
    ).stdout
    assert [line.split("\t")[2] for line in output.splitlines() if line.startswith("H-")] == expected
    assert len(set(expected)) > 5


@pytest.mark.parametrize("decoder", ["greedy", "beam"])
@pytest.mark.parametrize("name", ["nllb", "bart", "marian"])
def test_alignments_are_to_the_subwords_of_the_text(name: str, decoder: str, tmp_path: Path) -> None:
    """Not to the language before them; the attention is that of Hugging Face."""
    original = save_model(name, tmp_path / "hf")
    original.set_attn_implementation("eager")  # others do not return attention
    out = convert(tmp_path / "hf", tmp_path / "out")
    model = fairseq_plugins.load(out, device="cpu", decoder=decoder, max_len_b=LONGEST, **languages(name))
    text = [[names(name)[number] for number in one] for one in sources()[:8]]
    search = {"beam": 1} if decoder == "beam" else {}
    found = model.translate_batch(text, alignments=True, **search)
    ids = {token: number for number, token in names(name).items()}
    first, forced = first_tokens(name)
    before = [] if first is None else [first]
    config, compared = original.config, 0
    for one, source in zip(found, sources(), strict=False):
        words = [ids[token] for token in one.tokens]
        read = [config.decoder_start_token_id, *([] if forced is None else [forced]), *words]
        if len(one.token_scores) != len(read):  # the forced token also stands elsewhere, where `tokens` leave it out
            continue
        with torch.no_grad():
            attention = original(
                input_ids=torch.tensor([[*before, *source, config.eos_token_id]]),
                decoder_input_ids=torch.tensor([read]),
                output_attentions=True,
            ).cross_attentions[-1][0]
        # From the position that predicts a word.
        rows = attention.mean(0)[len(read) - 1 - len(words) : len(read) - 1, len(before) : len(before) + len(source)]
        assert one.alignment == rows.argmax(1).tolist()
        compared += len(words)
    assert compared > 20
    if decoder == "greedy":
        with model.service() as service:
            futures = [service.submit(" ".join(words), alignments=True) for words in text]
            assert [future.result().alignment for future in futures] == [one.alignment for one in found]


def test_first_tokens_have_to_be_in_the_dictionary(tmp_path: Path) -> None:
    save_model("bart", tmp_path / "hf")
    out = convert(tmp_path / "hf", tmp_path / "out")
    with pytest.raises(ConfigurationError, match='forced_first_token="de_DE": is not in the dictionary; give a token'):
        fairseq_plugins.load(out, device="cpu", forced_first_token="de_DE")
    model = fairseq_plugins.load(out, device="cpu")
    with error_about("--forced-first-token", "contradicts --prefix-size"):
        sample = model._sample([Input(model._ids(["w7"]))])
        model._session.task.inference_step(None, [], sample, prefix_tokens=torch.tensor([[0]]))


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hf"
    save_model("marian", folder)
    config = json.loads((folder / "config.json").read_text())
    whole = (folder / "model.safetensors").read_bytes()
    capsys.readouterr()

    def refuses(message: str, **changed: Any) -> None:
        (folder / "config.json").write_text(json.dumps({**config, **changed}))
        assert cli.main([str(folder), str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.startswith("spec-dec-convert: error: ") and error.count("\n") == 1
        assert message in error
        assert [file.name for file in tmp_path.iterdir()] == ["hf"]

    refuses("model_type 'llama' is not converted; those are bart, m2m_100, marian, mbart", model_type="llama")
    refuses("activation_function 'tanh' is not converted", activation_function="tanh")
    refuses("a vocabulary for each side", share_encoder_decoder_embeddings=False)
    refuses("is mBART-25's", model_type="mbart")
    refuses("config.json: has no d_model", d_model=None)
    refuses("no </s> with the id 7 of config.json's eos_token_id", eos_token_id=7)
    refuses("ids up to 59, and vocab_size is 59", vocab_size=SIZE - 1, decoder_vocab_size=SIZE - 1)
    refuses("vocab_size is not 60, the rows of the embedding", vocab_size=SIZE + 1, decoder_vocab_size=SIZE + 1)
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "model.adapter.weight": torch.zeros(2)}, folder / "model.safetensors")
    refuses("unknown tensor model.adapter.weight; ")
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refuses("model.safetensors: truncated or not safetensors")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuses("pytorch_model.bin: truncated, or has more than weights, which could run any program; copy it again, or")
    (folder / "pytorch_model.bin").unlink()
    refuses("model.safetensors: no such file; copy it, too: weights are in model.safetensors, pytorch_model.bin, or ")
    (folder / "vocab.json").write_text('{"a b": 5, "<pad>": 59, "</s>": 0, "<unk>": 1}')
    refuses("its token 'a b' cannot stand in fairseq's dictionary")
    (folder / "vocab.json").write_text("{")
    refuses("vocab.json: cannot be read as JSON")
    (folder / "vocab.json").unlink()
    refuses("has no vocabulary (tokenizer.json, vocab.json or sentencepiece.bpe.model)")


def test_nothing_is_overwritten_and_nothing_half_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("bart", tmp_path / "hf")
    (tmp_path / "taken").mkdir()
    assert cli.main([str(tmp_path / "hf"), str(tmp_path / "taken")]) == 2
    assert "taken: exists already; give another folder" in capsys.readouterr().err
    assert cli.main([str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    assert "none: no such folder" in capsys.readouterr().err

    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fairseq_plugins.shared.files.write_all", fail)
    assert cli.main([str(tmp_path / "hf"), str(tmp_path / "out")]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hf", "taken"]


def test_shards_are_read(tmp_path: Path) -> None:
    original = save_model("mbart50", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "whole")
    (tmp_path / "hf" / "model.safetensors").unlink()
    original.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1
    convert(tmp_path / "hf", tmp_path / "sharded")
    whole, sharded = (torch.load(tmp_path / name / "verifier.pt")["model"] for name in ("whole", "sharded"))
    assert whole.keys() == sharded.keys() and all(torch.equal(whole[name], sharded[name]) for name in whole)
    # transformers reads model.safetensors where both are there.
    save_file({name: value + 1 for name, value in original.state_dict().items()}, tmp_path / "hf/model.safetensors")
    convert(tmp_path / "hf", tmp_path / "both")
    assert not torch.equal(torch.load(tmp_path / "both/verifier.pt")["model"]["encoder.layers.0.fc1.bias"],
                           whole["encoder.layers.0.fc1.bias"])  # fmt: skip


@pytest.mark.parametrize("name", ["bart", "nllb"])
def test_tensors_without_the_prefix_of_the_base_model(name: str, tmp_path: Path) -> None:
    original, folder = save_model(name, tmp_path / "hf"), tmp_path / "base"
    shutil.copytree(tmp_path / "hf", folder)
    with torch.no_grad():
        original.get_input_embeddings().weight[original.config.eos_token_id] *= 2  # ends without BART's bias, too
    original.model.save_pretrained(folder)
    assert "shared.weight" in load_file(folder / "model.safetensors")
    read = type(original).from_pretrained(folder).eval()
    expected = generated(read, name, max_new_tokens=LONGEST, forced_eos_token_id=None)
    assert len({tuple(one) for one in expected}) > 11 and len({len(one) for one in expected}) > 3
    assert converted(name, convert(folder, tmp_path / "out"), max_len_b=LONGEST) == expected


@pytest.mark.parametrize("zipped", [True, False])  # torch before 1.6, as in older models of the hub, did not
def test_pickled_weights_are_read(zipped: bool, tmp_path: Path) -> None:
    original = save_model("marian", tmp_path / "hf")
    expected = torch.load(convert(tmp_path / "hf", tmp_path / "whole") / "verifier.pt")["model"]
    (tmp_path / "hf" / "model.safetensors").unlink()
    weights = original.state_dict()
    names = {name: f"pytorch_model-0000{number % 2}.bin" for number, name in enumerate(weights)}
    for file in {"pytorch_model.bin", *names.values()}:
        part = {name: value for name, value in weights.items() if file in ("pytorch_model.bin", names[name])}
        torch.save(part, tmp_path / "hf" / file, _use_new_zipfile_serialization=zipped)
    (tmp_path / "hf" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    for files in ("whole", "sharded"):
        found = torch.load(convert(tmp_path / "hf", tmp_path / f"{files}.bin") / "verifier.pt")["model"]
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        (tmp_path / "hf" / "pytorch_model.bin").unlink(missing_ok=True)


def test_sinusoids_of_an_odd_width(tmp_path: Path) -> None:
    odd = {"d_model": 27, "encoder_attention_heads": 3, "decoder_attention_heads": 1}
    original = save_model("marian", tmp_path / "hf", **odd)
    expected = generated(original, "marian", max_new_tokens=LONGEST, forced_eos_token_id=None)
    assert converted("marian", convert(tmp_path / "hf", tmp_path / "out"), max_len_b=LONGEST) == expected


@pytest.mark.parametrize("ids", [{"pad_token_id": 4}, {"decoder_start_token_id": 1}])
def test_sinusoids_that_begin_elsewhere_are_refused(ids: dict[str, int], tmp_path: Path) -> None:
    save_model("m2m100", tmp_path / "hf", **ids)
    with refused("config.json: pad_token_id . and decoder_start_token_id . give tokens other positions"):
        convert_folder(tmp_path / "hf", tmp_path / "out")


def test_languages_and_the_mask_follow_the_pieces(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4}')
    settings = {"additional_special_tokens": ["__en__", {"content": "__de__"}], "mask_token": "<mask>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(settings))
    assert list(read_names(tmp_path).values())[4:] == ["a", "__en__", "__de__", "<mask>"]
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"5": {"content": "__fr__"}}}')
    assert list(read_names(tmp_path).values())[4:] == ["a", "__fr__", "__en__", "__de__", "<mask>"]
