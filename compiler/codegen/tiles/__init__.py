"""Tiles of products, convolutions and transposes as vector IR."""
