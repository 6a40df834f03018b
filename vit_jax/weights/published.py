"""Published checkpoints, by the name of a model and a tag.

The tags, sizes and addresses are timm's, of version 1.0.31. Its copies on the
Hugging Face Hub need no account. A tag says how a checkpoint was made: `augreg`
(arXiv:2106.10270), `orig` (arXiv:2010.11929), `goog` (arXiv:2105.01601) or
`sam` (arXiv:2106.01548); on ImageNet-21k (`in21k`) or ImageNet-1k (`in1k`); and
fine-tuned (`ft`). `authors_in21k` is the authors' own file.
"""

from collections.abc import Iterator
import dataclasses
import fnmatch

from vit_jax import models
from vit_jax import tables
from vit_jax.config import checkpoints
from vit_jax.config import UserError

AUTHORS = 'authors_in21k'

# A model's name here, and at timm without the size; then tags, each with sizes.
_TIMM = """
ViT-Ti/16   vit_tiny_patch16   augreg_in21k:224 augreg_in21k_ft_in1k:224,384
ViT-S/16    vit_small_patch16  augreg_in21k:224 augreg_in21k_ft_in1k:224,384
            augreg_in1k:224,384
ViT-S/32    vit_small_patch32  augreg_in21k:224 augreg_in21k_ft_in1k:224,384
ViT-B/8     vit_base_patch8    augreg_in21k:224 augreg_in21k_ft_in1k:224
ViT-B/16    vit_base_patch16   augreg_in21k:224 augreg_in21k_ft_in1k:224,384
            augreg_in1k:224,384 orig_in21k:224 orig_in21k_ft_in1k:224,384
            sam_in1k:224
ViT-B/32    vit_base_patch32   augreg_in21k:224 augreg_in21k_ft_in1k:224,384
            augreg_in1k:224,384 orig_in21k:224 sam_in1k:224
ViT-L/16    vit_large_patch16  augreg_in21k:224 augreg_in21k_ft_in1k:224,384
            orig_in21k:224
ViT-L/32    vit_large_patch32  orig_in21k:224 orig_in21k_ft_in1k:384
ViT-H/14    vit_huge_patch14   orig_in21k:224
Mixer-B/16  mixer_b16          goog_in21k:224 goog_in21k_ft_in1k:224
Mixer-L/16  mixer_l16          goog_in21k:224 goog_in21k_ft_in1k:224
"""


@dataclasses.dataclass(frozen=True)
class Published:
  """A checkpoint that others have published.

  Attributes:
    model: Its name here, as 'ViT-B/16'.
    tag: How it was made; see the module.
    image_size: Height and width of its images; None: not known before it is
      read.
    address: What `vit_jax.load` downloads.
  """

  model: str
  tag: str
  image_size: int | None
  address: str


class Table(list[Published]):
  """Checkpoints; printed, a table."""

  def __str__(self) -> str:
    """Returns a line for each."""
    names = 'model', 'pretrained', 'image_size', 'address'
    rows = [(x.model, x.tag, x.image_size, x.address) for x in self]
    return tables.Table(names, rows).text()


def list_models(
  pattern: str = '*',
  *,
  pretrained: bool | str = False,
  image_size: int | None = None,
) -> list[str] | Table:
  """Returns the names of models, or their published checkpoints.

  Any other patch size of ViT and Mixer works as a name, too: `ViT-Ti/4`.

  Args:
    pattern: Shell-style, of names: `ViT-*` or `*S/*`.
    pretrained: True: checkpoints; a string: those with such a tag, as `*_in1k`.
    image_size: Only checkpoints for this height and width.

  Returns:
    Names; checkpoints with `pretrained`.
  """
  if not pretrained:
    return models.list_models(pattern)
  tags = pretrained if isinstance(pretrained, str) else '*'
  return Table(
    x
    for x in _all()
    if fnmatch.fnmatchcase(x.model, pattern)
    and fnmatch.fnmatchcase(x.tag, tags)
    and image_size in (None, x.image_size)
  )


def find(
  model: str, tag: str, image_size: int | tuple[int, int] | None = None
) -> Published:
  """Returns the checkpoint of a model and a tag.

  That for `image_size` is preferred, where a tag has several; else the first,
  as a rule for 224 pixels. The error names the tags that there are.
  """
  checkpoints = [x for x in _all() if x.model == model]
  tagged = [x for x in checkpoints if x.tag == tag]
  if not tagged:
    tags = ', '.join(dict.fromkeys(x.tag for x in checkpoints))
    raise UserError(
      f'{model!r} has no published checkpoint pretrained={tag!r} here: '
      + (f'choose of {tags}' if tags else 'see list_models(pretrained=True)')
    )
  size = image_size if isinstance(image_size, tuple) else (image_size,) * 2
  return min(tagged, key=lambda x: (x.image_size,) * 2 != size)


def _all() -> Iterator[Published]:
  """Yields all checkpoints, the authors' files last."""
  for line in _TIMM.replace('\n   ', ' ').strip().splitlines():
    model, name, *tags = line.split()
    for tag, _, sizes in (x.partition(':') for x in tags):
      for size in sizes.split(','):
        address = f'hf:timm/{name}_{size}.{tag}'
        yield Published(model, tag, int(size), address)
  for model, address in checkpoints.CHECKPOINTS.items():
    yield Published(model, AUTHORS, None, address)
