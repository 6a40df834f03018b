"""Looking inside: pictures of data and models, and reports."""
