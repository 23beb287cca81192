"""The page at `/`: a chat and a live view of the engine. Files that need no build, open without a key; page.py serves them."""
