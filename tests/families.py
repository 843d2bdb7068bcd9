"""Small random models of popular architectures, each with its own fairseq task.

`python -m tests.families` writes the table of docs/models.md.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import nn

from fairseq_plugins.checkpoint.averaging import new_checkpoint
from fairseq_plugins.data.block_masking import sample_blocks
from fairseq_plugins.models.block_nat import BlockNat, block_nat_base
from fairseq_plugins.tasks.with_drafts import with_args
from tests.options_page import write
from tests.support import REPOSITORY, liven, make_args, make_dictionary

PAGE = REPOSITORY / "docs" / "models.md"

VOCABULARY = 60
LANGUAGES = ("de", "en", "fr")
SENTENCES = 18
MAX_LEN = 16


@dataclass(frozen=True)
class Family:
    """Models of one kind.

    Attributes:
        names: well-known models of the architecture, for the table.
        task: fairseq's task.
        arch: fairseq's architecture.
        task_options: the task's options on the command line, besides the languages.
        model_options: options of the released models.
        shares_vocabulary: whether source tokens can be copied into the output.
    """

    names: str
    task: str
    arch: str
    task_options: tuple[str, ...] = ()
    model_options: tuple[tuple[str, Any], ...] = ()
    shares_vocabulary: bool = True

    @property
    def decoders(self) -> dict[str, tuple[int, ...]]:
        """Return the tested decoders, with the beams of each."""
        greedy = ("greedy", "gad", "jacobi", "iad") if self.shares_vocabulary else ("greedy", "jacobi")
        return {**dict.fromkeys(greedy, (1,)), "fast-beam": (1, 5)}

    def set_up(self, folder: Path) -> Any:
        """Write the task's dictionaries into a folder, and set the task up."""
        for language in LANGUAGES:
            make_dictionary(VOCABULARY).save(str(folder / f"dict.{language}.txt"))
        (folder / "languages.txt").write_text("".join(f"{language}\n" for language in LANGUAGES))
        (folder / "config.yaml").write_text("vocab_filename: dict.de.txt\ninput_feat_per_channel: 80\n")
        argv = [str(folder), "--task", self.task, *self.arguments(folder)]
        parser = options.get_generation_parser(default_task=self.task)
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, argv))
        return with_args(tasks.setup_task(cfg.task))

    def arguments(self, folder: Path) -> list[str]:
        """Return the task's options for a folder that `set_up` filled."""
        languages = [] if self.task == "speech_to_text" else ["--source-lang", "en", "--target-lang", "de"]
        return [*languages, *(option.format(folder=folder) for option in self.task_options)]

    def model(self, task: Any) -> tuple[nn.Module, Namespace]:
        """Make a random model whose outputs end at different lengths, and its options as a checkpoint has them."""
        own = vars(task.args) if isinstance(getattr(task, "args", None), Namespace) else {}
        named = make_args(arch=self.arch, _name=self.arch, task=self.task, **dict(self.model_options))
        args = Namespace(**{**own, **vars(named)})
        ARCH_CONFIG_REGISTRY[self.arch](args)
        samples = list(self.batches(task, SENTENCES))
        for seed in range(10):
            torch.manual_seed(seed)
            model = _enliven(task.build_model(args))
            if _let_outputs_end(model, task, samples):
                return model, args
        raise AssertionError(f"{self.names}: no random model whose outputs end at different lengths")

    def save(self, folder: Path) -> tuple[Any, nn.Module]:
        """Write a random model to model.pt beside the dictionaries; return its task and itself."""
        task = self.set_up(folder)
        model, args = self.model(task)
        torch.save(new_checkpoint(model.state_dict(), args=args), folder / "model.pt")
        return task, model

    def train_drafter(self, task: Any, model: nn.Module, path: Path) -> None:
        """Write a drafter that reads the model's states, after twenty updates on the model's own outputs."""
        torch.manual_seed(0)
        args = make_args(arch="block_nat", _name="block_nat", block_size=4, drafter_context="features")
        block_nat_base(args)
        drafter = BlockNat.build_model(args, task, verifier=model).train()
        (sample,) = self.batches(task, SENTENCES)
        outputs = [torch.tensor(hypotheses[0]) for hypotheses in generate(self, task, model, 1, SENTENCES)]
        target = nn.utils.rnn.pad_sequence(outputs, True, task.target_dictionary.pad())
        fed = F.pad(target[:, :-1], (1, 0), value=task.target_dictionary.eos())
        source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
        optimizer = torch.optim.Adam([weight for weight in drafter.parameters() if weight.requires_grad], 0.01)
        for _ in range(20):
            blocks = sample_blocks(target, fed, 4, 2, "features", task.target_dictionary.pad(), drafter.decoder.mask_id)
            output = drafter(**source, blocks=blocks)
            optimizer.zero_grad()
            F.cross_entropy(output["logits"], output["targets"]).backward()
            optimizer.step()
        torch.save(new_checkpoint(drafter.state_dict(), args=args), path)

    def batches(self, task: Any, size: int) -> Iterator[dict[str, Any]]:
        """Yield batches of random sentences, or of speech, as the task makes them for inference."""
        torch.manual_seed(1)
        if self.task == "speech_to_text":
            speech = [torch.randn(12 + 5 * (number % 9), 80) for number in range(SENTENCES)]
            for first in range(0, SENTENCES, size):
                yield _speech_batch(speech[first : first + size])
            return
        lengths = [1 + 3 * number % 11 for number in range(SENTENCES)]
        sources = [torch.cat([torch.randint(4, VOCABULARY, (length,)), torch.tensor([2])]) for length in lengths]
        for first in range(0, SENTENCES, size):
            some = sources[first : first + size]
            dataset = task.build_dataset_for_inference(some, torch.tensor([len(source) for source in some]))
            np.random.seed(1)
            # Draws an order; without it the dataset of multilingual_translation is empty.
            dataset.ordered_indices()
            yield dataset.collater([dataset[number] for number in range(len(some))])


