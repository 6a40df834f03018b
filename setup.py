"""Packaging of vit_jax; tools are configured in pyproject.toml."""

import pathlib

import setuptools
from setuptools.command import build_py

ROOT = pathlib.Path(__file__).parent


class BuildWithConfigs(build_py.build_py):
  """Copies configs/ into the package, as vit_jax/configs/.

  They stay at the top of a clone, where an editable installation finds them.
  """

  def run(self) -> None:
    """Builds the package."""
    super().run()
    if not self.editable_mode:
      for source, copy in self._configs().items():
        self.mkpath(str(pathlib.Path(copy).parent))
        self.copy_file(source, copy)

  def get_outputs(self, include_bytecode: bool = True) -> list[str]:
    """Returns all files that are built."""
    outputs = super().get_outputs(include_bytecode)
    if self.editable_mode:
      return outputs
    return [*outputs, *self._configs().values()]

  def _configs(self) -> dict[str, str]:
    """Returns the path of each copy, by the file that is copied."""
    build = pathlib.Path(self.build_lib) / 'vit_jax'
    return {
      str(path.relative_to(ROOT)): str(build / path.relative_to(ROOT))
      for path in sorted(ROOT.glob('configs/**/*.py'))
    }


setuptools.setup(
  name='vit_jax',
  version='0.2.0',
  description='Vision Transformers in JAX and Flax Linen',
  long_description=(ROOT / 'README.md').read_text(),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  python_requires='>=3.11,<3.14',
  # With this, an editable install is a plain entry in sys.path: the package is
  # found also where a clone of this repository is a folder beside.
  package_dir={'': '.'},
  packages=setuptools.find_packages(include=['vit_jax', 'vit_jax.*']),
  cmdclass={'build_py': BuildWithConfigs},
  entry_points={'console_scripts': ['vit-jax = vit_jax.cli.verbs:run']},
  package_data={
    'vit_jax': [
      'py.typed',
      'data/class_names/*',
      'data/templates/*',
      'explore/page/*',
      'explore/templates/*',
      'serve/docs.css',
    ]
  },
  install_requires=[
    'absl-py>=2.3',
    'annotated-types>=0.7',
    'clu>=0.0.12',
    # An allocator for CPUs: vit_jax/parallel/allocator.py.
    'cmeel-mimalloc>=3.4; sys_platform == "linux"'
    ' and platform_machine in "x86_64 aarch64"',
    'flax>=0.12.8',
    'grain>=0.2.18',
    # 0.10.0 and 0.10.1 print an error for each program from the cache.
    'jax>=0.10.2',
    'ml_collections>=1.1',
    'ml_dtypes>=0.5',
    'numpy>=2.1',
    'opencv-python-headless>=5.0',
    'optax>=0.2.8',
    'orbax-checkpoint>=0.12',
    'pillow>=11.0',
    'psutil>=6.0',
    'pydantic>=2.10',
    'requests>=2.32',
    'rich>=14.0',  # what a terminal shows: vit_jax/runs/terminal.py
    'safetensors>=0.8',
    'scikit-learn>=1.6',
    'simplejpeg>=1.8',
    'tensorboardX>=2.6.5',
    'tensorflow-datasets>=4.9.10',
  ],
  extras_require={
    'cuda': ['jax[cuda12]'],
    'tpu': ['jax[tpu]'],
    # The compiler of TPUs, for machines without one.
    'compile-tpu': ['libtpu>=0.0.40'],
    # Where metrics go beside TensorBoard.
    'mlflow': ['mlflow-skinny>=3.0', 'sqlalchemy>=2.0'],
    'wandb': ['wandb>=0.20'],
    'slurm': ['submitit>=1.5'],
    'sweep': ['matplotlib>=3.11.1', 'optuna>=5.0'],
    # Pictures.
    'explore': ['jinja2>=3.1', 'matplotlib>=3.11.1'],
    # The web page.
    'demo': ['starlette>=1.10', 'uvicorn>=0.54'],
    # A model behind HTTP.
    'serve': ['starlette>=1.10', 'uvicorn>=0.54'],
    # Work directories in object stores.
    'gs': ['gcsfs>=2025.3'],
    's3': ['s3fs>=2025.3'],
    # StableHLO and ONNX. jax2onnx from 0.14 on, as far as 0.17.1, wants an
    # orbax-checkpoint below 0.11.37, older than ours.
    'export': [
      'flatbuffers>=25.1',
      'jax2onnx>=0.13,<0.14',
      'onnx>=1.23',
      'onnxruntime>=1.31',
    ],
    # Running the notebooks.
    'notebooks': [
      'ipykernel>=6.29',
      'matplotlib>=3.11.1',
      'nbclient>=0.10',
      'nbformat>=5.10',
    ],
    # TensorFlow, only to write TFDS datasets once.
    'prepare': ['tensorflow-cpu'],
    'quantize': ['qwix>=0.1.8'],  # int8 kernels, to predict
    'tables': ['pyarrow>=21.0'],  # data in Parquet files
    'hub': ['huggingface_hub>=2.4'],  # models of the Hugging Face Hub
    # Data in datasets of Hugging Face.
    'hf': ['datasets>=5.2', 'huggingface_hub>=2.4'],
    'medical': ['nibabel>=5.3'],  # scans in NIfTI files
    'audio': ['soundfile>=0.13'],  # sounds in files
    'text': [
      'ftfy>=6.3',
      'sentencepiece>=0.2.2',
      'tokenizers>=0.22',
    ],  # captions
    'docs': [
      'myst-nb>=1.4',
      'pyte>=0.8.2',  # the terminal that scripts/record_terminal.py draws
      'rich>=15.0',
      'selenium>=4.51',  # scripts/check_pages.py
      'sphinx>=9.0',
      'sphinx-book-theme>=1.4',
      'sphinx-copybutton>=0.5.2',
      'sphinx-design>=0.8',
    ],
    # For the tests that compare with transformers alone.
    'compat': ['torch==2.13.0', 'transformers>=5.23'],
    'test': [
      'datasets>=5.2',
      'flask>=3.0',  # of moto's server; moto[server] has much more
      'flask-cors>=5.0',
      'flatbuffers>=25.1',
      'ftfy>=6.3',
      'gcp-storage-emulator>=2024.8.3',
      'gcsfs>=2025.3',
      'huggingface_hub>=2.4',
      'hypothesis>=6.120',
      'ipykernel>=6.29',
      'jax2onnx>=0.13,<0.14',
      'jinja2>=3.1',
      'matplotlib>=3.11.1',
      'moto[s3]>=5.2',
      'mypy>=2.0',
      'nbclient>=0.10',
      'nbformat>=5.10',
      'nibabel>=5.3',
      'onnx>=1.23',
      'onnxruntime>=1.31',
      'optuna>=5.0',
      'pyarrow>=21.0',
      'pytest>=8.3',
      'pytest-xdist>=3.6',
      'pyyaml>=6.0.2',
      'qwix>=0.1.8',
      'ruff>=0.17',
      's3fs>=2025.3',
      'selenium>=4.51',
      'sentencepiece>=0.2.2',
      'soundfile>=0.13',
      'starlette>=1.10',
      'submitit>=1.5',
      'tensorboard>=2.19',
      'tokenizers>=0.22',
      'uvicorn>=0.54',
      'zstandard>=0.23',  # JAX then keeps compiled programs sooner
    ],
  },
)
