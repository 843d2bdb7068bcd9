"""Decode with a model of transformers, in the Python of its own environment: optimum needs an older transformers.

    PYTHON generate_worker.py FOLDER RUNTIME

FOLDER/hf has the model, exported ones are kept beside it. RUNTIME is transformers, onnxruntime or openvino; with
weights in int8: "openvino int8". It reads lines of JSON, [options, sources], and answers each with the ids of the
outputs.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch


def load_openvino(folder: Path, is_int8: bool) -> Any:
    """Load a model into OpenVINO, in fp32 or with weights in int8, as optimum rounds them."""
    from optimum.intel import OVModelForSeq2SeqLM, OVWeightQuantizationConfig

    exported = folder / ("openvino-int8" if is_int8 else "openvino")
    # Without the hints OpenVINO computes in bfloat16 where a processor has it, and on all cores.
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    options: dict[str, Any] = {"ov_config": hints}
    if not exported.exists():
        rounding = {"quantization_config": OVWeightQuantizationConfig(bits=8)} if is_int8 else {}
        OVModelForSeq2SeqLM.from_pretrained(folder / "hf", export=True, **options, **rounding).save_pretrained(exported)
    return OVModelForSeq2SeqLM.from_pretrained(exported, **options)


def load_onnxruntime(folder: Path, is_int8: bool) -> Any:
    """Load a model into ONNX Runtime, in fp32 or in int8, as optimum rounds it."""
    from onnxruntime import SessionOptions
    from optimum.onnxruntime import ORTModelForSeq2SeqLM, ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    exported, rounded = folder / "onnx", folder / "onnx-int8"
    if not exported.exists():
        ORTModelForSeq2SeqLM.from_pretrained(folder / "hf", export=True).save_pretrained(exported)
    threads = SessionOptions()
    threads.intra_op_num_threads = torch.get_num_threads()
    if not is_int8:
        return ORTModelForSeq2SeqLM.from_pretrained(exported, session_options=threads)
    if not rounded.exists():
        how = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
        for part in sorted(exported.glob("*.onnx")):
            ORTQuantizer.from_pretrained(exported, file_name=part.name).quantize(how, rounded)
        for name in ("config.json", "generation_config.json"):
            (rounded / name).write_bytes((exported / name).read_bytes())
    names = {
        f"{part}_file_name": f"{part}_model_quantized.onnx" for part in ("encoder", "decoder", "decoder_with_past")
    }
    return ORTModelForSeq2SeqLM.from_pretrained(rounded, **names, use_merged=False, session_options=threads)


def load(folder: Path, runtime: str) -> Any:
    """Load the model into a runtime."""
    name, _, precision = runtime.partition(" ")
    if name == "transformers":
        from transformers import AutoModelForSeq2SeqLM

        return AutoModelForSeq2SeqLM.from_pretrained(folder / "hf").eval()
    return {"openvino": load_openvino, "onnxruntime": load_onnxruntime}[name](folder, bool(precision))


def generate(model: Any, sources: list[list[int]], options: dict[str, Any]) -> list[list[int]]:
    """Return the ids of outputs, without what the decoder begins with."""
    tokens = torch.tensor(sources)
    outputs = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, **options)
    ids: list[list[int]] = outputs[:, 2:].tolist()
    return ids


def main() -> None:
    torch.set_num_threads(1)
    model = load(Path(sys.argv[1]), sys.argv[2])
    print("ready", flush=True)
    for line in sys.stdin:
        options, sources = json.loads(line)
        print(json.dumps(generate(model, sources, options)), flush=True)


if __name__ == "__main__":
    main()
