"""Headway: an inference serving engine that explains itself.

Start with `engine/loop.py` (the loop), then `policy/waiting.py` (who waits, and why); `docs/map.md` holds the rest.
"""

__version__ = "0.1.0"
