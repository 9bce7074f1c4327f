"""Measurements of the real engine on this machine. They print numbers and judge nothing."""
