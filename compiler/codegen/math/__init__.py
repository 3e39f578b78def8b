"""Elementary and special functions as vector IR."""
