"""The task: contradicting options, the glancing schedule, checks of models and dictionaries."""

import re
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary, LanguagePairDataset
from omegaconf import OmegaConf

from fairseq_plugins.criterions.glat_loss import GlatLoss
from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.checks import check_fit
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.methods.gad import RelaxedOptions
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.state import Draft, Verification
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat import BlockNat
from fairseq_plugins.tasks.options import SpecDecConfig
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.conftest import Corpus
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.errors import error_about, refused
from tests.support import (
    Options,
    ids,
    make_args,
    make_dictionary,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoding_method": "blockwise", "top_beta": 0}, "--top-beta 0: give at least 1"),
        ({"block_size": 0}, "--block-size 0: give at least 1"),
        ({"decoding_method": "gad++", "tau": -1.0}, "--tau -1.0.*give 0 or more"),
        ({"decoding_method": "gad++", "tau": float("nan")}, "--tau nan.*give 0 or more"),
        ({"decoding_method": "gad++"}, "--decoder gad[+][+].*add --preset high-quality"),
        ({"drafter_path": "d.pt"}, "--drafter-path d.pt: --decoder beam.*add --decoder gad"),
        ({"decoding_method": "iad", "drafter_path": "d.pt"}, "--drafter-path d.pt: --decoder iad uses no drafter"),
        ({"decoding_method": "gad", "draft_vocabulary": 0.0}, "--draft-vocabulary 0.0: must be in"),
        ({"decoding_method": "gad", "draft_vocabulary": 1.5}, "--draft-vocabulary 1.5: must be in"),
        ({"decoding_method": "iad", "draft_vocabulary": 0.5}, "--draft-vocabulary 0.5: .*add --iad-fallback gad"),
        ({"decoding_method": "gs-jacobi", "block_size": 0}, "--block-size 0: give at least 1"),
        ({"decoding_method": "blockwise", "min_block": 5, "block_size": 4}, "--min-block 5: give .*at most .*4"),
        ({"decoding_method": "blockwise", "accept_distance": 1.0, "top_beta": 2}, "--accept-distance: and --top-beta"),
        ({"decoding_method": "gad", "active_sentences": -1}, "--active-sentences -1: give"),
    ],
)
def test_contradicting_options_are_refused_before_anything_is_loaded(options: dict[str, Any], message: str) -> None:
    """tests/faults/bad_input.txt has others."""
    with refused(message):
        SpecDecTask.setup_task(SpecDecConfig(data="/nowhere", **options))


def test_aliases_and_presets() -> None:
    for alias, name in (("specdec", "gad"), ("pj", "jacobi"), ("pgj", "gs-jacobi"), ("hgj", "hybrid-jacobi")):
        spec, _ = methods.chosen(SpecDecConfig(decoding_method=alias))
        assert spec.name == name
    for preset, values in (("high-quality", (3, 1.0)), ("high-efficiency", (5, 3.0))):
        spec, options = methods.chosen(SpecDecConfig(decoding_method="specdec++", preset=preset))
        assert isinstance(options, RelaxedOptions)
        assert (spec.name, options.top_beta, options.tau) == ("gad++", *values)


def test_glancing_ratio_falls_and_stays() -> None:
    task = make_task(glancing_start=0.5, glancing_end=0.3, glancing_updates=100)
    assert [task.glancing_ratio(update) for update in (0, 50, 100, 1000)] == pytest.approx([0.5, 0.4, 0.3, 0.3])
    task = make_task(glancing_start=0.5, glancing_end=0.3, glancing_updates=None, max_update=200)
    assert task.glancing_ratio(100) == pytest.approx(0.4)
    assert make_task(glancing_start=0.2, glancing_end=0.2, glancing_updates=None, max_update=0).glancing_ratio(5) == 0.2
    with error_about("--glancing-updates"):
        make_task(glancing_updates=None, max_update=0).build_model(make_args(arch="block_nat"))


def build_generator(task: SpecDecTask, models: list, **options: Any) -> Any:
    return task.build_generator(models, Namespace(**options))


@pytest.mark.parametrize("decoder", ["greedy", "fast-beam"])
def test_beam_is_the_number_of_samples(decoder: str) -> None:
    task = make_task(decoding_method=decoder, seed=3)
    model, sample = make_transformer(task, 1), make_sample(task, [3, 5])
    options = {"sampling": True, "sampling_topk": 5, "beam": 3, "max_len_b": 9}
    generators = [build_generator(task, [model], **options, nbest=nbest) for nbest in (1, 4)]
    many, more = (generator.generate([model], sample) for generator in generators)
    assert [len(samples) for samples in (*many, *more)] == [3, 3, 4, 4]
    for few, samples in zip(many, more, strict=True):
        tokens = [each["tokens"].tolist() for each in samples]
        assert all(each["tokens"].tolist() in tokens for each in few)
    task.cfg.seed = 4
    other = build_generator(task, [model], **options).generate([model], sample)
    assert any(ids(other)[row] != ids(many)[row] for row in range(2))


