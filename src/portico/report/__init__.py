"""Self-contained HTML pages: their frame, charts and tables, which the report of every kind of run is made of."""
