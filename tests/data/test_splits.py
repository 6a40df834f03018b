import pytest

from vit_jax.config import UserError
from vit_jax.data import splits

SIZES = {'train': 1797, 'test': 53, 'extra-2': 1}

GOOD = """
train test extra-2 all train[:90%] train[90%:] train[10%:-5%] train[10%:-5]
train[:500] train[500:] train[-500:] train[:-500] train[-10:-5] train[-10%:]
train[33.3%:66.6%] train[:1_000] train[0:1797] train[:100%] train[-1797:]
test[:1%] test[50%:] test[:50%] test[49.5%:50.5%] test[3:30%]
train[:500]+test train[50%:]+test[:50%]+extra-2 test+train[:5]
train[:50%]+train[25%:] test[:10]+test[10:]
""".split()

BAD = """
train[] train[:] train[5] train[:x] train[5:1:2] train[:1.5] train[:101%]
train[-101%:] [:5] train+ +train train[:5 train] train[:5%%]
train:5 train[7shard]
""".split()


def expected(spec: str) -> list[tuple[str, int]]:
  """(split, row) of every example, by TFDS."""
  import tensorflow_datasets as tfds

  infos = {
    name: tfds.core.SplitInfo(
      name=name, shard_lengths=[size], num_bytes=0, filename_template=None
    )
    for name, size in SIZES.items()
  }
  instruction = tfds.core.splits.AbstractSplit.from_spec(spec)
  return [
    (part.splitname, row)
    for part in instruction.to_absolute(
      tfds.core.splits.SplitDict(infos.values())
    )
    for row in range(SIZES[part.splitname])[part.from_ : part.to]
  ]


@pytest.mark.slow
@pytest.mark.parametrize('spec', GOOD)
def test_selects_what_tfds_selects(spec):
  selection = splits.Selection(spec, SIZES, 'data')
  actual = [selection.locate(i)[:2] for i in range(len(selection))]
  assert actual == expected(spec)


@pytest.mark.parametrize('percent', range(0, 100, 7))
def test_rounds_as_tfds_does(percent):
  for spec in (f'test[:{percent + 1}%]', f'train[{percent}%:]'):
    assert len(splits.Selection(spec, SIZES, 'data')) == len(expected(spec))


@pytest.mark.parametrize('spec', [*BAD, '', ' '])
def test_refuses_what_is_no_split(spec):
  with pytest.raises(UserError, match='is not a split: write'):
    splits.parse(spec)


@pytest.mark.parametrize(
  'spec, message',
  [
    ('val', "data has no split 'val': choose from train, test, extra-2"),
    ('test[:54]', "'test\\[:54\\]' reaches beyond the 53 examples of 'test'"),
    ('test[-60:]', 'reaches beyond'),
    ('test[5:5]', 'is empty'),
    ('test[50%:10%]', 'is empty'),
  ],
)
def test_refuses_what_selects_nothing(spec, message):
  with pytest.raises(UserError, match=message):
    splits.Selection(spec, SIZES, 'data')


def test_index_is_position_in_unsliced_splits():
  selection = splits.Selection('test[50:]+train[:2]', SIZES, 'data')
  indices = [selection.locate(i)[2] for i in range(len(selection))]
  assert indices == [50, 51, 52, 53, 54]  # train follows all 53 of test
  twice = splits.Selection('test[:2]+test[1:3]', SIZES, 'data')
  assert [twice.locate(i)[2] for i in range(4)] == [0, 1, 1, 2]