@pytest.mark.parametrize(
    "decoder, options, named",
    [
        ("gad++", {"sampling": True}, "--sampling: is not for --decoder gad"),
        ("greedy", {"sampling_topk": 3}, "--sampling-topk 3"),
        ("beam", {"sampling_topp": 0.5}, "--sampling-topp 0.5"),
    ],
)
def test_sampling_needs_exact_acceptance(decoder: str, options: dict[str, Any], named: str) -> None:
    task = make_task(decoding_method=decoder, preset="high-quality" if decoder == "gad++" else "none")
    with refused(re.escape(named)):
        build_generator(task, [make_transformer(task, ending=False)], **options)


def test_beam_is_fairseqs_own_and_the_rest_is_ours() -> None:
    task = make_task()
    models = [make_transformer(task, ending=False)]
    assert not isinstance(build_generator(task, models, beam=5), DraftVerifyGenerator)
    task.cfg.decoding_method = "greedy"
    args = Namespace(beam=5)
    assert isinstance(task.build_generator(models, args), DraftVerifyGenerator)
    assert args.beam == 1, "fairseq prints it"


def fit(task: SpecDecTask, decoder: str, drafter: Any = None, models: Any = None, **options: Any) -> None:
    chosen = Options(decoder, **options)
    models = models or [make_transformer(task, ending=False)]
    check_fit(chosen.spec, chosen.options, chosen.context(models, drafter, task))


def test_other_dictionaries_are_refused() -> None:
    task = make_task(40)
    drafter = make_drafter(task)
    task.tgt_dict = make_dictionary(39)
    task.tgt_dict.add_symbol("another word")
    with pytest.raises(ConfigurationError, match="another target dictionary"):
        fit(task, "gad", drafter)
    with error_about("--decoder", "--joined-dictionary"):
        fit(task, "iad")
    for decoder in ("jacobi", "gs-jacobi", "hybrid-jacobi"):
        with error_about("--jacobi-init", "--joined-dictionary"):
            fit(task, decoder, jacobi_init="source")
        fit(task, decoder)


def test_drafts_are_at_most_the_blocks_of_training() -> None:
    """Copies of given drafts may be longer than those of the fallback."""
    task = make_task()
    drafter = make_drafter(task, block_size=5)
    fit(task, "gad", drafter, block_size=5)
    fit(task, "reuse", drafter, iad_fallback="gad", block_size=9)
    with error_about("--block-size", "give at most 5"):
        fit(task, "gad", drafter, block_size=6)


def test_distance_needs_numbers_and_blocks_need_heads() -> None:
    task, model = make_blockwise(0)
    with pytest.raises(ConfigurationError, match="several models"):
        fit(task, "blockwise", models=[make_transformer(task, seed, ending=False) for seed in range(2)])
    with pytest.raises(ConfigurationError, match="is a number"):
        fit(task, "blockwise", models=[model], accept_distance=2.0)
    with pytest.raises(ConfigurationError, match="has 4 heads"):
        fit(task, "blockwise", models=[model], block_size=5)
    with error_about("--min-block"):
        fit(task, "blockwise", models=[model], min_block=5)
    numbers = Dictionary()
    for value in range(8):
        numbers.add_symbol(str(value))
    task.src_dict = task.tgt_dict = numbers
    fit(task, "blockwise", models=[model], accept_distance=2.0)
    search = Options("blockwise", accept_distance=1.0).build([model], None, task).search
    assert isinstance(search, GreedySearch)
    scores = torch.zeros(1, 2, 12)
    scores[0, 0, numbers.index("3")] = 1.0
    verification = Verification(scores.log_softmax(-1), scores.argmax(-1))
    for value, stands in (("2", True), ("4", True), ("5", False)):
        assert search.rule(Draft(torch.tensor([[numbers.index(value)]])), verification).item() is stands


