"""Names, shapes and configs of other libraries, as tables."""
