"""Attention and alignments of finished outputs, by one pass of the models over whole outputs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.utils import extract_hard_alignment
from torch import Tensor

from fairseq_plugins.checkpoint.session import using_beam
from fairseq_plugins.errors import ConfigurationError

# fairseq's `utils.extract_hard_alignment` or `extract_soft_alignment`:
# (attention [T, S], source [S], target [T], padding, EOS) -> alignment
Extract = Callable[[Tensor, Tensor, Tensor, int, int], list[Any]]


def align_to_text(
    added: tuple[int, int], attention: Tensor, source: Tensor, target: Tensor, pad: int, eos: int
) -> list[tuple[int, int]]:
    """Return the hard alignment [(source, target)] to the subwords of the text, an `Extract` but for `added`.

    Args:
        added: numbers of tokens before and after the text's, such as its language and EOS.
        attention: [T, S], of the output `target` [T] to the source [S], which may be padded.
    """
    places = (source != pad).nonzero().flatten()
    before, after = added
    source = source.clone()
    source[places[:before]] = source[places[len(places) - after :]] = pad
    pairs: list[tuple[int, int]] = extract_hard_alignment(attention, source, target, pad, eos)
    return pairs


def align(
    models: Sequence[FairseqEncoderDecoderModel],
    sample: dict[str, Any],
    hypotheses: list[list[dict[str, Any]]],
    extract: Extract,
    symbols: tuple[int, int],
    first_token: int,
) -> None:
    """Fill `attention` [S, T] and `alignment` of all hypotheses, as fairseq's `SequenceGeneratorWithAlignment` does.

    Attention is the mean over the heads of the layer that the model names, and over the models. fairseq's models with
    `full_context_alignment` align by attention to the whole output (Garg et al. 2019).

    Args:
        models: those that decoded the batch `sample` to these `hypotheses` of each sentence.
        extract: makes an alignment of attention.
        symbols: padding and EOS.
        first_token: first token of every output.

    Raises:
        ConfigurationError: for models without attention to the source.
    """
    pad, eos = symbols
    flat = [hypothesis for of_sentence in hypotheses for hypothesis in of_sentence]
    if not flat:
        return
    source = sample["net_input"]["src_tokens"]
    sentences = [number for number, of_sentence in enumerate(hypotheses) for _ in of_sentence]
    rows = torch.tensor(sentences, device=source.device)
    net_input = {name: value for name, value in sample["net_input"].items() if name != "prev_output_tokens"}

    def previous(first: int, after: int) -> Any:
        return collate_tokens([hypothesis["tokens"] for hypothesis in flat], after, first, move_eos_to_beginning=True)

    def mean(of_models: Iterable[dict[str, Any] | None]) -> Tensor:
        weights = [((extra or {}).get("attn") or [None])[0] for extra in of_models]
        if any(of_model is None for of_model in weights):
            problem = "the model has no attention to the source"
            raise ConfigurationError("--print-alignment", None, problem, "leave it out")
        return torch.stack([of_model.float() for of_model in weights if of_model is not None]).mean(0)

    def shown(model: FairseqEncoderDecoderModel) -> Any:
        encoded = model.encoder.reorder_encoder_out(model.encoder.forward_torchscript(net_input), rows)
        # Earlier positions see nothing after an output. With padding there, torch warns of a second mask.
        return model.decoder(previous(first_token, eos), encoder_out=encoded, features_only=True)[1]

    # Each row has encoder states of its own. BART's layers would share them among as many rows as the last beam had.
    with torch.no_grad(), using_beam(models, 1):
        attention = aligned = mean(map(shown, models))
        if any(getattr(model, "full_context_alignment", False) for model in models):
            whole = source[rows], sample["net_input"]["src_lengths"][rows], previous(eos, pad)
            aligned = mean(model(*whole)[1] for model in models)
    for hypothesis, own, of_alignment, sentence in zip(flat, attention, aligned.cpu(), sentences, strict=True):
        tokens = hypothesis["tokens"]
        hypothesis["attention"] = own[: len(tokens)].t()
        hypothesis["alignment"] = extract(of_alignment[: len(tokens)], source[sentence].cpu(), tokens.cpu(), pad, eos)