@pytest.mark.parametrize(
    ("of_task", "of_model", "message"),
    [
        # Full attention has one block a pass, and blocks begin after a prefix on the left.
        ({"blocks_per_sentence": 2, "block_size": 4}, {"drafter_attention": "full"}, "--blocks-per-sentence 2: "),
        ({"left_pad_target": True}, {}, "--left-pad-target: "),
        ({"block_size": 4}, {"adaptive_softmax_cutoff": "5,10"}, "--arch block_nat: cannot draft: it uses .*; leave"),
        ({"block_size": 4}, {"scale_heads": True}, "--arch block_nat: cannot draft: it uses .*; leave that out"),
    ],
)
def test_a_drafter_that_could_not_draft_is_not_trained(of_task: dict, of_model: dict, message: str) -> None:
    with refused(message):
        make_task(**of_task).build_model(make_args(arch="block_nat", **of_model))


@pytest.mark.parametrize("arch", ["block_nat_tiny", "blockwise_transformer"])
def test_fairseq_hydra_train_is_told_to_use_fairseq_train(arch: str) -> None:
    """Its configuration has none of the options that these models declare for a command line."""
    with refused(f"--arch {arch}: fairseq-hydra-train sets none of its options; train it with fairseq-train"):
        make_task(block_size=4).build_model(OmegaConf.create({"_name": arch}))


@pytest.mark.parametrize(
    ("arch", "criterion", "remedy"),
    [
        ("block_nat", "cross_entropy", "add --criterion glat_loss"),  # fairseq's default
        ("blockwise_transformer", "label_smoothed_cross_entropy", "add --criterion blockwise_loss"),
        ("transformer", "glat_loss", "choose another"),
    ],
)
def test_each_model_has_its_loss(arch: str, criterion: str, remedy: str) -> None:
    task = make_task(block_size=4)
    task.build_model(make_args(arch=arch, base_path=None))
    with refused(f"--criterion {criterion}: does not train this --arch; {remedy}"):
        task.build_criterion(Namespace(criterion=criterion, _name=criterion))


def test_a_loss_of_the_users_own_trains_a_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    own = type("OwnLoss", (GlatLoss,), {"__module__": "users_plugin.losses"})
    monkeypatch.setitem(CRITERION_REGISTRY, "own_loss", own)
    task = make_task(block_size=4)
    task.build_model(make_args(arch="block_nat"))
    assert isinstance(task.build_criterion(Namespace(criterion="own_loss", label_smoothing=0.1)), own)


