import pytest
from fairseq import options

import fairseq_plugins  # noqa: F401


@pytest.mark.parametrize("tpu", [False, True])
def test_bf16_asks_for_a_tpu_only_with_tpu(tpu: bool) -> None:
    """fairseq's own parser always does, and its trainer then fails without PyTorch's package for TPUs."""
    arguments = ["data", "--task", "spec_dec", "--arch", "transformer", "--bf16", *(["--tpu"] if tpu else [])]
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=arguments)
    assert args.bf16 and args.tpu == tpu