MULTILINGUAL = ("--lang-pairs", "en-de,en-fr", "--decoder-langtok")
FROM_SOURCE = (*MULTILINGUAL, "--encoder-langtok", "src", "--lang-dict", "{folder}/languages.txt")
FAMILIES = {
    "m2m": Family(
        "M2M-100, NLLB-200",
        "translation_multi_simple_epoch",
        "transformer_wmt_en_de_big",
        FROM_SOURCE,
        (("share_all_embeddings", True), ("encoder_normalize_before", True), ("decoder_normalize_before", True)),
    ),
    "mbart50": Family(
        "mBART-50",
        "translation_multi_simple_epoch",
        "mbart_large",
        (*FROM_SOURCE, "--lang-tok-style", "mbart"),
    ),
    "mbart25": Family(
        "mBART-25", "translation_from_pretrained_bart", "mbart_large", ("--langs", ",".join(LANGUAGES), "--prepend-bos")
    ),
    "multilingual": Family(
        "`multilingual_transformer`",
        "multilingual_translation",
        "multilingual_transformer",
        (*MULTILINGUAL, "--encoder-langtok", "tgt"),
    ),
    "bart": Family("BART", "translation", "bart_large"),
    "s2t": Family(
        "Speech to text (`s2t_transformer`)",
        "speech_to_text",
        "s2t_transformer_s",
        ("--config-yaml", "config.yaml"),
        (("max_source_positions", 100), ("conv_channels", 16), ("conv_kernel_sizes", "3,3")),
        shares_vocabulary=False,
    ),
}


def generate(family: Family, task: Any, model: nn.Module, beam: int, size: int, **limits: Any) -> list[list[list[int]]]:
    """Decode all sentences of a family as fairseq-generate does; return the token ids of each one's hypotheses."""
    settings = {"beam": beam, "nbest": beam, "max_len_a": 0, "max_len_b": MAX_LEN, "prefix_size": 0, **limits}
    generator = task.build_generator([model], Namespace(**settings))
    for layer in model.decoder.layers if hasattr(model, "set_beam_size") else ():
        layer.encoder_attn.set_beam_size(generator.beam_size)  # fairseq's BART keeps the beam of the last search
    return [
        [hypothesis["tokens"].tolist() for hypothesis in hypotheses]
        for sample in family.batches(task, size)
        for hypotheses in task.inference_step(generator, [model], sample)
    ]


def table() -> str:
    """Return which decoders are tested with which models, as a Markdown table."""
    decoders = list(FAMILIES["m2m"].decoders)
    lines = [
        "| models | `--task` | " + " | ".join(f"`{decoder}`" for decoder in decoders) + " |",
        "| --- | --- |" + " --- |" * len(decoders),
    ]
    for family in FAMILIES.values():
        beams = (", ".join(map(str, family.decoders.get(decoder, "-"))) for decoder in decoders)
        lines.append(f"| {family.names} | `{family.task}` | " + " | ".join(beams) + " |")
    return "\n".join(lines)


def _enliven(model: nn.Module) -> nn.Module:
    """Let outputs depend on the source, and not repeat their last token."""
    for parameter in model.parameters():
        if parameter.dim() == 2 and parameter.std() < 0.03:
            parameter.data *= 10  # BART's begin small
    decoder = model.decoder
    last = decoder.layer_norm if decoder.layer_norm is not None else decoder.layers[-1].final_layer_norm
    liven(model)
    nn.init.normal_(last.weight)  # embeddings that input and output share prefer the last token
    return model


def _speech_batch(speech: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return a fairseq sample of recordings [frames, 80], the longest first."""
    speech = sorted(speech, key=len, reverse=True)
    padded = nn.utils.rnn.pad_sequence(list(speech), batch_first=True)
    inputs = {"src_tokens": padded, "src_lengths": torch.tensor([len(one) for one in speech])}
    return {"id": torch.arange(len(speech)), "nsentences": len(speech), "net_input": inputs}


def _let_outputs_end(model: nn.Module, task: Any, samples: list[dict[str, Any]]) -> bool:
    """Exchange EOS with a token that gives outputs of many lengths; return whether there is one."""

    def outputs(min_len: int) -> list[list[int]]:
        settings = Namespace(beam=1, max_len_a=0, max_len_b=MAX_LEN, min_len=min_len, prefix_size=0)
        generator = task.build_generator([model], settings)
        decoded = (task.inference_step(generator, [model], sample) for sample in samples)
        return [hypotheses[0]["tokens"].tolist() for batch in decoded for hypotheses in batch]

    end = task.build_generator([model], Namespace(beam=1, prefix_size=0)).eos
    weight = model.decoder.output_projection.weight.data
    for token in sorted({token for output in outputs(MAX_LEN) for token in output[1:-1]} - {end}):
        pair = torch.tensor([token, end])
        weight[pair] = weight[pair.flip(0)]
        if len({len(output) for output in outputs(1)}) > 3:
            return True
        weight[pair] = weight[pair.flip(0)]
    return False


if __name__ == "__main__":
    write(PAGE, {"families": table()})
