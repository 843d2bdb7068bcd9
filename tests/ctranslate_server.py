"""A server of FastAPI and CTranslate2 that batches waiting sentences, for `python -m tests.load ... beside`.

Two threads, as programs in the field do: each takes what waits, up to 32 sentences, and decodes it as a batch.
"""

import argparse
import queue
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2
import sentencepiece
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from fairseq_plugins.benchmarks.ctranslate import convert

Waiting = queue.SimpleQueue[tuple[list[str], "Future[list[str]]"]]


class Asked(BaseModel):
    """LibreTranslate's fields."""

    q: list[str]
    source: str
    target: str


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--converted", default="/tmp/spec-dec-ctranslate2")
    args = parser.parse_args()
    source, target = Path(args.folder).name.split(".")[-1].split("-")
    setting = SimpleNamespace(data=args.folder, source_lang=source, target_lang=target)
    model = convert(f"{args.folder}/verifier.pt", setting, Path(args.converted))
    translator = ctranslate2.Translator(str(model), inter_threads=args.threads, intra_threads=1)
    subwords = sentencepiece.SentencePieceProcessor(model_file=f"{args.folder}/subwords.model")
    waiting: Waiting = queue.SimpleQueue()

    def work() -> None:
        while True:
            batch = [waiting.get()]
            while len(batch) < 32:
                try:
                    batch.append(waiting.get_nowait())
                except queue.Empty:
                    break
            results = translator.translate_batch([tokens for tokens, _ in batch], beam_size=1, max_decoding_length=200)
            for (_, future), result in zip(batch, results, strict=True):
                future.set_result(result.hypotheses[0])

    for _ in range(args.threads):
        threading.Thread(target=work, daemon=True).start()
    app = FastAPI()

    @app.post("/translate")
    def translate(asked: Asked) -> dict[str, Any]:
        futures: list[Future[list[str]]] = []
        for text in asked.q:
            futures.append(Future())
            waiting.put((subwords.encode(text, out_type=str), futures[-1]))
        return {"translatedText": [subwords.decode(future.result()) for future in futures]}

    uvicorn.run(app, port=args.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
