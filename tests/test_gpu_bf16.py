from fairseq import options

import fairseq_plugins  # noqa: F401


def test_bf16_asks_for_no_tpu() -> None:
    """fairseq's own parser sets --tpu, and its trainer then fails without PyTorch's package for TPUs."""
    arguments = ["data", "--task", "spec_dec", "--arch", "transformer", "--bf16"]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=arguments)
    assert args.bf16 and not args.tpu
