"""What `import fairseq_plugins` does not import, and that fairseq's criterions have it when they call it."""

import subprocess
import sys

from tests.support import REPOSITORY

PROGRAM = """
import sys
import fairseq_plugins
print(sorted({"sklearn", "sklearn.metrics", "scipy.stats"} & set(sys.modules)))
from fairseq.criterions import sentence_prediction
from fairseq.tasks import audio_classification
same = sentence_prediction.f1_score([1, 0], [1, 0]) == audio_classification.sklearn_metrics.f1_score([0, 1], [0, 1])
print(same, round(sentence_prediction.pearsonr([1, 2, 3], [2, 4, 6])[0], 5))
import scipy, sklearn.metrics
print(scipy.__version__ > "1", sklearn.metrics.f1_score is not sentence_prediction.f1_score)
"""


def test_scientific_packages_are_imported_when_they_are_called() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert run.stdout.splitlines() == ["[]", "True 1.0", "True True"], run.stderr
