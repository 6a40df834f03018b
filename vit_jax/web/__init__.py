"""HTTP: the address, the server, and limits of requests."""
