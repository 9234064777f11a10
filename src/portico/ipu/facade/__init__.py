"""The methods of a trainer that differ on IPUs, grouped by what they are about."""
