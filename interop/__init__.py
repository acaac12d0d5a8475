"""The real program as a peer: `make interop` lets it and refold take turns on the same files."""
