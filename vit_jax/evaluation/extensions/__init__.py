"""Classes that change methods of an evaluator; no config names them."""
