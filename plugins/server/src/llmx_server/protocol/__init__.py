"""What OpenAI clients send and what they get back: request models and builders of plain response objects."""
