"""What is known about the devices that models run on.

Peaks are of dense bfloat16 matrix products of one chip, in TFLOP/s, as their
makers state them: NVIDIA's data sheets of the A100 (312), H100 SXM and H200
(1,979 with sparsity, which is twice the dense 989), and the pages on TPU v4
(275), v5e (197), v5p (459) and v6e (918) of Google Cloud's documentation.
"""

import re

import jax

# By `jax.Device.device_kind`; the first that matches counts. JAX calls the v5e
# and v6e "lite". Other H100s (PCIe, NVL) are slower, so they are left out.
_PEAK_FLOPS = {
  r'A100\b': 312e12,
  r'H100.*HBM3$': 989e12,
  r'H200\b(?! NVL)': 989e12,
  r'TPU v4$': 275e12,
  r'TPU (v5 lite|v5e)\b': 197e12,
  r'TPU v5p?$': 459e12,
  r'TPU (v6 lite|v6e)\b': 918e12,
}


def peak_flops(device: jax.Device) -> float | None:
  """Returns the peak of a device's bfloat16 matrix products, in FLOP/s.

  Args:
    device: As in `jax.devices()`.

  Returns:
    The peak that its maker states; None where it is not known, as for a CPU.
  """
  for pattern, peak in _PEAK_FLOPS.items():
    if re.search(pattern, device.device_kind):
      return peak
  return None
