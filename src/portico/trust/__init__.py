"""The one gate: names from data become classes here, and files that could hold code are opened here."""
