"""Classes that change methods of an objective; no config names them."""
