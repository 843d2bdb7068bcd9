"""The losses: normalisation independent of the split of a batch, and logs."""

import math
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.logging import metrics

from fairseq_plugins.criterions.blockwise_loss import BlockwiseLoss
from fairseq_plugins.criterions.glat_loss import GlatLoss
from fairseq_plugins.data.block_masking import sample_blocks
from fairseq_plugins.errors import flag
from fairseq_plugins.models.block_nat import BlockNat
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer, blockwise_transformer
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.errors import error_about
from tests.support import make_args, make_drafter, make_sample, make_task


def train_sample(task: SpecDecTask, lengths: list[int], model: BlockNat | None, ratio: float = 0.0) -> dict[str, Any]:
    """A batch whose target is its source, with blocks for a drafter."""
    sample = make_sample(task, lengths)
    source = sample["net_input"]["src_tokens"]
    order = torch.argsort((source == 1).long(), dim=1, stable=True)
    target = source.gather(1, order)
    previous = torch.where(target == 2, 1, target).roll(1, 1)
    previous[:, 0] = 2
    sample["target"], sample["net_input"]["prev_output_tokens"] = target, previous
    if model is not None:
        generator = torch.Generator().manual_seed(0)
        sample["blocks"] = sample_blocks(target, previous, 3, 2, "prefix-causal", 1, model.decoder.mask_id, generator)
        sample["glancing_ratio"] = ratio
    return sample


def part_of(sample: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Some sentences of a batch, blocks included."""
    blocks = sample["blocks"]
    part = {name: value[rows] for name, value in sample["net_input"].items()}
    few = type(blocks)(blocks.tokens[rows], blocks.positions[rows], blocks.visible[rows], blocks.targets[rows], 3)
    return {"net_input": part, "target": sample["target"][rows], "ntokens": 1, "blocks": few, "glancing_ratio": 0.0}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_split_batches_give_the_same_gradient(smoothing: float) -> None:
    """--update-freq and workers sum losses and sample sizes, and fairseq divides once."""
    task = make_task(30)
    model = make_drafter(task, 0)
    criterion = GlatLoss(task, smoothing)
    sample = train_sample(task, [9, 1, 4, 6], model)

    def gradient(parts: list[slice]) -> torch.Tensor:
        model.zero_grad()
        total = 0
        for rows in parts:
            loss, size, _ = criterion(model, part_of(sample, rows))
            loss.backward()
            total += size
        return model.decoder.layers[0].fc1.weight.grad / total

    whole = gradient([slice(0, 4)])
    torch.testing.assert_close(gradient([slice(0, 1), slice(1, 4)]), whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradient([slice(0, 2), slice(2, 3), slice(3, 4)]), whole, rtol=1e-4, atol=1e-6)


def test_logging_outputs_of_workers_are_summed() -> None:
    task = make_task(30)
    model = make_drafter(task, 0)
    criterion = GlatLoss(task, 0.1)
    assert criterion.logging_outputs_can_be_summed()
    logs = [criterion(model, train_sample(task, lengths, model, 0.4))[2] for lengths in ([5, 2], [7], [1, 1, 3])]
    summed = {name: sum(log[name] for log in logs) for name in logs[0]}
    values = []
    for outputs in (logs, [summed]):
        with metrics.aggregate() as aggregator:
            criterion.reduce_metrics(outputs)
        values.append(aggregator.get_smoothed_values())
    assert values[0] == values[1]
    assert values[0]["glancing_ratio"] == pytest.approx(0.4)
    assert 0 <= values[0]["glancing_accuracy"] <= 100
    assert {"loss", "nll_loss", "ppl", "accuracy"} <= values[0].keys()


def make_blockwise(task: SpecDecTask, **options: Any) -> BlockwiseTransformer:
    torch.manual_seed(0)
    args = make_args(**{"blockwise_heads": 3, **options})
    blockwise_transformer(args)
    return BlockwiseTransformer.build_model(args, task)


@pytest.mark.parametrize(("lengths", "first_head_weight"), [([5, 2, 1], 2.5), ([1, 0], 1.0)])
def test_head_i_learns_the_ith_next_token(lengths: list[int], first_head_weight: float) -> None:
    """Summed over heads by hand; short batches train the first heads only."""
    task = make_task(30)
    model = make_blockwise(task).eval()
    sample = train_sample(task, lengths, None)
    with torch.no_grad():
        loss, size, logged = BlockwiseLoss(task, 0.0, "mean", first_head_weight)(model, sample)
    expected, count = 0.0, 0.0
    for head, scores in enumerate(model(**sample["net_input"], heads=[1, 2, 3]), 1):
        for row in range(len(lengths)):
            for place in range(sample["target"].size(1) - head + 1):
                target = int(sample["target"][row, place + head - 1])
                if target != 1:
                    weight = first_head_weight if head == 1 else 1.0
                    expected -= weight * float(scores[row, place].detach().log_softmax(-1)[target])
                    count += weight
    assert size == count and float(loss) == pytest.approx(expected, rel=1e-5)
    assert [int(logged[f"total_{head}"]) for head in (1, 2, 3)] == ([11, 8, 5] if len(lengths) == 3 else [3, 1, 0])


def test_head_sampling() -> None:
    task = make_task(30)
    criterion = BlockwiseLoss(task, 0.1, "sampled", 1.0)
    sample = train_sample(task, [5, 2], None)
    torch.manual_seed(0)
    free, frozen = make_blockwise(task), make_blockwise(task, freeze_base=True, identity_first_head=True)

    def trained(model: BlockwiseTransformer) -> set[int]:
        with mock.patch.object(model, "forward", wraps=model.forward) as forward:
            criterion(model, sample)
        return set(forward.call_args.kwargs["heads"])

    for model, heads in ((free.train(), {1, 2, 3}), (frozen.train(), {2, 3})):
        drawn = [trained(model) for _ in range(20)]
        assert all(len(of_batch) == 1 for of_batch in drawn)
        assert set.union(*drawn) == heads
        with torch.no_grad():
            assert trained(model) == heads
    criterion = BlockwiseLoss(task, 0.1, "sampled", 10.0)
    drawn = [trained(free) for _ in range(40)]
    assert drawn.count({1}) > 25


def test_frozen_base_gets_no_gradient() -> None:
    task = make_task(30)
    model = make_blockwise(task, freeze_base=True, identity_first_head=True).train()
    assert not model.training
    criterion = BlockwiseLoss(task, 0.1, "mean", 1.0)
    criterion(model, train_sample(task, [5, 2], None))[0].backward()
    with_gradient = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    heads = {f"decoder.head_{part}.{kind}" for part in ("expand", "shrink") for kind in ("weight", "bias")}
    assert with_gradient == heads


def test_every_weight_has_a_gradient_with_each_head() -> None:
    """PyTorch's data parallelism waits for it; an identity first head has no weights of its own."""
    task = make_task(30)
    model = make_blockwise(task, identity_first_head=True).train()
    loss = BlockwiseLoss(task, 0.1, "sampled", 1e9)(model, train_sample(task, [5, 2], None))[0]
    loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0])
def test_a_loss_of_no_numbers_is_refused(number: float) -> None:
    task = make_task()
    for loss, name in ((GlatLoss, "position_decay"), (GlatLoss, "verifier_loss"), (BlockwiseLoss, "first_head_weight")):
        others = {"head_loss": "mean"} if loss is BlockwiseLoss else {}
        with error_about(flag(name)):
            loss(task, label_smoothing=0.1, **others, **{name: number})
    with error_about("--label-smoothing", "give a number from 0 to below 1"):
        GlatLoss(task, number)
