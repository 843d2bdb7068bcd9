"""The options of the tasks: those of decoding, which stand beside any task's, and those of training drafters."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks.translation import TranslationConfig
from omegaconf import II

from fairseq_plugins.decoding import methods


# fairseq builds its parser from these annotations and knows Optional[X], not X | None.
@dataclass
class _DecodingOptions(FairseqDataclass):
    # Not named `decoder`: fairseq's Transformer takes an option of that name for its own settings.
    decoding_method: ChoiceEnum(methods.DECODERS) = field(  # type: ignore[valid-type]
        default="beam", metadata={"argparse_alias": "--decoder", "help": methods.decoder_help()}
    )
    drafter_path: Optional[str] = field(
        default=None, metadata={"help": "checkpoint of the drafter (model block_nat) for nat, gad and gad++"}
    )
    block_size: Optional[int] = field(
        default=None,
        metadata={
            "help": "tokens per draft, k. In training: masks per block (default: 25, GAD Table 2); in decoding: at "
            "most what the drafter was trained with, which is the default; reuse: tokens copied at most (default: 32); "
            "gs-jacobi, hybrid-jacobi: tokens solved together, b (default: 5)"
        },
    )
    active_sentences: int = field(
        default=0,
        metadata={
            "help": "decode this many sentences of a batch at a time; others replace finished ones, so that the batch "
            "does not drain; give a --batch-size several times as large (default: 0, the whole batch). All decoders "
            "but beam; the same output. The compiled kernels replace sentences by themselves and ignore it"
        },
    )
    no_compiled_steps: bool = field(
        default=False,
        metadata={"help": "CPU: run on PyTorch's operations instead of the compiled kernels, which are faster"},
    )
    int8: bool = field(
        default=False,
        metadata={
            "help": "CPU: decode with the weights of linear layers rounded to int8, in verifier and drafter alike. "
            "Lossy: the output may differ from that in fp32; with and without drafts it is the same one. The fp32 "
            "weights stay in memory. All decoders but beam"
        },
    )
    packed_weights: bool = field(
        default=False,
        metadata={
            "help": "CPU: hold the weights of all large layers a second time, in the order in which the compiled "
            "kernels read them fastest. Where float16 holds them exactly (models saved in half precision) that is done "
            "without this, for half as much memory again, and of small layers always"
        },
    )
    no_packed_weights: bool = field(
        default=False,
        metadata={"help": "CPU: read the weights of large layers where fairseq has them: slower, with least memory"},
    )
    no_cuda_graphs: bool = field(
        default=False,
        metadata={
            "help": "GPU: launch every operation of a step by itself instead of one CUDA graph of all, to compare or "
            "where capturing fails; without effect on a CPU"
        },
    )
    verbose: bool = field(
        default=False, metadata={"help": "fairseq-generate, fairseq-interactive: log all settings at the start"}
    )
    stats_file: Optional[str] = field(
        default=None,
        metadata={"help": "write iterations, accepted tokens and time of every sentence there, as JSON lines"},
    )
    trace_file: Optional[str] = field(
        default=None,
        metadata={
            "help": "write every draft and what the verifier made of it there, as JSON lines; look at it with "
            "spec-dec-trace"
        },
    )
    tensorboard_logdir: Optional[str] = II("common.tensorboard_logdir")
    profile: bool = II("common.profile")
    bf16: bool = II("common.bf16")


# The options of the decoding methods stand with the methods.
DecodingOptions = methods.with_method_options(_DecodingOptions)


@dataclass
class DrafterTrainingOptions(FairseqDataclass):
    """Options of training drafters."""

    verifier_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "drafter training: the verifier, for --share-encoder and for mean_accepted_tokens in validation "
            "(use it with --best-checkpoint-metric mean_accepted_tokens --maximize-best-checkpoint-metric)"
        },
    )
    blocks_per_sentence: int = field(
        default=1,
        metadata={"help": "drafter training: blocks per sentence and pass, more than 1 with prefix-causal attention"},
    )
    glancing_start: float = field(
        default=0.5,
        metadata={
            "help": "share of wrong predictions revealed at the first update (Qian et al. 2021); 0 with "
            "--glancing-end 0: no glancing"
        },
    )
    glancing_end: float = field(default=0.3, metadata={"help": "the same at the last update"})
    glancing_updates: Optional[int] = field(
        default=None, metadata={"help": "updates over which the share falls (default: --max-update)"}
    )
    cpu_bf16: bool = field(
        default=False,
        metadata={
            "help": "training on a CPU: multiply matrices in bfloat16 (autocast; weights, loss and optimiser stay in "
            "fp32), faster where the processor has AVX-512 BF16 or AMX; on a GPU use fairseq's --bf16"
        },
    )
    max_update: int = II("optimization.max_update")


@dataclass
class FirstTokenOptions(FairseqDataclass):
    """Options of multilingual models, which read and write a language first."""

    source_first_token: Optional[str] = field(
        default=None,
        metadata={
            "help": "raw text (fairseq-interactive): put this token before every source, such as the language that "
            "M2M-100 and NLLB read first. Binarised sources hold it"
        },
    )
    forced_first_token: Optional[str] = field(
        default=None,
        metadata={
            "help": "begin every output with this token, such as the language to translate into, and leave it out of "
            "the text"
        },
    )


@dataclass
class SpecDecConfig(
    FirstTokenOptions,
    DrafterTrainingOptions,
    DecodingOptions,  # type: ignore[misc,valid-type]
    TranslationConfig,
):
    """Options of the task `spec_dec`."""
