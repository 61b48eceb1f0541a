"""Other libraries' objects around a stream; each module imports its library, and nothing else does."""
