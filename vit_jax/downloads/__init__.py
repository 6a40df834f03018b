"""Files from the network, which are downloaded once and kept in a cache."""
