"""DINO and MoCo v3 in plain PyTorch.

Written as the papers' pseudocode has them, with the sizes of our config. In
comments: B images, S crops of which T are global, K prototypes, C size of an
embedding.
"""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import torch_step
from benchmarks.peers import torch_vit


class Dino(torch_step.TorchStep):
  """DINO with a centre (arXiv:2104.14294, algorithm 1)."""

  def make(self) -> Any:
    """Returns the student."""
    o = self.task.config.objective.options
    trunk = torch_vit.ViT(self.task.objective)
    student = nn.Sequential(trunk, _PrototypeHead(trunk.width, o))
    self._teacher = copy.deepcopy(student).requires_grad_(False)
    self._centre = self.tensor(self.task.extra['centre'])
    return student

  def before_step(self) -> None:
    """Moves the teacher, as after the step before."""
    _move(self._teacher, self.module, self.task.config.objective.options)

  def loss(self) -> Any:
    """Returns the loss of the batch, and moves the centre."""
    o = self.task.config.objective.options
    trunk, head = self.module
    features = [trunk(x.flatten(0, 1)) for x in self.views.values()]
    seen = self.views['global']  # [T, B, C, H, W]
    t, b = seen.shape[:2]
    with torch.no_grad():
      taught = self._teacher(seen.flatten(0, 1)).float()
      q = (taught - self._centre) / o.teacher_temperature_start
      q = functional.softmax(q, dim=-1).view(t, b, -1)
      self._centre.lerp_(taught.mean(dim=0), 1 - o.centre_momentum)
    logits = head(torch.cat(features)).float() / o.student_temperature
    log = functional.log_softmax(logits, dim=-1).view(-1, b, logits.shape[-1])
    pairs = -torch.einsum('tbk,sbk->ts', q, log) / b
    others = 1 - torch.eye(*pairs.shape, device=pairs.device)
    return (pairs * others).sum() / others.sum()


class MoCoV3(torch_step.TorchStep):
  """MoCo v3 (arXiv:2104.02057, algorithm 1)."""

  def make(self) -> Any:
    """Returns the base encoder with its projector and its predictor."""
    o = self.task.config.objective.options
    trunk = torch_vit.ViT(self.task.objective)
    if o.freeze_patches:
      trunk.patches.requires_grad_(False)
    hidden, last = o.width, o.dim
    projector = _mlp([trunk.width, *[hidden] * (o.projector_layers - 1)])
    base = nn.Sequential(trunk, projector, _last(hidden, last))
    predictor = _mlp([last, *[hidden] * (o.predictor_layers - 1)])
    self._momentum = copy.deepcopy(base).requires_grad_(False)
    return nn.ModuleList([base, nn.Sequential(predictor, _last(hidden, last))])

  def before_step(self) -> None:
    """Moves the momentum encoder."""
    _move(self._momentum, self.module[0], self.task.config.objective.options)

  def loss(self) -> Any:
    """Returns the loss of the batch."""
    t = self.task.config.objective.options.temperature
    base, predictor = self.module
    one, two = self.views['pair']
    with torch.no_grad():
      keys = [self._momentum(x) for x in (one, two)]
    queries = [predictor(base(x)) for x in (one, two)]
    return _contrast(queries[0], keys[1], t) + _contrast(queries[1], keys[0], t)


class _PrototypeHead(nn.Module):
  """DINO's head: an MLP, L2 normalisation and a weight-normalised layer."""

  def __init__(self, width: int, options: Any):
    super().__init__()
    o = options
    widths = [width, *[o.head_hidden] * (o.head_layers - 1)]
    layers: list[Any] = []
    for i, size in enumerate(widths[:-1]):
      layers += [nn.Linear(size, widths[i + 1])]
      if o.batch_norm:
        layers += [nn.BatchNorm1d(widths[i + 1])]
      layers += [nn.GELU()]
    self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], o.bottleneck))
    self.last = nn.utils.parametrizations.weight_norm(
      nn.Linear(o.bottleneck, o.prototypes, bias=False)
    )
    scale = self.last.parametrizations.weight.original0
    scale.data.fill_(1)
    scale.requires_grad_(o.trains_scale)

  def forward(self, x: Any) -> Any:
    """Returns logits [B, K] of features."""
    return self.last(functional.normalize(self.mlp(x), dim=-1))


def _mlp(widths: list[int]) -> Any:
  """Returns linear layers, each with BatchNorm and ReLU."""
  layers: list[Any] = []
  for i, width in enumerate(widths[1:]):
    layers += [nn.Linear(widths[i], width, bias=False)]
    layers += [nn.BatchNorm1d(width), nn.ReLU()]
  return nn.Sequential(*layers)


def _last(width: int, size: int) -> Any:
  return nn.Sequential(
    nn.Linear(width, size, bias=False), nn.BatchNorm1d(size, affine=False)
  )


@torch.no_grad()
def _move(average: Any, module: Any, options: Any) -> None:
  """Moves an average's parameters towards a module's."""
  pairs = zip(average.parameters(), module.parameters(), strict=True)
  for old, new in pairs:
    old.lerp_(new, 1 - options.momentum)


def _contrast(queries: Any, keys: Any, temperature: float) -> Any:
  """Returns InfoNCE of [B, C] and [B, C], times 2 T."""
  q, k = (functional.normalize(x.float(), dim=1) for x in (queries, keys))
  own = torch.arange(len(q), device=q.device)
  return 2 * temperature * functional.cross_entropy(q @ k.T / temperature, own)
