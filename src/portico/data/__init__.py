"""Where training data come from: files and streams of records, and what is wrong with a record."""
