"""Options of the API: typed names, advice for wrong ones; copies of models; what the package exports."""

import copy
import pickle
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from unittest.mock import Mock

import pytest
from fairseq.dataclass.configs import GenerationConfig

import fairseq_plugins
from fairseq_plugins import ConfigurationError, LoadOptions, Memory, WrapOptions
from fairseq_plugins.api.options import names
from fairseq_plugins.tasks import decoding
from fairseq_plugins.tasks.options import DecodingOptions, FirstTokenOptions
from fairseq_plugins.translation import cli
from tests.api.released import CAPTIONS, UA_GEC, loaded
from tests.errors import refused
from tests.support import REPOSITORY

# They have arguments of their own, or are fairseq's.
NOT_TYPED = {"_name", "decoding_method", "drafter_path", "profile", "bf16", "verbose"}


def test_typed_options_are_those_of_the_task() -> None:
    decoding = {field.name for field in fields(DecodingOptions)} - NOT_TYPED
    assert names(WrapOptions) == decoding
    first_tokens = {field.name for field in fields(FirstTokenOptions)} - NOT_TYPED
    rest = names(LoadOptions) - decoding - first_tokens
    assert rest < {field.name for field in fields(GenerationConfig)}
    assert decoding - names(LoadOptions) == {"stats_file", "trace_file"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 5}, r"beam: is no option of load; give it to each call: model.translate\(text, beam=...\)"),
        ({"beem": 5}, "beem: no such option; did you mean beam\\?"),
        ({"tokeniser": "moses"}, "tokeniser: no such option; did you mean tokenizer\\?"),
        ({"nbest": 3}, "nbest: no such option; in Python it is num_hypotheses="),
        ({"fp16": True}, 'fp16: no such option; in Python it is precision="fp16"'),
        ({"zzz": 3, "decoder": "iad"}, "zzz: no such option; there are .*iad_fallback.*docs/options.md"),
    ],
)
def test_wrong_names_are_answered_with_few(options: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}") as error:
        fairseq_plugins.load(UA_GEC, **options)
    assert str(error.value).count(",") < 20


def test_copies_load_the_files_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(UA_GEC.parent)
    model = fairseq_plugins.load("ua-gec", decoder="iad", device="cpu", fixed_width=True)
    assert repr(model) == "Model('ua-gec/verifier.pt', decoder='iad')"
    monkeypatch.chdir(tmp_path)
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert repr(copied) == f"Model('{UA_GEC}/verifier.pt', decoder='iad')"
        assert copied.translate("Так .", return_scores=True) == model.translate("Так .", return_scores=True)
    memory = Memory("memory")
    memory.add(["a"], ["b"])
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(memory)).drafts("a") == ["b"] and repr(memory) == f"Memory('{tmp_path}/memory')"


def test_what_the_package_shows() -> None:
    shown = dir(fairseq_plugins)
    assert {"Model", "Translation", "Step", "CallOptions", "__version__"} < set(shown) and len(shown) < 20
    assert all(hasattr(fairseq_plugins, name) for name in shown)
    run = subprocess.run([sys.executable, "setup.py", "--version"], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.stdout.split()[-1] == fairseq_plugins.__version__, run.stderr


@pytest.mark.parametrize(
    ("options", "in_python", "in_shell"),
    [
        ({"decoder": "gad", "max_len_b": 3, "min_len": 9}, "min_len=9: longer .*raise max_len_b=", "--set min_len=9: "),
        ({"decoder": "iad", "int8": True, "precision": "bf16"}, 'int8: .*precision="bf16"', "int8: .*--precision bf16"),
    ],
)
def test_errors_name_options_as_they_were_given(
    options: dict, in_python: str, in_shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{in_python}"):
        fairseq_plugins.load(UA_GEC, device="cpu", **options).translate("Так .")
    named = [f"--{name}={options[name]}" for name in ("decoder", "precision") if name in options]
    given = [one for name in options.keys() - {"decoder", "precision"} for one in ("--set", f"{name}={options[name]}")]
    (tmp_path / "text").write_text("Так .\n", encoding="utf-8")
    assert cli.main([str(UA_GEC), "--device", "cpu", "--input", str(tmp_path / "text"), *named, *given]) == 2
    assert re.search(f"error: .*{in_shell}", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_len": 50, "max_len_b": 3}, "--min-len 50: longer than the longest output"),
        ({"sampling": True, "sampling_topk": 10**6}, "--sampling-topk 1000000: more than the vocabulary has"),
    ],
)
def test_options_that_fairseqs_own_search_refuses(options: dict, message: str) -> None:
    with refused(message):
        loaded("beam").translate("A man.", **options)


@pytest.mark.parametrize("decoder", ["beam", "fast-beam", "greedy"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"diverse_beam_groups": 5, "diversity_rate": 0.5}, "--diverse-beam-groups 5: is another search than --div"),
        ({"match_source_len": True, "sampling": True}, "--sampling: is another search than --match-source-len; leave "),
    ],
)
def test_searches_that_exclude_each_other(decoder: str, options: dict, message: str) -> None:
    with refused(message):
        loaded(decoder, **options)


@pytest.mark.parametrize("decoder", ["beam", "fast-beam"])
def test_a_call_that_samples_with_another_search(decoder: str) -> None:
    with refused("--sampling: is another search than --diversity-rate; leave one of them out"):
        loaded(decoder, diversity_rate=0.5).translate("A man.", sampling=True)


def test_groups_of_a_beam_other_than_the_default() -> None:
    """A model is loaded without a beam, and a service is made for another one."""
    texts = {}
    for decoder in ("beam", "fast-beam"):
        model = loaded(decoder, diverse_beam_groups=3)
        for beam in (None, 4):
            with refused("--diverse-beam-groups 3: must divide --beam [45]; give --beam 6"):
                model.translate_iterable(["A man."], beam=beam)
        texts[decoder] = [one.text for one in model.translate_batch([model.tokenize(CAPTIONS[1])], beam=6)]
        with model.service() as service:
            assert model.backend and service.submit(CAPTIONS[1], beam=6).result(30).text == texts[decoder][0]
    assert texts["beam"] == texts["fast-beam"]


@pytest.mark.parametrize("decoder", ["greedy", "beam"])
def test_zero_limits_of_sampling_are_refused_without_sampling(decoder: str) -> None:
    with refused("--sampling-topk 0: is for sampling; add --sampling"):
        loaded(decoder).translate("A man.", sampling_topk=0)


def test_other_errors_of_a_search_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded("beam")._session, "decode", Mock(side_effect=RuntimeError("gone")))
    with pytest.raises(RuntimeError, match="gone") as raised:
        loaded("beam").translate("A man.")
    assert raised.value.__cause__ is None


def test_weights_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them takes most of the time of a call with another temperature, whose generator is new."""
    read: list[int] = []
    monkeypatch.setattr(decoding, "check_finite", lambda models: read.append(len(models)))
    model = fairseq_plugins.load(UA_GEC, device="cpu")
    for temperature in (1.0, 2.0):
        model.translate("Привіт", sampling=True, temperature=temperature)
    assert len(read) > 2 and sum(read) == 1
