"""The parts of models, as `summary --parts` lists them."""

import json

import commands
import pytest

import vit_jax
from vit_jax import config as config_lib
from vit_jax.summary import __main__ as summary


def test_all_parts_are_listed(capsys):
  assert commands.run(summary, '--parts') == 0
  head, *lines = capsys.readouterr().out.splitlines()
  assert head.split() == ['key', 'part', 'meaning']
  assert [line.split()[:2] for line in lines] == [
    [f'model.{x.kind}', x.name] for x in vit_jax.list_parts()
  ]
  (swiglu,) = (line for line in lines if ' swiglu ' in line)
  assert 'arXiv:2002.05202' in swiglu
  assert 'hidden_dim=config.model.mlp_dim' in swiglu


def test_parts_of_a_kind_as_json(capsys):
  assert commands.run(summary, '--parts=pool', '--format=json') == 0
  listed = json.loads(capsys.readouterr().out)
  assert [x['name'] for x in listed] == [
    'token',
    'mean',
    'map',
    'token_and_mean',
  ]
  assert listed[2]['options']['mlp_dim'] == 'config.model.mlp_dim'


def test_an_unknown_kind():
  with pytest.raises(config_lib.UserError, match="did you mean 'attention'"):
    commands.run(summary, '--parts=atention')
