"""Ithaka: a serving daemon for interactive video and world models."""

__version__ = "0.1.0"
