"""LoRA: adapters read from files (peft, settings), fitted to a model (bind), kept by name (adapters) and in device slots (slots)."""
