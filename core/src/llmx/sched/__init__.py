"""The scheduler: who runs in the next step, with how many tokens. No torch, no device, no text."""
