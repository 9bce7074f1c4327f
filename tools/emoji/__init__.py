"""Makes the text-to-image model `emoji-64`; `tools/train_emoji.py` is its command line."""
