"""Consistency training: loss and gradient by hand, and its effect on Jacobi iterations."""

from typing import Any

import pytest
import torch
from fairseq.logging import metrics
from fairseq.models.transformer import TransformerModel
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fairseq_plugins.criterions.jacobi_consistency import JacobiConsistency
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.errors import error_about, refused
from tests.learned import _batch, _learn
from tests.support import Options, decode, fairseq_greedy, ids, make_drafter, make_sample, make_task, make_transformer

PAD, EOS, UNK = 1, 2, 3


def training_batch(seed: int = 0) -> tuple[SpecDecTask, TransformerModel, dict[str, Any]]:
    """Return a random model in training mode without dropout, and its own translations, two of them altered."""
    task = make_task(30)
    model = make_transformer(task, seed)
    sample = make_sample(task, [9, 1, 4, 6, 12, 3])
    outputs = ids(fairseq_greedy([model], task, sample, max_len_b=14))
    for output in outputs[:2]:
        output[len(output) // 2] = 4 if output[len(output) // 2] != 4 else 5
    return task, model.train(), _batch(task, sample, outputs)


def by_hand(
    model: TransformerModel, sample: dict[str, Any], length: int, block: int, source: bool
) -> tuple[Tensor, int]:
    """Return consistency loss and number of rows, computed token by token with the criterion's random draws."""
    target = sample["target"]
    draws = torch.rand(len(target), 1).squeeze(1)
    passes = int(torch.randint(length, ()))
    total, rows = torch.zeros((), requires_grad=True), 0
    for row, draw in enumerate(draws):
        net_input = sample["net_input"]
        tokens = [token for token in net_input["src_tokens"][row].tolist() if token != PAD]
        wanted = [token for token in target[row].tolist() if token != PAD]

        def scores(state: list[int], tokens: list[int] = tokens) -> Tensor:
            previous = torch.tensor([[EOS, *state[:-1]]])
            return model(torch.tensor([tokens]), torch.tensor([len(tokens)]), previous)[0][0]

        converged = int(draw * len(wanted))
        guesses = [*tokens, *[UNK] * len(wanted)] if source else [UNK] * len(wanted)
        state = wanted[:converged] + guesses[converged : len(wanted)]
        for _ in range(passes):
            predicted = scores(state)
            predicted[:, PAD] = float("-inf")
            state = wanted[:converged] + predicted.argmax(1).tolist()[converged:]
        fixed = scores(wanted).detach().softmax(1)
        of_state = scores(state).log_softmax(1)
        is_right, has_differed = True, False
        for place in range(converged, len(wanted)):
            if has_differed and is_right and (block == 0 or place < converged + block):
                total = total - (fixed[place] * of_state[place]).sum()
                rows += 1
            is_right &= int(fixed[place].argmax()) == wanted[place]
            has_differed |= state[place] != wanted[place]
    return total, rows


@pytest.mark.parametrize(("length", "block", "source"), [(1, 0, False), (3, 0, False), (3, 3, False), (2, 0, True)])
def test_loss_and_gradient_are_those_by_hand(length: int, block: int, source: bool) -> None:
    """The reference treats the distributions at the fixed point as constants."""
    task, model, sample = training_batch()
    init = "source" if source else "unk"
    seen = 0
    for seed in range(4):
        torch.manual_seed(seed)
        expected, rows = by_hand(model, sample, length, block, source)
        wanted = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True, materialize_grads=True)
        gradients = []
        for weight in (0.0, 0.5):
            torch.manual_seed(seed)
            model.zero_grad()
            loss, size, logged = JacobiConsistency(task, 0.1, weight, length, block, init)(model, sample)
            loss.backward()
            gradients.append((loss, [parameter.grad.clone() for parameter in model.parameters()]))
        (ordinary, without), (whole, with_it) = gradients
        assert size == sample["ntokens"] and logged["rows"] == rows
        torch.testing.assert_close((whole - ordinary) * 2, expected, rtol=1e-4, atol=1e-4)
        for own, both, reference in zip(without, with_it, wanted, strict=True):
            torch.testing.assert_close((both - own) * 2, reference, rtol=1e-3, atol=2e-4)
        seen += rows
    assert seen > 20


