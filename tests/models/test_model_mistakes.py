"""Models that cannot be are refused in one line: mistakes.txt."""

import pathlib

import mistakes
import pytest

from vit_jax import models


@pytest.mark.parametrize(
  ('section', 'fields', 'pattern'),
  mistakes.cases(pathlib.Path(__file__).with_name('mistakes.txt')),
)
def test_mistakes_are_told_in_one_line(section, fields, pattern):
  name, _, common = section.partition('; ')
  fields = {'num_classes': 3} | mistakes.changes(common) | fields
  with mistakes.told(pattern, ValueError):
    models.create_model(name, **fields)