def test_a_drafter_is_no_verifier(corpus: Corpus) -> None:
    """Its own --share-encoder would ask for the verifier again."""
    with refused(f"--verifier-path {corpus.drafter}: is a drafter"):
        make_task(verifier_path=str(corpus.drafter)).training_verifier()


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("--best-checkpoint-metric tokens_per_iteration", "add --verifier-path"),
        ("--best-checkpoint-metric bleu", "add --eval-bleu"),
        ("--best-checkpoint-metric token_per_iteration", "did you mean tokens_per_iteration"),
        ("--best-checkpoint-metric accuracy_at_1", "the worst .* kept; add --maximize-best-checkpoint-metric"),
        ("--best-checkpoint-metric accuracy_at_3", "no such value; did you mean accuracy_at_8 or accuracy_at_4"),
        ("--store-ema", "leave it out"),
        ("--restore-file nowhere.pt", "no such file; give a checkpoint, or leave it out"),
    ],
)
def test_training_options_are_refused_at_once(option: str, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a metric, fairseq itself fails after the first epoch, before it saves a checkpoint."""
    command = f"fairseq-train data --task spec_dec --arch block_nat --criterion glat_loss {option}"
    monkeypatch.setattr("sys.argv", command.split())
    with refused(f"{option}: .*{remedy}"):
        make_task().build_model(make_args(arch="block_nat"))


def test_a_first_run_may_name_its_own_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """As jobs do that are queued again; it is missing at first."""
    options = "--save-dir models --restore-file models/checkpoint_last.pt"
    monkeypatch.setattr("sys.argv", f"fairseq-train data --task spec_dec --arch block_nat {options}".split())
    make_task().build_model(make_args(arch="block_nat"))


@pytest.mark.parametrize(
    "metric, is_maximized", [("nll_loss", True), ("ppl", True), ("accuracy", False), ("accuracy_at_25", False)]
)
def test_the_worst_checkpoint_is_not_kept(metric: str, is_maximized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"fairseq-train data --task spec_dec --arch block_nat --best-checkpoint-metric {metric}"
    maximize = "--maximize-best-checkpoint-metric"
    given, other = ["", maximize][:: -1 if is_maximized else 1]
    monkeypatch.setattr("sys.argv", f"{command} {given}".split())
    with refused(f"--best-checkpoint-metric {metric}: .*{'leave out' if is_maximized else 'add'} {maximize}"):
        make_task().build_model(make_args(arch="block_nat"))
    monkeypatch.setattr("sys.argv", f"{command} {other}".split())
    make_task().build_model(make_args(arch="block_nat"))


@pytest.mark.parametrize("metric", ["tokens_per_iteration", "bleu"])
def test_a_training_without_validation_measures_no_metric(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = f"--best-checkpoint-metric {metric} --disable-validation"
    monkeypatch.setattr("sys.argv", f"fairseq-train data --task spec_dec --arch block_nat {options}".split())
    make_task().build_model(make_args(arch="block_nat"))


def test_sentences_are_as_long_as_the_verifier_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()
    assert task.max_positions() == (1024, 1024)
    verifier = make_transformer(task, max_source_positions=40, max_target_positions=50)
    monkeypatch.setattr(task, "training_verifier", lambda: verifier)
    assert task.max_positions() == (40, 50)


@pytest.mark.parametrize("data, again", [("data", True), ("data:more", False), ("data", False)])
def test_epochs_have_their_own_batches_where_fairseq_makes_them_again(data: str, again: bool) -> None:
    def batches(epoch: int) -> list[list[int]]:
        given = make_task(data=data)  # one as in a resumed training
        lengths, tokens = [1 + number % 5 for number in range(60)], given.source_dictionary
        dataset = LanguagePairDataset([torch.full((n,), 5) for n in lengths], lengths, tokens)
        made = given.get_batch_iterator(dataset, max_tokens=15, epoch=epoch, update_epoch_batch_itr=again)
        assert made.seed == 1
        return list(map(list, made.batch_sampler))

    assert (batches(1) == batches(2)) == (data == "data" and not again)


def training_step(given: SpecDecTask) -> tuple[BlockNat, dict[str, Any]]:
    """Return a drafter and a batch to train it on."""
    sample = make_sample(given, [5, 6])
    sample["target"] = sample["net_input"]["src_tokens"]
    sample["net_input"]["prev_output_tokens"] = sample["target"].roll(1, 1)
    return make_drafter(given, block_size=5), sample


def test_batches_of_a_validation_have_their_own_prefixes() -> None:
    """Also batches of one sentence; later validations have the same ones."""
    task = make_task(block_size=5)
    model, sample = training_step(task)
    prefixes = []
    for first in (0, 1, 0):
        sample["id"] += first - sample["id"][0]
        task.valid_step(sample, model, GlatLoss(task, 0.1))
        prefixes.append(sample["blocks"].positions[:, sample["blocks"].prefix_width])
    assert torch.equal(prefixes[0], prefixes[2]) and not torch.equal(prefixes[0], prefixes[1])


def test_a_drafter_keeps_the_counts_of_the_first_subset() -> None:
    """By which fairseq chooses the best checkpoint; the next validation stores its own."""
    task = make_task(block_size=5)
    model, sample = training_step(task)
    task._verifier = make_transformer(task)
    kept = []
    for _ in range(2):
        task.begin_valid_epoch(1, model)
        for subset in range(2):
            task.valid_step(sample, model, GlatLoss(task, 0.1))
            task.post_validate(model, {}, None)
            kept.append(model.decoder.survival_counts.clone())
            model.decoder.survival_counts += subset
    assert kept[0].any() and torch.equal(kept[0], kept[1]) and torch.equal(kept[0], kept[2])


def test_attention_of_cudnn_is_off_in_training() -> None:
    """In updates and validation; afterwards it is as it was."""
    task = make_task(block_size=5)
    model, sample = training_step(task)
    criterion, enabled = GlatLoss(task, 0.1), []
    criterion.register_forward_hook(lambda *given: enabled.append(torch.backends.cuda.cudnn_sdp_enabled()))
    before = torch.backends.cuda.cudnn_sdp_enabled()
    task.train_step(sample, model, criterion, Namespace(backward=lambda loss: None), update_num=1)
    task.valid_step(sample, model.eval(), criterion)
    assert enabled == [False, False] and before and torch.backends.cuda.cudnn_sdp_enabled()


def test_cpu_bf16_trains_every_weight_in_bfloat16() -> None:
    gradients = []
    for cpu_bf16 in (False, True):
        task = make_task(cpu_bf16=cpu_bf16, glancing_start=0.5, glancing_end=0.5, block_size=5)
        model, sample = training_step(task)
        torch.manual_seed(1)
        optimizer = Namespace(backward=lambda loss: loss.backward())
        task.train_step(sample, model, GlatLoss(task, 0.1), optimizer, update_num=1)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]))
    exact, rounded = gradients
    assert not torch.equal(exact, rounded)
    assert torch.cosine_similarity(exact, rounded, dim=0) > 0.99
