"""Sample rows that ship with the package."""
