"""What event files need of tensorboardX.

It imports torch where that is installed, for functions that are not used here.
That would take two seconds of each start.
"""

import sys

_is_hidden = 'torch' not in sys.modules
if _is_hidden:
  sys.modules['torch'] = None  # type: ignore[assignment] # importing it fails
try:
  from tensorboardX import summary as summary
  from tensorboardX.proto import event_pb2 as event_pb2
  from tensorboardX.proto import summary_pb2 as summary_pb2
  from tensorboardX.record_writer import masked_crc32c as masked_crc32c
finally:
  if _is_hidden:
    del sys.modules['torch']
