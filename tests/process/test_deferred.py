"""What `import fairseq_plugins` and a translation leave out, and that fairseq has it when it asks for it."""

import subprocess
import sys
from pathlib import Path

from tests.support import REPOSITORY

PROGRAM = """
import gc, sys
import fairseq_plugins
print("old" if any(one is fairseq_plugins.Model for one in gc.get_objects(generation=2)) else "young")
fairseq_plugins.load("checkpoints/multi30k.en-de").translate("A dog.")
names = {"torch._dynamo", "torch._inductor", "pandas", "ctranslate2", "transformers", "triton"}
names |= {"sklearn", "sklearn.metrics", "scipy.stats", "tensorboard", "rapidfuzz", "safetensors"}
names |= {"fairseq_plugins.conversion.convert"}
print(sorted(names & set(sys.modules)))
from fairseq.models import MODEL_DATACLASS_REGISTRY
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
store = ConfigStore.instance()
groups = [group for group in store.repo.values() if isinstance(group, dict)]
nodes = [node for group in groups for node in group.values() if not isinstance(node, dict)]
print(len(nodes) > 60, sum("node" in vars(node) for node in nodes if node.provider == "fairseq"))
options = MODEL_DATACLASS_REGISTRY["transformer_lm"]
print(store.load("model/transformer_lm.yaml").node == OmegaConf.structured(options(_name="transformer_lm")))
store.store("later", options)
print("node" in vars(store.repo["later.yaml"]))
from fairseq.criterions import sentence_prediction
from fairseq.tasks import audio_classification
same = sentence_prediction.f1_score([1, 0], [1, 0]) == audio_classification.sklearn_metrics.f1_score([0, 1], [0, 1])
print(same, round(sentence_prediction.pearsonr([1, 2, 3], [2, 4, 6])[0], 5))
from fairseq.logging import progress_bar
print(type(progress_bar.SummaryWriter(sys.argv[1])).__module__)
import scipy, sklearn.metrics
print(scipy.__version__ > "1", sklearn.metrics.f1_score is not sentence_prediction.f1_score)
"""


def test_packages_and_settings_are_made_when_they_are_needed(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True
    )
    of_settings, of_packages = ["True 0", "True", "True"], ["True 1.0", "torch.utils.tensorboard.writer", "True True"]
    assert run.stdout.splitlines() == ["old", "[]", *of_settings, *of_packages], run.stderr
