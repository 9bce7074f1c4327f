"""The HTTP surface: one file per group of routes, over one `Front`."""
