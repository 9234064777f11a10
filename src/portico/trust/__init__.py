"""The one gate: names from data become classes here, files that could hold code are opened, all files are written."""
