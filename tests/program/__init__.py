"""Tests of Programs, their kinds and the model families."""
