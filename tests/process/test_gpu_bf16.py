import pytest
from fairseq import options

import fairseq_plugins  # noqa: F401
from fairseq_plugins.process.gpu_bf16 import bf16_without_tpu


@pytest.mark.parametrize("tpu", [False, True])
def test_bf16_asks_for_a_tpu_only_with_tpu(tpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq's own parser always does, and its trainer then fails without PyTorch's package for TPUs."""
    arguments = ["data", "--task", "spec_dec", "--arch", "transformer", "--bf16", *(["--tpu"] if tpu else [])]
    monkeypatch.setattr(options, "parse_args_and_arch", options.parse_args_and_arch)  # is put back
    bf16_without_tpu()
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=arguments)
    assert args.bf16 and args.tpu == tpu
