"""How fast it is, beside a plain formulation of the same, in the same run."""