def test_without_consistency_the_loss_is_label_smoothed_cross_entropy() -> None:
    task, model, sample = training_batch()
    loss, _, logged = JacobiConsistency(task, 0.1, 0.0)(model, sample)
    logits = model(**sample["net_input"])[0].flatten(0, 1)
    nll = torch.nn.functional.cross_entropy(logits, sample["target"].flatten(), ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(logged["nll_loss"], nll.detach())
    is_target = sample["target"].flatten() != PAD
    smooth = -logits[is_target].log_softmax(1).sum()
    # fairseq distributes epsilon over the other words.
    epsilon = 0.1 / (logits.size(1) - 1)
    torch.testing.assert_close(loss, (1 - 0.1 - epsilon) * nll + epsilon * smooth)
    assert logged["rows"] == 0


@pytest.mark.parametrize("init", ["unk", "source"])
def test_validation_counts_the_iterations_of_the_decoder(init: str) -> None:
    """Checks sentences that end within the window; seed 17 has four of them."""
    task, model, sample = training_batch(17)
    _, stats = decode([model.eval()], task, sample, Options("jacobi", jacobi_init=init), max_len_b=60)
    short = [row for row, sentence in enumerate(stats) if sentence.tokens < 20]
    sources = sample["net_input"]["src_tokens"][short]
    sample = _batch(task, {"net_input": {"src_tokens": sources, "src_lengths": (sources != PAD).sum(1)}}, [[2]] * 4)
    logged = JacobiConsistency(task, 0.1, trajectory_init=init)(model, sample)[2]
    assert logged["tokens"] == sum(stats[row].tokens for row in short)
    assert logged["iterations"] == sum(stats[row].iterations for row in short)
    with metrics.aggregate() as aggregator:
        JacobiConsistency.reduce_metrics([logged, logged])
    values = aggregator.get_smoothed_values()
    assert values["tokens_per_iteration"] == round(int(logged["tokens"]) / int(logged["iterations"]), 3)
    assert {"loss", "nll_loss", "ppl", "jacobi_iterations"} <= values.keys() and "consistency_loss" not in values


def test_training_lowers_iterations_and_is_deterministic() -> None:
    """A model learns to copy a few sentences; its output is the same with and without consistency."""
    task = make_task(30)
    copied = make_sample(task, [9, 7, 4, 6, 12, 10])
    outputs = [[token for token in row if token != PAD] for row in copied["net_input"]["src_tokens"].tolist()]

    def train(weight: float, updates: int) -> TransformerModel:
        model = make_transformer(task, ending=False)
        batch, criterion = _batch(task, copied, outputs), JacobiConsistency(task, 0.0, weight, 1)
        torch.manual_seed(1)
        return _learn(model, lambda: criterion(model, batch)[0] / batch["ntokens"], updates)

    def iterations(model: TransformerModel) -> int:
        found, stats = decode([model], task, copied, Options("jacobi", jacobi_init="unk"), max_len_b=20)
        assert ids(found) == outputs
        return sum(sentence.iterations for sentence in stats)

    plain, fast = (iterations(train(weight, 250)) for weight in (0.0, 1.0))
    assert fast < 0.75 * plain, (fast, plain)
    weights, same_weights = (train(1.0, 20).parameters() for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(weights, same_weights, strict=True))


def test_a_drafter_and_pytorchs_data_parallelism_are_refused() -> None:
    task, model, sample = training_batch()
    with error_about("--criterion", "give --arch transformer"):
        JacobiConsistency(task, 0.1)(make_drafter(task), sample)
    wrapped = torch.nn.Module()
    # DistributedDataParallel needs a process group.
    wrapped.module = DistributedDataParallel.__new__(DistributedDataParallel)
    torch.nn.Module.__init__(wrapped.module)
    wrapped.module.module = model
    with error_about("--criterion", "--ddp-backend legacy_ddp"):
        JacobiConsistency(task, 0.1)(wrapped, sample)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"consistency_weight": -1.0}, "--consistency-weight -1.0"),
        ({"trajectory_length": 0}, "--trajectory-length 0"),
        ({"trajectory_block": -2}, "--trajectory-block -2"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with refused(message):
        JacobiConsistency(make_task(30), 0.1, **options)
