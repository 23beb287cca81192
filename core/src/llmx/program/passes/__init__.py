"""Passes: Programs in, Programs out."""
