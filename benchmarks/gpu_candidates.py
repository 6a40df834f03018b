"""Ways to compute a training step that a GPU may or may not do faster.

`gpu_report` measures each in turns with the defaults, on ViT-B/16 with 256
images. docs/log/performance.md has a prediction for each.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

_PARTS = 'benchmarks.gpu_parts'
_UNROLLING = 'xla_gpu_enable_while_loop_unrolling'


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One change against the defaults.

  Attributes:
    changes: Values of the config by key.
    options: Compiler options.
    is_same: Whether it trains as the defaults do; if not, losses are not
      compared.
  """

  changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  is_same: bool = True


# The most promising first: what comes last may not be reached.
CANDIDATES: Mapping[str, Candidate] = {
  # Lengths of sequences.
  'tokens_200': Candidate({'model.registers': 3}, is_same=False),
  'tokens_196': Candidate({'model.pool': 'mean'}, is_same=False),
  'padded_to_8': Candidate(
    {'model.attention': f'{_PARTS}:PaddedAttention(multiple=8)'}
  ),
  'padded_to_64': Candidate(
    {'model.attention': f'{_PARTS}:PaddedAttention(multiple=64)'}
  ),
  # LayerNorm.
  'cudnn_norm': Candidate(options={'xla_gpu_enable_cudnn_layer_norm': True}),
  'triton_norm': Candidate({'model.norm': f'{_PARTS}:TritonNorm'}),
  # Products, their biases and the derivative of the GELU.
  'cublaslt': Candidate(options={'xla_gpu_enable_cublaslt': True}),
  'multi_output': Candidate(
    options={'xla_gpu_unsupported_enable_triton_multi_output_fusion': True}
  ),
  'gelu_slope': Candidate(
    {'model.mlp': f'{_PARTS}:SlopeMlp', 'model.remat': 'none'}
  ),
  'remat_none': Candidate({'model.remat': 'none'}),
  'packed_qkv': Candidate({'model.attention': f'{_PARTS}:PackedAttention'}),
  'no_triton_products': Candidate(
    options={'xla_gpu_enable_triton_gemm': False}
  ),
  'all_tilings': Candidate(options={'xla_gpu_exhaustive_tiling_search': True}),
  'fusion_autotuner': Candidate(
    options={'xla_gpu_experimental_enable_fusion_autotuner': True}
  ),
  'all_triton': Candidate(
    options={'xla_gpu_experimental_all_fusions_with_triton': True}
  ),
  # The optimizer and gradients.
  'flat_optimizer': Candidate({'optim.name': f'{_PARTS}:flat_adam'}),
  'half_gradients': Candidate({'optim.name': f'{_PARTS}:half_adam'}),
  # When kernels start.
  'no_command_buffers': Candidate(
    options={'xla_gpu_enable_command_buffer': ''}
  ),
  'latency_hiding': Candidate(
    options={'xla_gpu_enable_latency_hiding_scheduler': True}
  ),
  # Scanned layers.
  'scan': Candidate({'model.scan': True}),
  'scan_by_two': Candidate(
    {'model.scan': True},
    {_UNROLLING: 'WHILE_LOOP_UNROLLING_DOUBLE_BUFFER'},
  ),
  'scan_unrolled': Candidate(
    {'model.scan': True}, {_UNROLLING: 'WHILE_LOOP_UNROLLING_FULL_UNROLL'}
  ),
  'dropout': Candidate({'model.dropout_rate': 0.1}, is_same=False),
  'dropout_rbg': Candidate(
    {'model.dropout_rate': 0.1, 'train.rng': 'rbg'}, is_same=False
  ),
}
