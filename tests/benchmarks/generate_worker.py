"""Decode with a model of transformers, in the Python of its own environment: optimum needs an older transformers.

    PYTHON generate_worker.py FOLDER RUNTIME

RUNTIME is transformers, onnxruntime or openvino; with weights in int8: "openvino int8". It reads lines of JSON,
[options, sources], and answers each with the ids of the outputs.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch


def load(folder: Path, runtime: str, work: Path) -> Any:
    """Load a folder of transformers into a runtime. Models are exported and rounded to int8 as optimum does it."""
    name, _, precision = runtime.partition(" ")
    if name == "transformers":
        from transformers import AutoModelForSeq2SeqLM

        return AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    if name == "openvino":
        from optimum.intel import OVModelForSeq2SeqLM, OVWeightQuantizationConfig

        # Without the hint OpenVINO computes in bfloat16 where a processor has it.
        options = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}, "export": True}
        if precision:
            options["quantization_config"] = OVWeightQuantizationConfig(bits=8)
        return OVModelForSeq2SeqLM.from_pretrained(folder, **options)
    from onnxruntime import SessionOptions
    from optimum.onnxruntime import ORTModelForSeq2SeqLM, ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    threads = SessionOptions()
    threads.intra_op_num_threads = torch.get_num_threads()
    model = ORTModelForSeq2SeqLM.from_pretrained(folder, export=True, session_options=threads)
    if precision:
        model.save_pretrained(work / "onnx")
        how = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
        for part in sorted((work / "onnx").glob("*.onnx")):
            ORTQuantizer.from_pretrained(work / "onnx", file_name=part.name).quantize(how, work / "int8")
        model.config.save_pretrained(work / "int8")
        model.generation_config.save_pretrained(work / "int8")
        names = {f"{side}_file_name": f"{side}_model_quantized.onnx" for side in ("encoder", "decoder")}
        model = ORTModelForSeq2SeqLM.from_pretrained(
            work / "int8",
            **names,
            decoder_with_past_file_name="decoder_with_past_model_quantized.onnx",
            use_merged=False,
            session_options=threads,
        )
    return model


def generate(model: Any, sources: list[list[int]], options: dict[str, Any]) -> list[list[int]]:
    """Return the ids of outputs, without what the decoder begins with."""
    tokens = torch.tensor(sources)
    outputs = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, **options)
    ids: list[list[int]] = outputs[:, 2:].tolist()
    return ids


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        model = load(Path(sys.argv[1]), sys.argv[2], Path(work))
        print("ready", flush=True)
        for line in sys.stdin:
            options, sources = json.loads(line)
            print(json.dumps(generate(model, sources, options)), flush=True)


if __name__ == "__main__":
    main()
