"""The keys of a config, as `summary --keys` lists them."""

import json

import commands
import pytest

from vit_jax import config as config_lib
from vit_jax.summary import __main__ as summary

CONFIG = '--config=digits'


def listed(capsys, *flags):
  """Returns what a command lists."""
  assert commands.run(summary, CONFIG, '--format=json', *flags) == 0
  return json.loads(capsys.readouterr().out)


def test_all_keys_have_their_value_and_meaning(capsys):
  actual = listed(capsys, '--keys', '--config.optim.learning_rate=0.25')
  config = config_lib.load('digits')
  assert list(actual) == [key for key, _ in config_lib.flatten(config)]
  values = {key: x['value'] for key, x in actual.items()}
  assert values['optim.learning_rate'] == 0.25
  assert values['train.batch_size'] == config.train.batch_size
  # Of the named model, and what is left to the data.
  assert values['model.mlp_dim'] and values['model.layer_norm_epsilon'] == 1e-6
  assert values['model.num_classes'] is None and values['data.mean'] != []
  meanings = {key: x['meaning'] for key, x in actual.items()}
  assert all(text and '\n' not in text for text in meanings.values())
  assert meanings['optim.learning_rate'].startswith('The learning rate after')
  assert meanings['optim.sam'].startswith('SAM (sharpness-aware')
  assert meanings['evals.val.kind'].startswith('The evaluator, with')
  assert meanings['augment.volume.flip'].startswith('Probability that an axis')


@pytest.mark.parametrize(
  ('word', 'key'),
  [
    ('learning rate', 'optim.learning_rate'),
    ('LR', 'optim.learning_rate'),
    ('drop_path', 'model.stochastic_depth'),
    ('early stopping', 'train.patience'),  # in its meaning alone
    ('model.depth', 'model.depth'),
    ('batch size', 'train.batch_size'),
  ],
)
def test_words_are_found_in_names_and_meanings(word, key, capsys):
  assert commands.run(summary, CONFIG, f'--keys={word}') == 0
  lines = capsys.readouterr().out.splitlines()
  keys = [line.split()[0] for line in lines]
  assert key in keys and len(lines) < 30
  places = {line.index(line.split(maxsplit=1)[1]) for line in lines}
  assert len(places) == 1  # values are aligned


def test_the_keys_of_a_run(digits_run, capsys):
  flags = f'--from={digits_run}', '--keys=seed', '--json'
  assert commands.run(summary, *flags) == 0
  stored = json.loads((digits_run / 'config.json').read_text())
  assert json.loads(capsys.readouterr().out)['seed']['value'] == stored['seed']


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--keys=foobarx'], '--keys=foobarx: no key has this in its name or mea'),
    (['--keys', 'lr'], "write the words after =, as in --keys='lr'"),
    (['--keys', '--config.model.name=ViT-X/2'], "no model is named 'ViT-X/2'"),
  ],
)
def test_what_cannot_be_listed(arguments, message):
  assert message in commands.mistake(summary, CONFIG, *arguments)
