"""Writes event files for TensorBoard."""

from collections.abc import Mapping
import pathlib
import socket
import struct
import time
from typing import Any

from vit_jax.runs.event_protos import event_pb2
from vit_jax.runs.event_protos import masked_crc32c
from vit_jax.runs.event_protos import summary as summary_lib
from vit_jax.runs.event_protos import summary_pb2


class Events:
  """An event file for TensorBoard.

  tensorboardX.SummaryWriter is not used, for three reasons. Its thread holds
  events back for up to two minutes, and a killed run would lose them. If the
  disk is full, the thread dies and the loop waits for it for ever. And a run
  that resumes within a second overwrites the previous file.
  """

  def __init__(self, directory: pathlib.Path, start_step: int):
    """Begins a file, and makes TensorBoard drop events after the start step.

    Args:
      directory: Directory of the file.
      start_step: Number of updates that were completed before.
    """
    prefix = 'events.out.tfevents.'
    earlier = [path.name for path in directory.glob(f'{prefix}*')]
    seconds = [name.removeprefix(prefix).split('.')[0] for name in earlier]
    # TensorBoard reads the files in order of their names, and never goes back.
    newest = max((int(x) for x in seconds if x.isdecimal()), default=0)
    stamp = max(int(time.time()), newest + 1)
    name = f'{prefix}{stamp:010d}.{socket.gethostname()}'
    self._file = (directory / name).open('xb')
    self._write(
      event_pb2.Event(wall_time=time.time(), file_version='brain.Event:2')
    )
    # With this event TensorBoard drops earlier events from this step on. It
    # ignores the first such event that it sees, so the first start writes one,
    # too.
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._write(
      event_pb2.Event(
        wall_time=time.time(), step=start_step + 1, session_log=start
      )
    )

  def write(self, step: int, now: float, scalars: Mapping[str, float]) -> None:
    """Writes scalars, except for counts of examples, which are constant."""
    values = [
      summary_pb2.Summary.Value(tag=name, simple_value=value)
      for name, value in scalars.items()
      if not name.endswith('/examples')
    ]
    if values:
      self._summarize(step, now, summary_pb2.Summary(value=values))

  def write_config(self, step: int, config: Mapping[str, Any]) -> None:
    """Writes a config for the tabs TEXT and HPARAMS.

    The metrics of HPARAMS are not listed, so TensorBoard shows all scalars.

    Args:
      step: Step at which it is shown.
      config: The value of each leaf by its dotted key.
    """
    # Markdown shows indented text as code.
    lines = '\n'.join(f'    {key} = {x!r}' for key, x in config.items())
    self._summarize(step, time.time(), summary_lib.text('config', lines))
    shown = {
      key: x if isinstance(x, bool | int | float | str) else repr(x)
      for key, x in config.items()
      if x is not None
    }
    _, started, _ = summary_lib.hparams(shown, {})
    self._summarize(step, time.time(), started)

  def write_image(self, step: int, name: str, png: bytes) -> None:
    """Writes an image for the tab IMAGES.

    Args:
      step: Step at which it is shown.
      name: Name of the image.
      png: Content of a PNG file.
    """
    width, height = struct.unpack('>II', png[16:24])  # in its first chunk
    image = summary_pb2.Summary.Image(
      width=width, height=height, colorspace=3, encoded_image_string=png
    )
    value = summary_pb2.Summary.Value(tag=name, image=image)
    self._summarize(step, time.time(), summary_pb2.Summary(value=[value]))

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def _summarize(
    self, step: int, now: float, summary: summary_pb2.Summary
  ) -> None:
    self._write(event_pb2.Event(wall_time=now, step=step, summary=summary))

  def _write(self, event: event_pb2.Event) -> None:
    data = event.SerializeToString()
    size = struct.pack('<Q', len(data))
    sums = [struct.pack('<I', masked_crc32c(part)) for part in (size, data)]
    self._file.write(size + sums[0] + data + sums[1])  # a TFRecord
    self._file.flush()
