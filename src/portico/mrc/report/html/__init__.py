"""The report as text: tables, charts and pages."""
