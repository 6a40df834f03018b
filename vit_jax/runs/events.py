"""Writes event files for TensorBoard.

TensorBoard groups names by their part before the first slash. So measures of
the machine, such as train/mfu, are below perf/ there, and metrics of classes,
such as val/iou/road, below val_iou/; metrics.jsonl has the names of the run.
"""

from collections.abc import Mapping
import json
import pathlib
import socket
import struct
import sys
import textwrap
import time
from typing import Any

from vit_jax.runs import reporting

# tensorboardX imports torch where that is installed, for functions that are not
# used here. That would take two seconds of each start.
_is_hidden = 'torch' not in sys.modules
if _is_hidden:
  sys.modules['torch'] = None  # type: ignore[assignment] # importing it fails
try:
  from tensorboardX import summary as summary_lib
  from tensorboardX.proto import event_pb2
  from tensorboardX.proto import summary_pb2
  from tensorboardX.record_writer import masked_crc32c
finally:
  if _is_hidden:
    del sys.modules['torch']


class Events:
  """An event file for TensorBoard.

  tensorboardX.SummaryWriter is not used, for three reasons. Its thread holds
  events back for up to two minutes, and a killed run would lose them. If the
  disk is full, the thread dies and the loop waits for it for ever. And a run
  that resumes within a second overwrites the previous file.
  """

  def __init__(self, directory: pathlib.Path, start_step: int):
    """Begins a file, and makes TensorBoard drop events after the start step."""
    prefix = 'events.out.tfevents.'
    earlier = [path.name for path in directory.glob(f'{prefix}*')]
    seconds = [name.removeprefix(prefix).split('.')[0] for name in earlier]
    # TensorBoard reads the files in order of their names, and never goes back.
    newest = max((int(x) for x in seconds if x.isdecimal()), default=0)
    stamp = max(int(time.time()), newest + 1)
    name = f'{prefix}{stamp:010d}.{socket.gethostname()}'
    self._file = (directory / name).open('xb')
    self._epoch_step = -1  # the last step whose epoch was written
    self._write(file_version='brain.Event:2')
    # With this event TensorBoard drops earlier events from this step on. It
    # ignores the first such event that it sees, so the first start writes one,
    # too.
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._write(step=start_step + 1, session_log=start)

  def write(self, step: int, now: float, scalars: Mapping[str, float]) -> None:
    """Writes scalars, except for counts of examples, which are constant."""
    values = [
      summary_pb2.Summary.Value(tag=_tag(name), simple_value=value)
      for name, value in scalars.items()
      if not name.endswith('/examples')
      and (name != 'epoch' or step > self._epoch_step)
    ]
    self._epoch_step = step
    if values:
      self._write(now, step=step, summary=summary_pb2.Summary(value=values))

  def write_start(self, start: reporting.Start) -> None:
    """Writes the config for the tabs TEXT and HPARAMS, and the run's record.

    HPARAMS has the keys that were changed. Its metrics are not listed, so
    TensorBoard shows the last values of all scalars, also of several runs.
    """
    parts = {'changed keys': start.changed, 'all keys': start.config}
    text = '\n\n'.join(
      f'**{title}**\n\n'
      + _code('\n'.join(f'{key} = {x!r}' for key, x in values.items()))
      for title, values in parts.items()
    )
    texts = {'config': text}
    if start.record:
      texts |= {
        'command': _code(str(start.record['command'])),
        'run': _code(json.dumps(start.record, indent=2)),
      }
    for name, content in texts.items():
      self._write(step=start.step, summary=summary_lib.text(name, content))
    parameters = {
      key: x if isinstance(x, bool | int | float | str) else repr(x)
      for key, x in start.changed.items()
      if x is not None
    }
    _, started, _ = summary_lib.hparams(parameters, {})
    self._write(step=start.step, summary=started)

  def write_image(self, step: int, name: str, png: bytes) -> None:
    """Writes an image, a PNG file, for the tab IMAGES."""
    width, height = struct.unpack('>II', png[16:24])  # in its first chunk
    image = summary_pb2.Summary.Image(
      width=width, height=height, colorspace=3, encoded_image_string=png
    )
    value = summary_pb2.Summary.Value(tag=name, image=image)
    self._write(step=step, summary=summary_pb2.Summary(value=[value]))

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def _write(self, now: float | None = None, **fields: Any) -> None:
    """Writes an event with these fields."""
    event = event_pb2.Event(wall_time=now or time.time(), **fields)
    data = event.SerializeToString()
    size = struct.pack('<Q', len(data))
    sums = [struct.pack('<I', masked_crc32c(part)) for part in (size, data)]
    self._file.write(size + sums[0] + data + sums[1])  # a TFRecord
    self._file.flush()


def _tag(name: str) -> str:
  if reporting.is_timed(name):
    return f'perf/{name.removeprefix("train/")}'
  group, _, metric = name.partition('/')
  metric, _, class_name = metric.partition('/')
  if class_name and group != 'train':
    return f'{group}_{metric.removeprefix("class_")}/{class_name}'
  return name


def _code(text: str) -> str:
  """Returns text as Markdown that is shown as it is."""
  return textwrap.indent(text, '    ')
