"""Count accepted drafted tokens on a validation set, and store the counts in the drafter's checkpoint."""

from pathlib import Path

import torch

from fairseq_plugins.checkpoint.averaging import write_checkpoint
from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.decoding.trained_drafter import store_survival
from fairseq_plugins.shared.parsing import as_config, generation_parser, parse_arguments


def measure(
    data: Path,
    verifier: Path,
    drafter: Path,
    *,
    languages: tuple[str, str] | None = None,
    subset: str = "valid",
    batch_size: int = 32,
) -> str:
    """Store acceptance counts in the drafter's checkpoint, as validations on a CPU do in training.

    Args:
        data: binarised data.
        verifier: checkpoint of the verifier.
        drafter: checkpoint of the drafter, rewritten with the counts that initialise the policy of --decoder gad.
        languages: of source and target (default: from the names of files).
        subset: name of the validation set.
        batch_size: sentences in a batch.

    Returns:
        a line with the tokens per iteration when whole drafts are verified.

    Raises:
        ConfigurationError: for a checkpoint that cannot be read, and models that do not fit each other.
    """
    line = [str(data), "--path", str(verifier), "--drafter-path", str(drafter), "--decoder", "gad"]
    if languages is not None:
        line += ["--source-lang", languages[0], "--target-lang", languages[1]]
    options = as_config(parse_arguments(generation_parser("measure-survival"), [*line, "--cpu", "--beam", "1"]))
    session = TaskSession(options)
    session.task.decoding.counts_survival = True
    generator = session.generator()
    dataset = session.load(subset)
    for sample in session.batches(dataset, session.usable(dataset), batch_size):
        session.decode(generator, sample)
    model = session.task.decoding.drafters[str(drafter)]
    store_survival(generator.backend.method.policy, model)
    state = torch.load(drafter, map_location="cpu")
    state["model"]["decoder.survival_counts"] = model.decoder.survival_counts
    write_checkpoint(drafter, state, "drafter")
    tokens = generator.stats.tokens_per_iteration
    return f"{drafter}: {tokens:.2f} tokens per iteration on {subset}; survival counts are stored in it"
