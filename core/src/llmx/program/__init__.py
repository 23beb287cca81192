"""Programs: a model as data. ops (types and the registry of kinds), attrs (what an op may say), builder, verify, text."""
