"""Train models on a few sentences in seconds, since drafts of random drafters are never accepted."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerModel
from torch import Tensor, nn

from fairseq_plugins.criterions.glat_loss import GlatLoss
from fairseq_plugins.models.block_nat import BlockNat
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.support import make_drafter, make_transformer


def learned_drafter(
    task: SpecDecTask,
    verifier: Any,
    sample: dict[str, Any],
    outputs: list[list[int]],
    sentences: int = 12,
    updates: int = 90,
    **options: Any,
) -> BlockNat:
    """Train a drafter on a verifier's outputs; return it in eval mode.

    Args:
        task: for the dictionary and training blocks.
        verifier: the model to draft for.
        sample: the batch.
        outputs: the verifier's for it, with EOS.
        sentences: number of sentences to train on, the first ones.
        updates: number of updates.
        options: as for `make_drafter`.
    """
    torch.manual_seed(0)
    model, batch = make_drafter(task, 9, verifier=verifier, **options), _batch(task, sample, outputs[:sentences])
    criterion = GlatLoss(task, 0.0)

    def loss() -> Tensor:
        task._add_blocks(batch, model, 0.0)
        total, size, _ = criterion(model, batch)
        return total / size

    return _learn(model, loss, updates)


def learned_rewriter(task: SpecDecTask, sample: dict[str, Any]) -> TransformerModel:
    """Train a stock Transformer to copy the sources of a batch, with one word changed in every second one."""
    dictionary = task.target_dictionary
    outputs = []
    for row, source in enumerate(sample["net_input"]["src_tokens"].tolist()):
        output = [token for token in source if token != dictionary.pad()]
        if row % 2:
            others = len(dictionary) - dictionary.nspecial
            output[len(output) // 2] = dictionary.nspecial + output[0] % others
        outputs.append(output)
    model, batch = make_transformer(task, ending=False), _batch(task, sample, outputs)

    def loss() -> Tensor:
        logits = model(**batch["net_input"])[0].flatten(0, 1)
        return F.cross_entropy(logits, batch["target"].flatten(), ignore_index=task.target_dictionary.pad())

    return _learn(model, loss, 80)


def _batch(task: SpecDecTask, sample: dict[str, Any], outputs: list[list[int]]) -> dict[str, Any]:
    """Return the first sentences of a batch with targets, as in training."""
    pad, eos = task.target_dictionary.pad(), task.target_dictionary.eos()
    width = max(map(len, outputs))
    target = torch.tensor([output + [pad] * (width - len(output)) for output in outputs])
    previous = target.masked_fill(target == eos, pad).roll(1, 1)
    previous[:, 0] = eos
    source = {name: sample["net_input"][name][: len(outputs)] for name in ("src_tokens", "src_lengths")}
    net_input = {**source, "prev_output_tokens": previous}
    return {"target": target, "ntokens": sum(map(len, outputs)), "net_input": net_input}


def _learn(model: nn.Module, loss: Callable[[], Tensor], updates: int) -> Any:
    model.train()
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)
    # With a constant learning rate the last updates, and with them a test's result, depend on the processor.
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, updates)
    for _ in range(updates):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()
    return model.eval()
