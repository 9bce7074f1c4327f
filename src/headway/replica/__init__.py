"""The replica process, and the typed messages between it and the front."""
