"""Options of the tasks: those of decoding, which any task may have, and those of training drafters."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks.translation import TranslationConfig
from omegaconf import II

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.method import option


# fairseq builds its parser from these annotations and knows Optional[X], not X | None.
@dataclass
class _DecodingOptions(FairseqDataclass):
    # Not named `decoder`: fairseq's Transformer takes an option of that name for its own settings.
    decoding_method: ChoiceEnum(methods.DECODERS) = field(  # type: ignore[valid-type]
        default="beam", metadata={"argparse_alias": "--decoder", "help": methods.decoder_help()}
    )
    drafter_path: Optional[str] = option(None, "checkpoint of the drafter (model block_nat) for nat, gad and gad++")
    block_size: Optional[int] = option(
        None,
        "most tokens in a draft, k. Training: masks in a block (default: 25, GAD Table 2). Decoding with a "
        "trained drafter: k of its training at most (default: that). reuse: tokens copied at most (default: 32). "
        "gs-jacobi, hybrid-jacobi: tokens decoded in parallel, b (default: 5)",
    )
    active_sentences: int = option(
        0,
        "decode this many sentences of a batch at a time, and replace finished ones by waiting ones "
        "(continuous batching); useful with a --batch-size several times as large (default: 0, the whole batch). "
        "The compiled kernels always do this, and ignore the number",
    )
    no_compiled_steps: bool = option(
        False, "CPU: decode with PyTorch instead of the compiled kernels, which are faster"
    )
    int8: bool = option(
        False,
        "CPU: round embeddings, the weights of linear layers and their inputs to int8, in verifier and drafter. The "
        "output may differ from fp32's, but not between greedy and lossless drafting decoders. The fp32 weights stay "
        "in memory",
    )
    no_packed_weights: bool = option(
        False,
        "CPU: keep no second copy of large weights, in the layout that the compiled kernels read fastest, which saves "
        "memory and is slower. Without it they have one wherever a quarter of the available memory holds it",
    )
    no_cuda_graphs: bool = option(
        False,
        "GPU: launch the operations of a step one by one instead of as a CUDA graph, for comparison or if "
        "capturing fails",
    )
    suppress_tokens: Optional[str] = option(
        None, "never choose these tokens of the target's dictionary, separated by spaces; a given prefix may have them"
    )
    begin_suppress_tokens: Optional[str] = option(
        None, "never begin an output with these tokens, separated by spaces; after a prefix, never continue with them"
    )
    verbose: bool = option(False, "fairseq-generate, fairseq-interactive: log all settings at the start")
    stats_file: Optional[str] = option(
        None, "write iterations, emitted tokens and time of each sentence to this file, as JSON lines"
    )
    trace_file: Optional[str] = option(
        None, "write each draft and its verification to this file, as JSON lines for spec-dec-trace"
    )
    profile: bool = II("common.profile")
    bf16: bool = II("common.bf16")
    seed: int = II("common.seed")


# Methods declare their own options (decoding/methods).
DecodingOptions = methods.with_method_options(_DecodingOptions)


@dataclass
class DrafterTrainingOptions(FairseqDataclass):
    """Options of training drafters."""

    verifier_path: Optional[str] = option(
        None,
        "drafter training: checkpoint of the verifier, for --share-encoder and to measure "
        "tokens_per_iteration in validation (add --best-checkpoint-metric tokens_per_iteration "
        "--maximize-best-checkpoint-metric)",
    )
    blocks_per_sentence: int = option(
        1, "drafter training: blocks drawn from each sentence in a pass; more than 1 needs prefix-causal attention"
    )
    glancing_start: float = option(
        0.5,
        "glancing: share of wrong predictions revealed at the first update (Qian et al. 2021); 0 here and "
        "in --glancing-end turns glancing off",
    )
    glancing_end: float = option(0.3, "glancing: share revealed at the last update")
    glancing_updates: Optional[int] = option(
        None, "glancing: updates over which the share falls (default: --max-update)"
    )
    cpu_bf16: bool = option(
        False,
        "training on a CPU: multiply matrices in bfloat16 (autocast; weights, loss and optimiser stay in "
        "fp32), which is faster on processors with AVX-512 BF16 or AMX; on a GPU use fairseq's --bf16",
    )
    max_update: int = II("optimization.max_update")


@dataclass
class FirstTokenOptions(FairseqDataclass):
    """Options of multilingual models, whose sources and outputs begin with a language token."""

    source_first_token: Optional[str] = option(
        None,
        "fairseq-interactive: put this token before each source, such as the language token of M2M-100 and "
        "NLLB. Binarised sources have it already",
    )
    forced_first_token: Optional[str] = option(
        None,
        "begin each output with this token, such as that of the language to translate into, and leave it "
        "out of the text",
    )


@dataclass
class SpecDecConfig(
    FirstTokenOptions,
    DrafterTrainingOptions,
    DecodingOptions,  # type: ignore[misc,valid-type]
    TranslationConfig,
):
    """Options of the task `spec_dec`."""

    # fairseq's default, -1, fails for a folder with several training sets (train, train1, ...).
    upsample_primary: int = option(
        1, "repeat the first training set this many times in an epoch, beside those of train1, train2, ..."
    )
