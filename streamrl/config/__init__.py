"""Configuration: `schema` is its shape, `load` reads it, `rules` holds what spans several keys."""

from streamrl.config.schema import Config

__all__ = ["Config"]
